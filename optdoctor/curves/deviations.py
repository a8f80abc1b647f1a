"""Rows above their trend in standard deviations, and the level of peaks and of norms."""

import numpy as np

from optdoctor.curves.level import TRIFLE, Curve, Floats, bounded
from optdoctor.curves.trend import trend
from optdoctor.store import Series

NEAR = 16
"""Rows to each side of one whose median is its base, in short curves."""


def highest(series: Series) -> Series:
    """The series with the largest value of each row for its value: of thinned rows, their peaks."""
    series = bounded(series)
    known = np.isfinite(series.high)
    columns = {name: getattr(series, name)[known] for name in Series.__slots__}
    columns["values"], columns["steps"] = columns["high"], columns["high_step"]
    return Series(**columns)


def norm_level(series: Series) -> tuple[Series, Floats]:
    """The rows of a norm that hold a positive one, and the logarithm [n] of their largest."""
    series = bounded(series)
    kept = np.isfinite(series.high) & (series.high > 0)
    rows = Series(**{name: getattr(series, name)[kept] for name in Series.__slots__})
    return rows, np.log(np.asarray(rows.high, np.float64))


def resolution(line: Curve) -> Floats:
    """[n]: how far the level moves with the smallest difference between two losses."""
    apart = np.abs(np.diff(np.sort(line.losses)))
    apart = apart[apart > TRIFLE * float(np.abs(line.losses).max())]
    if not apart.size:
        return np.full(line.level.size, 1e-4)
    if not line.soft:
        span = np.ptp(line.level) / max(float(np.ptp(line.losses)), 1e-300)
        return np.full(line.level.size, max(float(apart.min() * span), 1e-4))
    return np.asarray(np.maximum(apart.min() / (line.losses + line.soft), 1e-4), np.float64)


def half_width(rows: int) -> int:
    """Rows to each side of one whose median is its base."""
    return max(rows // 24, min(NEAR, rows // 6), 2)


def spread_of(left: Floats, width: int, least: float | Floats) -> Floats:
    """[n]: standard deviation of rows around a trend, nowhere smaller than `least`."""
    size = np.abs(left)
    overall = 1.4826 * float(np.median(size))
    spread = 1.4826 * trend(size, max(len(left) // 10, width))
    edge = min(width, len(left) // 4)  # nearer to an end, a spread is that of a few rows
    spread[:edge], spread[len(left) - edge :] = spread[edge], spread[len(left) - edge - 1]
    return np.asarray(np.maximum(np.maximum(spread, 0.35 * overall), least), np.float64)


def scores(level: Floats, least: float | Floats) -> Floats:
    """[n]: rows above the trend, in standard deviations."""
    width = half_width(len(level))
    left = level - trend(level, width)
    return np.asarray(left / spread_of(left, width, least), np.float64)


def median_of_five(values: Floats) -> Floats:
    """[n]: the median of each row and two on each side; at the ends, of those there are."""
    if len(values) < 5:
        return values.copy()
    a, b, c, d, e = (values[i : len(values) - 4 + i] for i in range(5))
    low = np.maximum(np.minimum(a, b), np.minimum(d, e))
    high = np.minimum(np.maximum(a, b), np.maximum(d, e))
    middle = _median_of_three(low, c, high)
    start = [np.median(values[:3]), np.median(values[:4])]
    end = [np.median(values[-4:]), np.median(values[-3:])]
    return np.concatenate((start, middle, end))


def median_of_fifteen(of_five: Floats) -> Floats:
    """[n]: about the median of 15 rows, from those of 5."""
    inner = _median_of_three(of_five[:-10], of_five[5:-5], of_five[10:])
    return np.concatenate((of_five[:5], inner, of_five[-5:]))


def _median_of_three(a: Floats, b: Floats, c: Floats) -> Floats:
    low, high = np.minimum(a, c), np.maximum(a, c)
    return np.asarray(np.maximum(low, np.minimum(b, high)), np.float64)
