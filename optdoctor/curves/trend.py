"""The slow trend of values, and how far each row is from it."""

import numpy as np

from optdoctor.curves.level import Floats

ANCHORS = 8
"""Points per window at which a running median is computed; between them it is interpolated."""


def trend(values: Floats, half_width: int) -> Floats:
    """[n]: running median over +-`half_width` rows, narrower towards both ends."""
    n, half_width = len(values), max(half_width, 1)
    anchors = np.unique(np.append(np.arange(0, n, max(2 * half_width // ANCHORS, 1)), n - 1))
    reach = np.minimum(half_width, np.minimum(anchors, n - 1 - anchors))
    medians = [  # of 2r + 1 values, one of which is the median
        np.partition(values[a - r : a + r + 1], r)[r] for a, r in zip(anchors, reach, strict=True)
    ]
    return np.asarray(np.interp(np.arange(n), anchors, medians), np.float64)


def standardised(left: Floats, bound: float = 4.0) -> Floats:
    """[n]: deviations from a trend over their own running spread, cut at +-`bound`."""
    spread = 1.4826 * trend(np.abs(left), max(len(left) // 10, 2))
    overall = 1.4826 * float(np.median(np.abs(left)))
    return np.clip(left / np.maximum(np.maximum(spread, 0.35 * overall), 1e-9), -bound, bound)
