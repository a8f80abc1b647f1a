"""A record as the doctor's own pace would have left it.

Records are sampled at every fifth update, whatever that costs. Left to itself the doctor takes at
least a sample whenever a run has grown by half, and in a short run of short updates hardly more.
"""

import numpy as np
from tampered import Rows, rebuilt

from optdoctor.channels import Axis, Cost, channel
from optdoctor.live.schedule import GROWTH
from optdoctor.store import IntArray
from optdoctor.trace import Trace


def as_if_sparse(trace: Trace) -> Trace:
    """The run with the fewest samples that the doctor takes: no alarm brought further ones, and no
    second process began densely again."""
    start = trace.steps[0] - 1

    def seldom(name: str, rows: Rows) -> Rows:
        steps, values = rows
        if not _is_of_samples(name):
            return rows
        kept = grown(steps - start)
        return steps[kept], values[kept]

    return rebuilt(trace, seldom)


def grown(ages: IntArray) -> np.ndarray:
    """[T] of which are kept: of rising ages, the first of `GROWTH` times the last one kept."""
    kept, last = np.zeros(len(ages), bool), 0
    for i, age in enumerate(ages):
        if age >= GROWTH * last:
            kept[i], last = True, age
    return kept


def _is_of_samples(name: str) -> bool:
    """Whether it is measured at samples alone; where gradients broke is told at alarms too."""
    of = channel(name)
    return name != "first_nonfinite_step" and (of.axis is Axis.TENSOR or of.cost is Cost.SAMPLED)
