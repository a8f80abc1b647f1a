"""The mean wave of a period, and where in a curve it holds."""

import math

import numpy as np

from optdoctor.curves.level import Floats
from optdoctor.store import IntArray

BINS = 64
"""Most bins of a folded wave."""
SPIKE = 6.0
"""Deviation, in standard deviations, from which a row is a peak of its own."""
ONE_TOP = 7
"""Places from which a mixed order hardly ever rises once and falls once."""
DIP = 0.15
"""Share of the whole height up to which a dip on the way is noise."""
FEW = 6.0
"""Places in the period at which the spread of the others is known only to a factor of two."""


def folded(values: Floats, period: float, most: int = BINS) -> Floats:
    """[bins]: the mean wave over one period, in a bin per row but not more than `most`."""
    bins = int(min(round(period), most))
    phase = _bins(np.arange(values.size), period, bins)
    total = np.bincount(phase, values, minlength=bins)
    return np.asarray(total / np.maximum(np.bincount(phase, minlength=bins), 1), np.float64)


def smoothness(places: Floats) -> float:
    """Correlation of neighbours around the period, in standard errors of a mixed order."""
    centred = places - places.mean()
    power = float(centred @ centred)
    alike = float(centred @ np.roll(centred, 1)) / power if power > 0 else 0.0
    return alike * math.sqrt(min(places.size, BINS))


def rises_once(places: Floats, noise: float) -> bool:
    """Whether a period has one top and one bottom: of mixed orders of 7 places, 4 % have.

    `noise` is the standard error of a place: dips of a few of them are none.
    """
    if places.size < ONE_TOP:
        return False
    turned = np.roll(places, -int(places.argmin()))
    top = int(turned.argmax())
    up, down = turned[: top + 1], np.append(turned[top:], turned[0])
    dip = max(
        float((np.maximum.accumulate(up) - up).max()),
        float((down - np.minimum.accumulate(down)).max()),
    )
    return dip <= min(3 * noise, float(np.ptp(places)) * DIP)


def unfolded(places: Floats, rows: int, period: float) -> Floats:
    """[rows]: the mean wave again, once a period."""
    return places[_bins(np.arange(rows), period, places.size)]


def stands_out(places: Floats) -> bool:
    """Whether the highest place stands out of all others, further where these are few."""
    above = places - np.median(places)
    spread = 1.4826 * float(np.median(np.abs(above)))
    return bool(above.max() > SPIKE * (1 + FEW / places.size) * spread)


def jumps(deviation: Floats, wave: Floats, period: float, start: float) -> IntArray:
    """The row of the steepest rise in each cycle that holds the wave, by projection on it."""
    n = deviation.size
    begins = np.arange(start % period, n, period)
    first = np.ceil(begins).astype(np.int64)
    rows = np.arange(first[0], n) if begins.size else np.zeros(0, np.int64)
    cycle = np.searchsorted(first, rows, "right") - 1
    shape = (wave - wave.mean())[_bins(np.asarray(rows - start, np.float64), period, wave.size)]
    power = np.bincount(cycle, shape * shape, minlength=begins.size)
    alike = np.bincount(cycle, shape * deviation[rows], minlength=begins.size)
    near = np.round(begins[(power > 0) & (alike >= power / 2)]).astype(np.int64)
    reach = max(math.ceil(period / wave.size), 1)
    steepest, best = np.full(near.size, -np.inf), near.copy()
    difference = np.diff(deviation)  # of a row and the next
    for offset in range(-reach, reach + 1):
        at = near + offset
        rise = difference[np.clip(at - 1, 0, n - 2)]
        better = (at >= 1) & (at < n) & (rise > steepest)
        steepest, best = np.where(better, rise, steepest), np.where(better, at, best)
    return np.asarray(best[np.isfinite(steepest)], np.int64)


def _bins(rows: IntArray | Floats, period: float, bins: int) -> IntArray:
    """The bin of each row, by its place in the period."""
    return np.minimum(np.mod(rows, period) / period * bins, bins - 1).astype(np.int64)
