"""A curve drawn with characters: braille dots, 5 rows, the true extremes at the left."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from optdoctor.curves.masked import unmasked, witness
from optdoctor.report.wording import counted, fixed, number, wrap
from optdoctor.store import FloatArray, Series
from optdoctor.trace import Trace

WIDTH, HEIGHT = 66, 5
LEAST = 5
"""Finite rows below which values are listed, not drawn."""
LOG_RATIO = 20
"""Largest over smallest value above which the y axis is logarithmic."""
SPIKE_DOTS = 3
"""Dots by which a value must leave its column's median to be drawn beside it."""

_MARGIN = 13  # columns left of the plot
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])


@dataclass(frozen=True, slots=True)
class Mark:
    """A step with a bar over it and a word under it."""

    step: int
    word: str = ""


@dataclass(slots=True)
class _Canvas:
    """Dots and words; y counts dots from the top."""

    dots: NDArray[np.bool_] = field(
        default_factory=lambda: np.zeros((HEIGHT * 4, WIDTH * 2), np.bool_)
    )
    words: dict[tuple[int, int], str] = field(default_factory=dict)

    def blank(self, row: int, column: int, length: int = 1) -> bool:
        if any((row, c) in self.words for c in range(column, column + length)):
            return False
        return not self.dots[row * 4 : row * 4 + 4, column * 2 : (column + length) * 2].any()

    def write(self, row: int, column: int, text: str) -> None:
        self.words |= {(row, column + i): letter for i, letter in enumerate(text)}

    def line(self, row: int, ascii: bool) -> str:
        return "".join(self._cell(row, column, ascii) for column in range(WIDTH)).rstrip()

    def _cell(self, row: int, column: int, ascii: bool) -> str:
        if (row, column) in self.words:
            return self.words[row, column]
        cell = self.dots[row * 4 : row * 4 + 4, column * 2 : column * 2 + 2]
        if not cell.any():
            return " "
        if ascii:
            return "*" if cell[:2].any() else "."
        return chr(0x2800 + int(_BITS[cell].sum()))


def loss_of(trace: Trace) -> Series | None:
    """The loss to show: NaN where the log has a 0 in its place. None without a loss."""
    loss = trace.series.get("loss")
    return None if loss is None else unmasked(loss, witness(trace))


def draw(
    series: Series,
    span: tuple[int, int],
    *,
    name: str = "loss",
    unit: str = "step",
    mark: Mark | None = None,
    ascii: bool = False,
) -> list[str]:
    """Lines of the curve of a step channel over the steps `span`; [] for a series without rows."""
    if not series.rows:
        return []
    if series.num_finite < LEAST:
        return _few(series, name, unit)
    low, high = float(np.nanmin(series.low)), float(np.nanmax(series.high))
    log = low > 0 and high / low > LOG_RATIO
    canvas = _Canvas()
    column = _columns(series, span)  # [T] dot columns
    _plot(canvas, series, column, low, high, log)
    at = None if mark is None or mark.step <= span[0] else _place(mark.step, span)
    if at is not None:
        for row in range(HEIGHT):
            if canvas.blank(row, at):
                canvas.write(row, at, "|" if ascii else "│")
    _name_gaps(canvas, series, column, unit)
    labels = [""] * HEIGHT
    labels[0], labels[-1] = _label(high), _label(low)
    if high == low:
        labels = ["", "", _label(low), "", ""]
    lines = []
    for row in range(HEIGHT):
        # A wide label takes the indent of the name, not the space between them.
        room = _MARGIN - 2 - len(name) - len(labels[0])
        head = f"{'':<{min(max(room, 0), 2)}}{name} " if row == 0 else ""
        text = (head + labels[row].rjust(_MARGIN - 1 - len(head)))[: _MARGIN - 1]
        lines.append(f"{text} {canvas.line(row, ascii)}".rstrip())
    axis = _axis(span, unit, mark if at is not None else None)
    return [*lines, f"{'  log scale' if log else '':<{_MARGIN}}{axis}"]


def _few(series: Series, name: str, unit: str) -> list[str]:
    """All values of a short series; of a long one its finite values and counts of the others."""
    if series.rows <= LEAST and (series.count == 1).all():
        values = ", ".join(number(float(v)) for v in series.values)
        text = f"{values} at {_at(series.steps, unit)}"
    elif not series.num_finite:
        text = f"{_not_finite(series.values)} in all {series.rows:,} rows"
    else:
        text = _stretches(series, unit)
    head = f"  {name}  "
    lines = wrap(text, _MARGIN + WIDTH - len(head))
    return [f"{'' if i else head:<{len(head)}}{line}" for i, line in enumerate(lines)]


def _stretches(series: Series, unit: str) -> str:
    """`2.31 at step 1, then NaN in 59 rows`."""
    rows = np.flatnonzero(np.isfinite(series.low))
    last = np.isfinite(series.values[rows])
    values = np.where(last, series.values[rows], series.high[rows])
    steps = np.where(last, series.steps[rows], series.high_step[rows])
    # Rows of a bucket that are not finite stand on one side of its finite ones.
    before = np.where(series.first_bad[rows] < steps, series.bad[rows], 0)
    until = np.cumsum(series.bad)[rows] - series.bad[rows] + before
    counts = np.diff(np.concatenate(([0], until, [series.bad.sum()])))
    edges = np.concatenate(([-1], rows, [series.steps.size]))
    words: list[str] = []
    first = 0
    for i, count in enumerate(counts.tolist()):
        if i > first and (count or i == len(rows)):
            told = ", ".join(number(float(v)) for v in values[first:i])
            words.append(f"{told} at {_at(steps[first:i], unit)}")
            first = i
        if count:
            between = series.values[edges[i] + 1 : edges[i + 1]]
            words.append(f"{_not_finite(between)} in {counted(count, 'row')}")
    return ", then ".join(words)


def _at(steps: NDArray[np.int64], unit: str) -> str:
    """`step 1`, `steps 1-4`."""
    first, last = int(steps[0]), int(steps[-1])
    return f"{unit} {first}" if first == last else f"{unit}s {first}-{last}"


def _not_finite(values: FloatArray) -> str:
    """The word for what is not finite in `values`."""
    if not np.isinf(values).any():
        return "NaN"
    return "NaN and Inf" if np.isnan(values).any() else "Inf"


def _columns(series: Series, span: tuple[int, int]) -> NDArray[np.int64]:
    width = max(span[1] - span[0], 1)
    share = (series.steps - span[0]) / width
    column: NDArray[np.int64] = np.clip(share * WIDTH * 2, 0, WIDTH * 2 - 1).astype(np.int64)
    return column


def _place(step: int, span: tuple[int, int]) -> int:
    share = (step - span[0]) / max(span[1] - span[0], 1)
    return int(min(max(share * WIDTH, 0), WIDTH - 1))


def _heights(values: FloatArray, low: float, high: float, log: bool) -> NDArray[np.float64]:
    """Dots from the top, not rounded; NaN stays NaN."""
    if log:
        values, low, high = np.log(values), math.log(low), math.log(high)
    bottom = HEIGHT * 4 - 1
    if high == low:
        return np.where(np.isfinite(values), bottom / 2, np.nan)
    # Halves keep the difference of the two largest floats finite.
    share: NDArray[np.float64] = (values / 2 - low / 2) / (high / 2 - low / 2)
    return bottom * (1 - share)


def _plot(
    canvas: _Canvas,
    series: Series,
    column: NDArray[np.int64],
    low: float,
    high: float,
    log: bool,
) -> None:
    finite = np.isfinite(series.low)
    shown = np.where(np.isfinite(series.values), series.values, series.low)
    middle = _heights(shown, low, high, log)  # [T]
    top = _heights(series.high, low, high, log)
    bottom = _heights(series.low, low, high, log)
    line = {c: float(np.median(middle[finite & (column == c)])) for c in np.unique(column[finite])}
    if finite.sum() > WIDTH * 2:
        line = _smooth(line)
    broken_after = np.cumsum(series.bad)  # [T]
    last_row = {int(c): int(i) for i, c in enumerate(column) if finite[i]}
    first_row: dict[int, int] = {}
    for i in np.flatnonzero(finite)[::-1]:
        first_row[int(column[i])] = int(i)
    before = None
    for now in sorted(line):
        joined = (
            before is not None and broken_after[first_row[now]] == broken_after[last_row[before]]
        )
        _join(canvas, before if joined else None, now, line)
        before = now
    _spikes(canvas, column[finite], line, top[finite])
    _spikes(canvas, column[finite], line, bottom[finite])


def _smooth(line: dict[int, float]) -> dict[int, float]:
    """The running median over 5 columns."""
    columns, heights = list(line), np.array(list(line.values()))
    return {c: float(np.median(heights[max(i - 2, 0) : i + 3])) for i, c in enumerate(columns)}


def _spikes(
    canvas: _Canvas, column: NDArray[np.int64], line: dict[int, float], edge: NDArray[np.float64]
) -> None:
    """Draws the extremes `edge` [rows] that leave the line: no spike is lost in a median."""
    away = np.abs(edge - np.array([line[c] for c in column.tolist()]))
    widest = np.zeros(WIDTH * 2)
    np.maximum.at(widest, column, away)
    # Twice what a column usually spans: noise is no spike.
    usual = float(np.median(widest[np.unique(column)]))
    for i in np.flatnonzero(away > max(SPIKE_DOTS, 2 * usual)).tolist():
        _fill(canvas, int(column[i]), float(edge[i]), line[int(column[i])])
    for i in (int(np.argmin(edge)), int(np.argmax(edge))):
        _fill(canvas, int(column[i]), float(edge[i]), float(edge[i]))


def _join(canvas: _Canvas, before: int | None, now: int, line: dict[int, float]) -> None:
    """A stroke to column `now` from column `before`, a dot where there is none."""
    if before is None:
        _fill(canvas, now, line[now], line[now])
        return
    for c in range(before + 1, now + 1):
        share = (c - before) / (now - before)
        share_left = (c - 1 - before) / (now - before)
        here = line[before] + share * (line[now] - line[before])
        left = line[before] + share_left * (line[now] - line[before])
        start, end = round(left), round(here)
        # The stroke's first dot stands in the column to the left already.
        start += int(np.sign(end - start)) if start != end else 0
        _fill(canvas, c, start, end)


def _fill(canvas: _Canvas, column: int, a: float, b: float) -> None:
    top, bottom = sorted((round(a), round(b)))
    canvas.dots[top : bottom + 1, column] = True


def _name_gaps(canvas: _Canvas, series: Series, column: NDArray[np.int64], unit: str) -> None:
    """Writes NaN and the count of rows where the line stops."""
    bad = series.bad > 0
    if not bad.any():
        return
    word = "NaN" if np.isnan(series.values[bad]).any() else "Inf"
    rows = np.flatnonzero(bad)
    named = False
    for group in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
        left, right = int(column[group[0]]) // 2, int(column[group[-1]]) // 2
        # Of many short gaps one word is enough.
        if right - left < len(word) and named:
            continue
        named = True
        _centre(canvas, 2, left, right, word)
        count = counted(int(series.bad[group].sum()), unit)
        if right - left >= len(count):
            _centre(canvas, 3, left, right, count)


def _centre(canvas: _Canvas, row: int, left: int, right: int, text: str) -> None:
    """Writes `text` over the columns of a gap, or beside it where the gap is too narrow."""
    middle = (left + right + 2 - len(text)) // 2
    for at in (row, 1, 3, 0, 4):
        for column in (middle, right + 2, left - 1 - len(text)):
            inside = 0 <= column <= WIDTH - len(text)
            if inside and canvas.blank(at, column, len(text)):
                canvas.write(at, column, text)
                return


def _label(value: float) -> str:
    """`value` in at most 6 characters where that is possible."""
    texts: Sequence[str] = [fixed(value, digits) for digits in (3, 2, 1)]
    return next((text for text in texts if len(text) <= 6), texts[-1])


def _axis(span: tuple[int, int], unit: str, mark: Mark | None) -> str:
    """The labels under the plot: the first step, the last, the marked one, round ones between."""
    text = [" "] * WIDTH

    def put(column: int, label: str) -> None:
        column = min(max(column, 0), WIDTH - len(label))
        around = text[max(column - 2, 0) : column + len(label) + 2]
        if all(letter == " " for letter in around):
            text[column : column + len(label)] = label

    put(0, f"{unit} {span[0]}")
    if span[1] > span[0]:
        put(WIDTH, str(span[1]))
    if mark is not None:
        label = f"{mark.step} {mark.word}".strip()
        put(_place(mark.step, span), label)
    for tick in _ticks(*span):
        put(_place(tick, span) - len(str(tick)) // 2, str(tick))
    return "".join(text).rstrip()


def _ticks(first: int, last: int) -> list[int]:
    rough = max((last - first) / 4, 1)
    power = 10 ** int(np.log10(rough))
    size = next(power * k for k in (1, 2, 5, 10) if power * k >= rough / 1.5)
    return list(range((first // size + 1) * size, last, size))
