"""Rows of tensor channels that were sampled together."""

import numpy as np
from numpy.typing import NDArray

from optdoctor.store import IntArray
from optdoctor.trace import Trace


def at_samples(trace: Trace, name: str, steps: IntArray) -> NDArray[np.float64]:
    """[len(steps), P]: the row of a tensor channel at exactly each step, NaN where none is."""
    found = np.full((len(steps), len(trace.tensors)), np.nan)
    if name not in trace.series or not trace.series[name].steps.size:
        return found
    series = trace.series[name]
    at = np.minimum(np.searchsorted(series.steps, steps), series.steps.size - 1)
    same = series.steps[at] == steps
    found[same] = series.values[at[same]]
    return found
