"""Rows of a series and of a mask."""

import numpy as np
from numpy.typing import NDArray

from optdoctor.store import IntArray, Series


def lookup(series: Series, steps: IntArray, absent: float = np.nan) -> NDArray[np.float64]:
    """[len(steps)]: the value recorded at exactly each step, `absent` where there is none."""
    if not series.steps.size:
        return np.full(len(steps), absent)
    at = np.minimum(np.searchsorted(series.steps, steps), series.steps.size - 1)
    return np.where(series.steps[at] == steps, series.values[at], absent)


def row_before(series: Series, step: int) -> int:
    """The newest recorded step before `step`, which is one of the series too.

    Of a thinned row it is the first where no more is known; before the very first row it is where
    one would stand at the distance of the first two.
    """
    row = int(np.searchsorted(series.steps, step))
    if row == series.steps.size or series.starts[row] >= step:
        if row:
            return int(series.steps[row - 1])
        return max(step - int(np.diff(series.starts[:2]).max(initial=1)), 0)
    is_whole = series.count[row] == series.steps[row] - series.starts[row] + 1
    return step - 1 if is_whole else int(series.starts[row])


def spans(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Index pairs [first, last] of the runs of True in `mask` [T]."""
    edges = np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return [(int(a), int(b)) for a, b in zip(starts, ends, strict=True)]
