"""The learning rate beside a curve."""

import numpy as np

from optdoctor.curves.level import Curve, Floats
from optdoctor.trace import Trace


def rates(trace: Trace, line: Curve) -> Floats | None:
    """[n]: the learning rate at each row of the curve; None where it is not known throughout."""
    series = trace.series.get("lr")
    if series is None or not np.isfinite(series.values).all():
        return None
    rate = np.interp(line.steps, series.steps, series.values)
    return rate if rate.max() > 0 and rate.min() >= 0 else None
