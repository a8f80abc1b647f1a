"""Waves of a few long cycles: rises of the level at even distances, that it falls back from."""

import numpy as np

from optdoctor.curves.level import Curve, Floats
from optdoctor.curves.wave import CYCLES, Least, Wave, is_even
from optdoctor.store import IntArray

WINDOW = 40
"""The level before and after a rise is that of this share of the rows."""
LEAST_ROWS = 120
"""Rows below which a window of them is too short for a mean."""
CLEAR = 4.0
"""Standard errors of the difference from which it is a rise."""


def even_rises(shape: Curve, least: Least) -> Wave | None:
    """Rises of like height at even distances, at least `CYCLES`; None where there are none."""
    n = shape.level.size
    if n < LEAST_ROWS:
        return None
    window = n // WINDOW
    rise = _rises(shape.level, window)
    limit = max(CLEAR * shape.leeway * np.sqrt(2) * shape.block_error, least.amplitude)
    rows = _peaks(rise, limit, 2 * window)
    rows = rows[rise[rows] > np.median(rise[rows]) / 2] if rows.size else rows
    if rows.size < CYCLES or not is_even(rows, least.spacing):
        return None
    height = float(np.median(rise[rows]))
    period = float(np.median(np.diff(rows)))
    stays = shape.level[-window:].mean() - shape.level[:window].mean()
    if height <= least.amplitude or stays > rise[rows].sum() / 2 or rise.min() < -1.5 * height:
        return None
    return Wave(period, 0.0, _spread(rows), height, 1.0, rows, True, 0.0, -height / 2, plain=True)


def _rises(level: Floats, window: int) -> Floats:
    """[n]: the mean of so many rows from each on, less that of as many before; 0 at the ends."""
    total = np.concatenate([[0.0], np.cumsum(level)])
    mean = (total[window:] - total[:-window]) / window
    rise = np.zeros(level.size)
    rise[window : level.size - window + 1] = mean[window:] - mean[:-window]
    return rise


def _peaks(rise: Floats, limit: float, apart: int) -> IntArray:
    """Rows of the highest of each stretch above the limit, where these are so far apart."""
    high = np.flatnonzero(rise > limit)
    groups = np.split(high, np.flatnonzero(np.diff(high) > apart) + 1)
    return np.array([group[rise[group].argmax()] for group in groups if group.size], np.int64)


def _spread(rows: IntArray) -> float:
    apart = np.diff(rows)
    return float(apart.std() / apart.mean())
