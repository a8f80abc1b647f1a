"""What a log alone bounds: the length of steps, the size of weights, how far a run has come.

A log has the rate, the norm of the gradient and the number of trained weights, and no tensor.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor.curves.rows import lookup
from optdoctor.knowledge.settings import count, decay, positive
from optdoctor.store import IntArray
from optdoctor.trace import Fact, Trace

ROWS = 5
"""Losses whose median tells where a run stands."""

Floats = NDArray[np.float64]


class Steps(NamedTuple):
    """Updates of which the rate and the gradient are known."""

    steps: IntArray  # [T]
    rates: Floats  # [T]
    norms: Floats  # [T] of the gradient, after the clip


def steps_by_gradient(trace: Trace) -> Steps:
    """The rows with a rate and a gradient norm, which is taken after the clip.

    Reads `grad_norm`, `lr` and `max_grad_norm`.
    """
    norms = trace.series["grad_norm"]
    rates, used = lookup(trace.series["lr"], norms.steps), np.asarray(norms.values, np.float64)
    clip = positive(trace.facts.get("max_grad_norm"))
    if clip is not None:
        used = np.minimum(used, clip)
    kept = np.isfinite(rates) & (rates >= 0) & np.isfinite(used) & (used >= 0)
    return Steps(norms.steps[kept], rates[kept], used[kept])


def weights(trace: Trace) -> int | None:
    """How many weights are trained; None where nobody told. Reads `num_parameters`."""
    return count(trace.facts.get("num_parameters")) or None


def least_size(number: int) -> float:
    """Root mean square that so many weights begin with at least: 1 / sqrt(3 fan-in), the start of
    torch's linear layers and the smallest of the usual ones, were all of them one square matrix."""
    return 1 / math.sqrt(3 * math.sqrt(number))


def longer(momentum: Fact) -> float:
    """By how much a momentum of SGD prolongs what one gradient does, at most."""
    return 1 / (1 - (decay(momentum) or 0.0))


def stands_at(trace: Trace) -> float | None:
    """The newest loss over that of a guess among the classes, or where their number is not told
    over the first; None where it tells nothing.

    Reads `loss`, `loss_base` and `num_classes`.
    """
    loss = trace.series["loss"]
    values = np.asarray(loss.values, np.float64)[np.isfinite(loss.values)]
    if values.size < 2 * ROWS:
        return None
    start, now = float(np.median(values[:ROWS])), float(np.median(values[-ROWS:]))
    start = guess(trace) or start
    return now / start if start > 0 and math.isfinite(now / start) else None


def guess(trace: Trace) -> float | None:
    """The loss of a guess among the classes, in nats; None where their number is not told.

    Reads `loss_base` and `num_classes`.
    """
    classes = count(trace.facts.get("num_classes")) or 0
    told = classes > 1 and (trace.facts.get("loss_base") or "nats") == "nats"
    return math.log(classes) if told else None
