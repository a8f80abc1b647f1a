"""A curve as SVG under text in HTML, so that letters keep their size on a narrow screen."""

import numpy as np
from numpy.typing import NDArray

from optdoctor.report.axes import (
    HEIGHT,
    WIDTH,
    Floats,
    Frame,
    coordinate,
    frame_of,
    grid,
    x_axis,
    y_axis,
)
from optdoctor.report.curve import Mark
from optdoctor.report.markup import escaped, said
from optdoctor.report.wording import counted, number
from optdoctor.store import Series

COLUMNS = 800
"""Columns to which more rows are gathered, each from its smallest to its largest value."""
SMOOTHED = 60
"""Finite rows from which on a running median is drawn over them."""
_DOTS = 60  # evaluations drawn as circles; more become a line
_WORD = 14  # percent of the width from which on a gap carries its word inside


def curve(
    loss: Series,
    span: tuple[int, int],
    *,
    name: str,
    unit: str = "step",
    evaluation: Series | None = None,
    mark: Mark | None = None,
    until: int | None = None,
    smoothed: bool = True,
) -> str:
    """A figure of a step channel: raw values, running median, what is not finite, the mark.

    `mark` is where the first finding begins, `until` the step at which it ends; `smoothed` draws
    the median where there are many values, which a plan, as of the rate, has no need of.
    """
    frame = frame_of([loss] + ([evaluation] if evaluation is not None else []), span)
    gaps = _gaps(loss, frame)
    shapes, labels = [grid(frame)], []
    if mark is not None and until is not None and until > mark.step:
        shapes.append(_rect("held", *_edges(frame, mark.step, until)))
    shapes += [_rect("span", left, right) for left, right, _ in gaps]
    smooth = smoothed and loss.num_finite >= SMOOTHED
    shapes.append(f'<path class="{"raw" if smooth else "ln"}" d="{_raw(loss, frame)}"/>')
    if not smooth:
        shapes.append(f'<path class="pt" d="{_alone(loss, frame)}"/>')
    if smooth:
        shapes.append(f'<path class="ln" d="{_median(loss, frame)}"/>')
    dots = ""
    if evaluation is not None:
        line, dots = _evaluation(evaluation, frame)
        shapes.append(line)
    if mark is not None:
        at = float(frame.x(np.array([mark.step]))[0]) * 100
        shapes.append(f'<path class="ev" d="M{coordinate(at * 10)} 0V{HEIGHT}"/>')
        labels.append(_beside(at, 2, f"<b>{mark.step:,}</b> {escaped(mark.word)}".strip()))
    labels += _gap_labels(gaps, _word(loss), unit)
    label = _label(loss, name, unit)
    return (
        f'{y_axis(frame)}<div class="area"><svg viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'preserveAspectRatio="none" role="img" aria-label="{label}">{"".join(shapes)}</svg>'
        f"{dots}{''.join(labels)}</div>{x_axis(span, unit, mark)}"
    )


def caption(loss: Series, evaluation: Series | None, unit: str, *, smoothed: bool = True) -> str:
    """What the figure shows, and how much of it is not finite."""
    text = f"per {unit}"
    if smoothed and loss.num_finite >= SMOOTHED:
        text += " (grey), running median (blue)"
    if evaluation is not None and evaluation.num_finite:
        text += ", validation (circles)" if evaluation.rows <= _DOTS else ", validation (dashed)"
    if frame_of([loss] + ([evaluation] if evaluation is not None else []), (0, 1)).log:
        text += ", log scale"
    bad = int(loss.bad.sum())
    return f"{text}." + (f" {bad:,} of {counted(loss.rows, 'value')} not finite." if bad else "")


def _raw(series: Series, frame: Frame) -> str:
    """The values joined; of many rows one stroke a column from smallest to largest."""
    finite = np.isfinite(series.low)
    x = frame.x(series.steps)
    if finite.sum() <= COLUMNS:
        rows = np.flatnonzero(finite)
        shown = np.where(np.isfinite(series.values), series.values, series.high)
        return _joined(x[rows], frame.y(shown[rows]), _breaks(series, rows))
    columns = np.minimum((x[finite] * COLUMNS).astype(int), COLUMNS - 1)
    starts = np.flatnonzero(np.r_[True, np.diff(columns) > 0])
    # Above a logarithm the order of low and high stays.
    top = frame.y(np.maximum.reduceat(series.high[finite], starts))
    bottom = frame.y(np.minimum.reduceat(series.low[finite], starts))
    bottom = np.maximum(bottom, top + 0.4)
    at = (columns[starts] + 0.5) / COLUMNS * WIDTH
    points = zip(at.tolist(), top.tolist(), bottom.tolist(), strict=True)
    return "".join(f"M{coordinate(a)} {coordinate(t)}V{coordinate(b)}" for a, t, b in points)


def _median(series: Series, frame: Frame) -> str:
    """The running median: over 15 rows, or of each column and over 5 of these."""
    rows = np.flatnonzero(np.isfinite(series.low))
    values = np.where(np.isfinite(series.values), series.values, series.low)[rows]
    x, y = frame.x(series.steps[rows]), frame.y(values)
    breaks = _breaks(series, rows)
    window = 15
    if rows.size > COLUMNS:
        window = 5
        columns = np.minimum((x * COLUMNS).astype(int), COLUMNS - 1)
        starts = np.flatnonzero(np.r_[True, (np.diff(columns) > 0) | breaks[1:]])
        y = np.array([np.median(part) for part in np.split(y, starts[1:])])
        x, breaks = x[starts], breaks[starts]
    parts = np.split(np.arange(y.size), np.flatnonzero(breaks[1:]) + 1)
    smooth = np.concatenate([_running(y[part], window) for part in parts])
    return _joined(x, smooth, breaks)


def _running(values: Floats, window: int) -> Floats:
    """The median over `window` rows; near an end over as many on both sides as there are."""
    half = min(window // 2, (values.size - 1) // 2)
    around = np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1)
    head = [np.median(values[: 2 * i + 1]) for i in range(half)]
    tail = [np.median(values[values.size - 2 * i - 1 :]) for i in reversed(range(half))]
    return np.concatenate([head, np.median(around, axis=1), tail])


def _breaks(series: Series, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[rows]: whether something not finite lies between this row and the one before."""
    bad = np.cumsum(series.bad)[rows]
    return np.r_[True, np.diff(bad) > 0] if rows.size else np.empty(0, np.bool_)


def _joined(x: Floats, y: Floats, breaks: NDArray[np.bool_]) -> str:
    """A path; a point alone becomes a dot."""
    alone = breaks & np.r_[breaks[1:], True]
    points = zip((x * WIDTH).tolist(), y.tolist(), breaks.tolist(), alone.tolist(), strict=True)
    return "".join(
        f"{'M' if start else 'L'}{coordinate(a)} {coordinate(b)}{'h0' if dot else ''}"
        for a, b, start, dot in points
    )


def _alone(series: Series, frame: Frame) -> str:
    """Dots for values without a neighbour to be joined to."""
    rows = np.flatnonzero(np.isfinite(series.values))
    breaks = _breaks(series, rows)
    rows = rows[breaks & np.r_[breaks[1:], True]] if rows.size else rows
    x, y = frame.x(series.steps[rows]) * WIDTH, frame.y(series.values[rows])
    points = zip(x.tolist(), y.tolist(), strict=True)
    return "".join(f"M{coordinate(a)} {coordinate(b)}h0" for a, b in points)


def _gaps(series: Series, frame: Frame) -> list[tuple[float, float, int]]:
    """[(left, right, rows)] in percent of what is not finite; neighbours a column apart are one."""
    bad = np.flatnonzero(series.bad > 0)
    gaps: list[tuple[float, float, int]] = []
    before = -2
    for row in bad.tolist():
        left, right = _edges(frame, int(series.first_bad[row]), int(series.last_bad[row]))
        count = int(series.bad[row])
        if gaps and (row == before + 1 or left - gaps[-1][1] < 100 / COLUMNS):
            gaps[-1] = gaps[-1][0], max(right, gaps[-1][1]), gaps[-1][2] + count
        else:
            gaps.append((left, right, count))
        before = row
    return gaps


def _edges(frame: Frame, first: int, last: int) -> tuple[float, float]:
    """From `first` to `last` in percent, never thinner than can be seen."""
    left, right = (frame.x(np.array([first, last])) * 100).tolist()
    return (min(left, 99.7), max(right, left + 0.3))


def _rect(kind: str, left: float, right: float) -> str:
    x, width = coordinate(left * 10), coordinate((min(right, 100) - left) * 10)
    return f'<rect class="{kind}" x="{x}" width="{width}" height="{HEIGHT}"/>'


def _word(series: Series) -> str:
    """What stands in the gaps."""
    shown = series.values[series.bad > 0]
    shown = shown[~np.isfinite(shown)]
    return "Inf" if shown.size and np.isinf(shown).all() else "NaN"


def _gap_labels(gaps: list[tuple[float, float, int]], name: str, unit: str) -> list[str]:
    """The word in each wide gap; of narrow ones the first is named, beside it."""
    labels = []
    for left, right, count in gaps:
        word = f"{name}<br>{counted(count, unit)}"
        if right - left >= _WORD:
            style = f"left:{(left + right) / 2:.2f}%;top:50%;transform:translate(-50%,-50%)"
            labels.append(f'<span class="ann c mid" style="{style}">{word}</span>')
        elif not labels:
            labels.append(_beside(right if left < 50 else left, 50, word))
    return labels


def _beside(at: float, top: float, text: str) -> str:
    """A label to the right of a line in the left half, to the left of one in the right half."""
    if at < 50:
        return f'<span class="ann c" style="left:calc({at:.2f}% + 6px);top:{top}%">{text}</span>'
    style = f"right:calc({100 - at:.2f}% + 6px);top:{top}%;text-align:right"
    return f'<span class="ann c" style="{style}">{text}</span>'


def _evaluation(series: Series, frame: Frame) -> tuple[str, str]:
    """(path, circles): few values are circles, many a dashed line."""
    rows = np.flatnonzero(np.isfinite(series.values))
    x, y = frame.x(series.steps[rows]), frame.y(series.values[rows])
    if rows.size > _DOTS:
        return f'<path class="val" d="{_joined(x, y, _breaks(series, rows))}"/>', ""
    places = zip((x * 100).tolist(), y.tolist(), strict=True)
    dots = [f'<span class="dot" style="left:{a:.2f}%;top:{b:.2f}%"></span>' for a, b in places]
    return "", "".join(dots)


def _label(series: Series, name: str, unit: str) -> str:
    """What a reader who does not see the drawing is told."""
    finite = np.flatnonzero(np.isfinite(series.values))
    text = f"{name} by {unit}."
    if finite.size:
        first, last = int(finite[0]), int(finite[-1])
        text = (
            f"{name} by {unit}, from {number(float(series.values[first]))} at {unit}"
            f" {series.steps[first]:,} to {number(float(series.values[last]))} at {unit}"
            f" {series.steps[last]:,}."
        )
    if bad := int(series.bad.sum()):
        text += f" {bad:,} values are not finite, the first at {unit} {_first_bad(series):,}."
    return said(text)


def _first_bad(series: Series) -> int:
    return int(series.first_bad[series.bad > 0][0])
