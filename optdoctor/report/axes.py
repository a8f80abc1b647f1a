"""Where steps and values lie in a figure, and the labels and lines that say so."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from optdoctor.report.curve import LOG_RATIO, Mark
from optdoctor.report.markup import escaped, said
from optdoctor.report.wording import number
from optdoctor.store import FloatArray, Series

Floats = NDArray[np.float64]

WIDTH, HEIGHT = 1000, 100
"""Units of the drawing, stretched to the room there is."""
LETTER = (0.9, 2.6)
"""What a letter takes of a curve's width in percent, on a wide screen and a narrow one."""
_PAD = 4  # units free above and below


@dataclass(frozen=True, slots=True)
class Frame:
    """Where steps and values lie."""

    span: tuple[int, int]
    low: float
    high: float
    log: bool = False

    def x(self, steps: NDArray[np.int64]) -> Floats:
        """Shares of the width, 0 to 1."""
        width = max(self.span[1] - self.span[0], 1)
        share: Floats = np.clip((steps - self.span[0]) / width, 0, 1)
        return share

    def y(self, values: FloatArray) -> Floats:
        """Units from the top."""
        rows = np.asarray(values, np.float64)
        low, high = self.low, self.high
        if self.log:
            rows, low, high = np.log(rows), math.log(low), math.log(high)
        # Halves keep the difference of the two largest floats finite; those of the least are 0.
        if high / 2 == low / 2:
            return np.where(np.isfinite(rows), HEIGHT / 2, np.nan)
        share = (rows / 2 - low / 2) / (high / 2 - low / 2)
        units: Floats = _PAD + (HEIGHT - 2 * _PAD) * (1 - share)
        return units


def frame_of(series: Sequence[Series], span: tuple[int, int]) -> Frame:
    """The frame that holds all finite values; logarithmic where they span more than 20 times."""
    lows = np.concatenate([s.low for s in series])
    highs = np.concatenate([s.high for s in series])
    if not np.isfinite(lows).any():
        return Frame(span, math.nan, math.nan)
    low, high = float(np.nanmin(lows)), float(np.nanmax(highs))
    return Frame(span, low, high, log=low > 0 and high / low > LOG_RATIO)


def x_axis(
    span: tuple[int, int],
    unit: str,
    mark: Mark | None,
    letter: tuple[float, float] = LETTER,
) -> str:
    """Labels below: first and last step, the marked one, round ones where there is room.

    `letter` is what a letter takes of the width in percent, on a wide screen and a narrow one.
    """
    first, last = span
    wide: list[tuple[float, float]] = []
    narrow: list[tuple[float, float]] = []
    spans = []

    def put(step: int, text: str, edge: str, needed: bool) -> None:
        at = (step - first) / max(last - first, 1) * 100
        sizes = [len(text) * size for size in letter]
        starts = {"s": 0.0, "end": 1.0}.get(edge, 0.5)
        places = [(at - room * starts, at + room * (1 - starts)) for room in sizes]
        if not needed and not _free(wide, places[0]):
            return
        wide.append(places[0])
        if needed or _free(narrow, places[1]):
            narrow.append(places[1])
        else:
            edge = f"{edge} narrowhide".strip()
        style = f' class="{edge}"' if edge else ""
        spans.append(f'<span{style} style="left:{at:.2f}%">{escaped(text)}</span>')

    put(first, f"{unit} {first:,}", "s", True)
    if last > first:
        put(last, f"{last:,}", "end", True)
    if mark is not None:
        put(mark.step, f"{mark.step:,}", "", False)
    for tick in _ticks(first, last, 4):
        put(int(tick), f"{int(tick):,}", "", False)
    return f'<div class="x" aria-hidden="true">{"".join(spans)}</div>'


def sample_axis(steps: Sequence[int], unit: str, letter: tuple[float, float] = LETTER) -> str:
    """Labels below columns of equal width, one a sample; the first and the last are always told."""
    spans = []
    taken: list[list[tuple[float, float]]] = [[], []]
    last = len(steps) - 1
    for i in (0, last, *range(1, last)) if last else (0,):
        text = f"{unit} {steps[i]:,}" if i == 0 else f"{steps[i]:,}"
        at = (i + 0.5) / len(steps) * 100
        places = [(at - len(text) * size / 2, at + len(text) * size / 2) for size in letter]
        free = [_free(*pair) for pair in zip(taken, places, strict=True)]
        if i not in (0, last) and not free[0]:
            continue
        for row, place, is_free in zip(taken, places, free, strict=True):
            if is_free:
                row.append(place)
        kind = "" if free[1] or i in (0, last) else ' class="narrowhide"'
        spans.append(f'<span{kind} style="left:{at:.2f}%">{escaped(text)}</span>')
    return f'<div class="x" aria-hidden="true">{"".join(spans)}</div>'


def _free(taken: list[tuple[float, float]], place: tuple[float, float]) -> bool:
    return all(place[1] + 2 < left or right + 2 < place[0] for left, right in taken)


def _ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers strictly within."""
    rough = (high - low) / about
    if not math.isfinite(rough) or rough <= 0:
        return []
    power = 10.0 ** math.floor(math.log10(rough))
    size = next((power * k for k in (1, 2, 5, 10) if power * k >= rough / 1.5), rough)
    if isinstance(low, int):
        size = max(round(size), 1)
    if size == 0 or not math.isfinite(low / size):
        return []
    start = math.floor(low / size) + 1
    return [n * size for n in range(start, start + 4 * about) if low < n * size < high]


def _heights(frame: Frame) -> list[tuple[float, str]]:
    """[(units from the top, label)] of the horizontal lines."""
    low, high = frame.low, frame.high
    if math.isnan(low):
        return []
    if high == low:
        return [(HEIGHT / 2, number(low))]
    if frame.log:
        powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
        step = max(len(powers) // 3, 1)
        values = [10.0**p for p in powers][::step]
        if len(values) < 2:
            around = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
            values = [k * 10.0**p for p in around for k in (1, 2, 5) if low < k * 10.0**p < high]
    else:
        values = _ticks(low, high, 3)
    if len(values) < 2:
        values = [low, high]
    size = min(b - a for a, b in pairwise(values))
    digits = 3
    if not frame.log and 0 < size < math.inf:
        largest = max(abs(v) for v in values)
        digits = min(max(math.floor(math.log10(largest)) - math.floor(math.log10(size)) + 1, 1), 9)
    shown = frame.y(np.array(values))
    return [(float(y), number(v, digits)) for y, v in zip(shown, values, strict=True)]


def grid(frame: Frame) -> str:
    path = "".join(f"M0 {coordinate(y)}H{WIDTH}" for y, _ in _heights(frame))
    return f'<path class="gr" d="{path}"/>'


def y_axis(frame: Frame) -> str:
    spans = "".join(
        f'<span style="top:{y:.2f}%">{said(text)}</span>' for y, text in _heights(frame)
    )
    return f'<div class="y" aria-hidden="true">{spans}</div>'


def coordinate(value: float) -> str:
    """One decimal, without what says nothing."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
