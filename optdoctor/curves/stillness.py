"""Weights that stand still, by what is measured of their updates."""

import math
from typing import NamedTuple

import numpy as np

from optdoctor.curves.level import Floats
from optdoctor.store import IntArray
from optdoctor.trace import Trace

UNSEEN = 6e-8
"""Relative update that float32 does not see."""
STILL = {
    "update_unchanged": "of the weights with a gradient do not move",
    "moment2_saturated": "of the second moments of one tensor are saturated",
    "update_ratio": "of the weights get updates that float32 does not see",
}
"""What each channel says of weights that stand still."""
NO_UPDATE = "of the weights get no update at all"
"""What `update_ratio` says where it is exactly 0: no number format has anything to do with it."""


class Still(NamedTuple):
    """Weights that stand still up to the last sample."""

    channel: str
    said: str
    """What the channel says of them."""
    first: int
    """Step from which on they do."""
    share: float
    """Median share of the weights since then."""


def mean_of_weights(values: Floats, trace: Trace) -> Floats:
    """[T]: of [T, P], over all weights that were measured; NaN where none was."""
    weight = np.where(np.isfinite(values), trace.num_elements, 0.0)
    total = weight.sum(axis=1)
    mean = np.where(weight > 0, values * weight, 0).sum(axis=1) / np.maximum(total, 1)
    return np.where(total > 0, mean, np.nan)


def share_still(trace: Trace, name: str) -> tuple[IntArray, Floats]:
    """Steps [T] and the share [T] of weights that do not move, by one tensor channel."""
    steps, values = trace.series[name].steps, np.asarray(trace.series[name].values, np.float64)
    measured = np.isfinite(values)  # [T, P]
    if name == "moment2_saturated":  # one tensor that cannot move holds up what it is part of
        share = np.where(measured, values, 0).max(axis=1, initial=0)
    else:
        still = values < UNSEEN if name == "update_ratio" else values
        share = mean_of_weights(np.where(measured, still, np.nan), trace)
    known = np.isfinite(share) & measured.any(axis=1)
    return steps[known], share[known]


def stands_still(trace: Trace, share: float, latest: int) -> Still | None:
    """What stands still to `share` of the weights, or more, from step `latest` or before on."""
    for name in STILL:
        if name not in trace.series:
            continue
        steps, shares = share_still(trace, name)
        moving = np.flatnonzero(np.round(shares, 4) < share)
        row = int(moving[-1]) + 1 if moving.size else 0
        if row < steps.size and steps[row] <= latest:
            said = NO_UPDATE if _has_no_update(trace, name, share) else STILL[name]
            return Still(name, said, int(steps[row]), float(np.median(shares[row:])))
    return None


def _has_no_update(trace: Trace, name: str, share: float) -> bool:
    """Whether updates of exactly 0 make up that share of the weights at the last sample."""
    if name != "update_ratio":
        return False
    values = np.asarray(trace.series[name].values, np.float64)
    zero = np.where(np.isfinite(values), values == 0, np.nan)
    known = mean_of_weights(zero, trace)
    return bool(known[np.isfinite(known)][-1] >= share)


def travel(trace: Trace, first: int, last: int) -> float:
    """Sum of the updates between two steps, relative to the weights; infinity where unknown."""
    if "update_ratio" not in trace.series:
        return math.inf
    steps = trace.series["update_ratio"].steps
    ratio = mean_of_weights(np.asarray(trace.series["update_ratio"].values, np.float64), trace)
    seen = (steps >= first) & (steps <= last) & np.isfinite(ratio)
    return round(float(ratio[seen].mean()) * (last - first), 5) if seen.any() else math.inf
