"""The losses at the bottom and at the top of a wave, and its first jump that stands alone."""

import numpy as np

from optdoctor.curves.folded import BINS
from optdoctor.curves.level import Curve, Floats
from optdoctor.curves.trend import trend
from optdoctor.curves.wave import Wave
from optdoctor.store import IntArray

LATEST = 6
"""Newest cycles of which the levels are told."""
NEAR = 0.2
"""Share of the height of the mean wave that its top and its bottom reach down and up."""
EDGE = 8
"""A level beside a jump is that of this part of a period."""
STANDS = 0.25
"""Share of the height by which the first jump told stands above what is before and after it."""


def bottom_and_top(shape: Curve, wave: Wave) -> tuple[float, float] | None:
    """Medians of the losses at the bottom and the top of the newest cycles; None where a cycle
    has no row there."""
    apart = max(float(np.median(np.diff(shape.steps))), 1.0)
    begins = shape.steps[wave.jumps]
    cycle = np.searchsorted(begins, shape.steps, "right") - 1
    since = (shape.steps - begins[np.maximum(cycle, 0)]) / apart
    inside = (cycle >= 0) & (since < wave.period)
    bins = int(min(round(wave.period), BINS))
    place = np.minimum(since[inside] / wave.period * bins, bins - 1).astype(np.int64)
    deviation = (shape.level - trend(shape.level, max(round(wave.period) // 2, 2)))[inside]
    total = np.bincount(place, deviation, minlength=bins)
    count = np.bincount(place, minlength=bins)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.median(deviation))
    edge = NEAR * float(np.ptp(mean))
    late = cycle[inside] >= wave.jumps.size - LATEST
    losses = shape.losses[inside]
    low = losses[late & (mean <= mean.min() + edge)[place]]
    high = losses[late & (mean >= mean.max() - edge)[place]]
    if not low.size or not high.size:
        return None
    return float(np.median(low)), float(np.median(high))


def from_first_clear(level: Floats, wave: Wave) -> IntArray:
    """The jumps from the first on that stands above both sides: a steep fall holds no top."""
    jumps, period = wave.jumps, max(round(wave.period), 2)
    edge = max(period // EDGE, 1)
    whole = jumps[(jumps >= edge) & (jumps + period <= level.size)]
    if not whole.size:
        return jumps
    course = np.mean([level[at : at + period] - level[at - 1] for at in whole], axis=0)
    top = int(course.argmax())
    around = edge // 2 if wave.lasting else 0
    least = STANDS * wave.amplitude
    for place, at in enumerate(jumps[:-2]):
        last = min(at + period, level.size)
        before = level[max(at - edge, 0) : at]
        peak = level[max(at + top - around, 0) : at + top + around + 1]
        after = level[max(last - edge, at + 1) : last]
        if min(before.size, peak.size, after.size) == 0:
            continue
        height = float(np.median(peak)) - max(float(np.median(before)), float(np.median(after)))
        if height > least:
            return jumps[place:]
    return jumps
