"""The learning rate beside a curve."""

from typing import NamedTuple

import numpy as np

from optdoctor.curves.level import HUGE, Curve, Floats
from optdoctor.store import IntArray, Series
from optdoctor.trace import Trace

RATE_ROSE = 1.5
"""Factor by which a rate above that of the best step has risen."""
EQUAL_RATES = (0.7, 1.4)
"""Factors within which two rates count as equal."""
ABOVE_EQUAL = 0.06
"""Rise in logarithms above the level at an equal rate that a restart explains."""
SHARE_ABOVE = 0.3
"""The same as a share of the whole rise, where that is more."""
STRAIGHT = 0.05
"""Largest distance from a straight line, as a share of its end, of a rate that follows one."""
DECADES = 4.0
"""Powers of ten over which a rate that grows by a constant factor is a search for one: Lightning's
covers eight, and no warm-up begins at a ten thousandth of its peak."""


def rates(trace: Trace, line: Curve) -> Floats | None:
    """[n]: the learning rate at each row of the curve; None where it is not known throughout."""
    series = trace.series.get("lr")
    if series is None or not np.isfinite(series.values).all():
        return None
    rate = np.interp(line.steps, series.steps, series.values)
    return rate if rate.max() > 0 and rate.min() >= 0 else None


def latest(series: Series, steps: IntArray) -> Floats:
    """[len(steps)]: the value recorded last at or before each step, the first for earlier ones."""
    at = np.maximum(np.searchsorted(series.steps, steps, "right") - 1, 0)
    return np.asarray(series.values[at], np.float64)


def is_search(trace: Trace, line: Curve) -> bool:
    """Whether the rate grows by a constant factor over decades: a search for a rate."""
    series = trace.series.get("lr")
    if series is None:
        return False
    rate = latest(series, line.block_ends)
    if not np.isfinite(rate).all() or rate.min() <= 0:
        return False
    decades = np.log10(rate)
    grown = float(decades[-1] - decades[0])
    return grown >= DECADES and _straight(line.block_ends, decades, grown)


class RateSince(NamedTuple):
    """A rate that stands above that of the best block of a curve, or stood there since."""

    best: float
    """The rate of the best block."""
    now: float
    """Median rate of the last blocks."""
    above: float | None
    """Rise of the end above the level at an equal rate before the best block, in logarithms; None
    where no rate was equal."""
    allowed: float
    """The most of it that a restart explains."""
    warms_up: bool
    """Whether a rate that was never as high before rises by plan, or in a straight line."""

    @property
    def times(self) -> float:
        """The rate now over that of the best block; 0 where that was 0."""
        return round(min(self.now / self.best, HUGE), 2) if self.best > 0 else 0.0

    @property
    def excuses(self) -> bool:
        """Whether the rise of the loss is what such a rate brings."""
        return self.warms_up if self.above is None else self.above <= self.allowed


def rate_since(trace: Trace, line: Curve, best: int, height: float) -> RateSince | None:
    """What the rate did since the block `best`, from which the loss rose by `height`.

    None where it is not known, or never rose above that of the best block.
    """
    series = trace.series.get("lr")
    if series is None or not np.isfinite(series.values).all():
        return None
    ends = line.block_ends
    rate = latest(series, ends)  # [K]
    if rate[best:].max() <= RATE_ROSE * rate[best]:
        return None
    tail = max(2, len(rate) // 13)
    now = float(np.median(np.minimum(rate[-tail:], HUGE)))  # a mean of two must not overflow
    before = rate[: best + 1]
    equal = (before >= EQUAL_RATES[0] * now) & (before <= EQUAL_RATES[1] * now)
    above = None
    if equal.any():
        level = float(np.median(line.blocks[: best + 1][equal][-3:]))
        above = round(float(np.median(line.blocks[-tail:])) - level, 3)
    allowed = round(max(ABOVE_EQUAL, SHARE_ABOVE * height), 3)
    return RateSince(float(rate[best]), now, above, allowed, _warms_up(trace, ends, rate))


def _warms_up(trace: Trace, ends: IntArray, rate: Floats) -> bool:
    planned = trace.facts.get("warmup_steps")
    if isinstance(planned, int | float) and ends[-1] <= planned:
        return True
    return _straight(ends, rate, float(rate[-1]))


def _straight(steps: IntArray, values: Floats, size: float) -> bool:
    line = np.interp(steps, steps[[0, -1]], values[[0, -1]])
    return bool(np.abs(values - line).max() <= STRAIGHT * size)
