"""The slow trend of values, and how far each row is from it."""

import numpy as np

from optdoctor.curves.level import Floats
from optdoctor.store import IntArray

ANCHORS = 8
"""Points per window at which a running median is computed; between them it is interpolated."""
WIDEST, SAMPLE = 4096, 1024
"""Rows of the widest window of which the median is that of all; in a wider one, so many or a few
more at about even distances stand for them."""
GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, fill a distance evenly: no period of the rows can hide in them."""


def trend(values: Floats, half_width: int) -> Floats:
    """[n]: running median over +-`half_width` rows, narrower towards both ends."""
    rows = np.arange(len(values))
    apart = 1 if 2 * half_width <= WIDEST else 2 * half_width // SAMPLE
    picked = rows if apart == 1 else one_of_each(len(values), apart)
    anchors, medians = _running_medians(values[picked], max(half_width // apart, 1))
    return np.asarray(np.interp(rows, picked[anchors], medians), np.float64)


def _running_medians(values: Floats, half_width: int) -> tuple[IntArray, Floats]:
    """Some rows [A], the first and the last among them, and the medians there [A]."""
    n = len(values)
    anchors = np.unique(np.append(np.arange(0, n, max(2 * half_width // ANCHORS, 1)), n - 1))
    reach = np.minimum(half_width, np.minimum(anchors, n - 1 - anchors))
    medians = [  # of 2r + 1 values, one of which is the median
        np.partition(values[a - r : a + r + 1], r)[r] for a, r in zip(anchors, reach, strict=True)
    ]
    return anchors, np.array(medians)


def one_of_each(rows: int, apart: int) -> IntArray:
    """One of so many rows each, the first and the last among them."""
    starts = np.arange(0, rows, apart)
    within = (np.arange(starts.size) * GOLDEN % 1 * apart).astype(np.int64)
    picked = np.minimum(starts + within, rows - 1)
    picked[0], picked[-1] = 0, rows - 1
    return np.asarray(picked, np.int64)


def standardised(left: Floats, bound: float = 4.0) -> Floats:
    """[n]: deviations from a trend over their own running spread, cut at +-`bound`."""
    spread = 1.4826 * trend(np.abs(left), max(len(left) // 10, 2))
    overall = 1.4826 * float(np.median(np.abs(left)))
    return np.clip(left / np.maximum(np.maximum(spread, 0.35 * overall), 1e-9), -bound, bound)
