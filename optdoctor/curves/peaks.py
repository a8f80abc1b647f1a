"""The highest peaks of values above their base, and whether each of them comes back."""

from typing import NamedTuple

import numpy as np

from optdoctor.curves.level import Floats
from optdoctor.curves.trend import SAMPLE, WIDEST, one_of_each

MOST = 200
"""Peaks that are looked at, the highest first."""
SEEN = 3.0
"""Deviation, in standard deviations of a row, from which a peak is looked at."""
BACK = 0.3
"""Share of a spike's height that may be left when the curve counts as back."""
NEARLY = 0.1
"""The same when no lower level is looked for."""
SIDE = 3
"""Rows that a peak needs on each side: the second and third update of a sound run can explode.
Before it, it needs as many as it lasts: a run that rises first and falls from there has no peak."""
EARLY, LEAD = 0.1, 3
"""Share of the rows in which it needs so many times as many: a rise of the first rows is broad."""
DOUBLING = 0.69
"""Height, in logarithms, from which it needs `SIDE` alone: no healthy start doubles the loss."""
LASTING = 3
"""Rows above half the height from which a peak is no single one."""
LISTED = 256
"""Rows up to which a list is sorted sooner than an array."""


class Spike(NamedTuple):
    """One peak of a curve, in rows."""

    first: int
    """First row above half its height,"""
    last: int
    """the last of them,"""
    top: int
    """and the highest."""
    back: int
    """Row at which the curve is back: `BACK` of the height above the level before, or less."""
    rows: int
    """Rows above half the height."""
    before: float
    """Level before, the median of some rows,"""
    height: float
    """and how far it stands above that and the level after; lasting ones by running medians."""
    deviations: float
    """Height over the noise of a row, or of running medians."""
    reach: float
    """What the run's own noise, and its other peaks, let expect of that."""
    company: float
    """Deviations of a second series at most 2 rows away, 0 where there is none."""

    @property
    def clearness(self) -> float:
        """Deviations over what was to be expected."""
        return self.deviations / self.reach

    @property
    def known(self) -> int:
        """Row from which it is clear that the curve came back."""
        return max(self.back, self.last + max(SIDE, self.last - self.first + 1))

    @property
    def lasting(self) -> bool:
        """Whether it is more than one or two rows."""
        return self.rows >= LASTING


def peaks_of(
    level: Floats, values: Floats, base: Floats, spread: Floats, side: int, least_height: float
) -> list[Spike]:
    """The highest peaks of `values` [n] above their base [n], which do not touch.

    Args:
        level: [n] single rows, where `values` are their running medians.
        spread: [n] standard deviation of `values` around the base.
        side: most rows on a side of a peak whose median is its level.
    """
    left = values - base
    score = left / spread
    seeds = np.flatnonzero((score > SEEN) & (left >= least_height / 2))
    seeds = seeds[np.argsort(-score[seeds], kind="stable")]
    taken = np.zeros(len(level), bool)
    spikes: list[Spike] = []
    looked = 0
    for top in seeds.tolist():
        if taken[top]:
            continue
        first, last = _stretch(left, top)
        taken[max(first - 2, 0) : last + 3] = True
        spike = _spike(level, values, spread, (first, last, top), side)
        if spike is not None and spike.height >= least_height:
            spikes.append(spike)
        looked += 1
        if looked == MOST:
            break
    return spikes


def _stretch(left: Floats, top: int) -> tuple[int, int]:
    """The rows around `top` above half its height, without a break of more than one."""
    half = float(left[top]) / 2
    before, after = _unbroken(left[top::-1], half), _unbroken(left[top:], half)
    return top - before, top + after


def _unbroken(rows: Floats, half: float) -> int:
    """Index of the last row above the limit, before two in a row or the very last are not."""
    last, reach = 0, 16
    while True:
        near = rows[last : last + reach].tolist()
        at, end = 0, len(near)
        is_rest = last + end == len(rows)
        while at + 1 < end and (near[at + 1] > half or (at + 2 < end and near[at + 2] > half)):
            at += 1 if near[at + 1] > half else 2
        last += at
        if at + 2 < end or is_rest:
            return last
        reach *= 4


def _spike(
    level: Floats, values: Floats, spread: Floats, place: tuple[int, int, int], side: int
) -> Spike | None:
    """The peak at a place; None where it lacks a side, or did not come back."""
    first, last, top = place
    rows = len(level)
    if first < SIDE or rows - last - 1 < SIDE:
        return None
    highest = float(values[top])
    before = median(level[max(first - side, 0) : first])
    lead = LEAD if first < EARLY * rows else 1
    if first < lead * (last - first + 1) and highest - before < DOUBLING:
        return None
    after, width = median(level[last + 1 : last + 1 + side]), side
    near = before + NEARLY * (highest - before)
    while after > near and last + 1 + width < rows:  # it takes longer to come back
        width *= 4
        after = min(after, median(level[last + 1 : last + 1 + width]))
    height = highest - max(before, after)
    back = _first_below(values, last + 1, before + BACK * height)
    if height <= 0 or back is None:
        return None
    half = before + height / 2
    if median(level[back : back + side]) > half:
        return None
    start = max(first - 2, 0)  # running medians begin and end later than their rows
    around = level[start : min(back, last + 3)].tolist()
    high = [row for row, value in enumerate(around, start) if value > half]
    if not high:
        return None
    summit = start + around.index(max(around))
    deviations = height / float(spread[top])
    return Spike(high[0], high[-1], summit, back, len(high), before, height, deviations, 1.0, 0.0)


def _first_below(values: Floats, start: int, limit: float) -> int | None:
    """The first row from `start` on that is not above the limit."""
    reach = 64
    while start < len(values):
        below = values[start : start + reach] <= limit
        at = int(below.argmax())
        if below[at]:
            return start + at
        start, reach = start + reach, 4 * reach
    return None


def median(values: Floats) -> float:
    """As numpy's of one row or more, but sooner: each of a thousand peaks asks for several.

    Of more rows than `WIDEST` it is that of a sample.
    """
    if values.size > WIDEST:
        values = values[one_of_each(values.size, values.size // SAMPLE)]
    half, odd = divmod(values.size, 2)
    if values.size <= LISTED:
        ordered = values.tolist()
        ordered.sort()
    else:
        ordered = np.partition(values, (half - 1, half))
    return float(ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2)
