"""Rows of a short curve that stand above their neighbours, where no noise can be estimated."""

import numpy as np

from optdoctor.curves.level import Floats
from optdoctor.curves.peaks import BACK, SIDE, Spike

EDGE = 2
"""Rows that such a row needs on each side."""


def towers(level: Floats, times: float) -> list[Spike]:
    """Rows of a short curve that stand above up to 3 rows before them, and come back later.

    Args:
        times: standard deviations of a row that count as reached by noise.
    """
    rows = len(level)
    bends = np.diff(level, 2)
    found: list[Spike] = []
    for top in range(EDGE, rows - EDGE):
        before = level[max(top - SIDE, 0) : top]
        height = float(level[top] - before.max())
        usual = float(np.median(before))
        left = np.flatnonzero(level[top + 1 :] <= usual + BACK * height)
        if height <= 0 or not left.size:
            continue
        back = top + 1 + int(left[0])
        high = np.flatnonzero(level[top:back] > usual + height / 2)
        if level[top] < level[top:back].max() or np.median(level[back:]) > usual + height / 2:
            continue
        others = np.delete(bends, np.arange(top - 2, top + 1))
        noise = max(float(np.sqrt(np.mean(others**2))) / 2.449, 1e-4)
        last, size = top + int(high[-1]), height / noise
        found.append(Spike(top, last, top, back, high.size, usual, height, size, times, 0.0))
    return found
