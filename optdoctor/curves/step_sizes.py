"""How far one update moves the weights, in parts of their own size."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor.store import IntArray
from optdoctor.trace import Trace

UNSIZED = frozenset({"norm", "bias", "adapter"})
"""Kinds that begin at 0 or at 1 on purpose: an update is no part of their size."""
SMALL = 64
"""Elements below which a tensor is not counted: its size is no statistic."""
MOST = 0.5
"""Share of the counted elements that a sample must have measured."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Updates and weights of the counted tensors at the samples that measured most of them."""

    steps: IntArray  # [T]
    ratio: Floats  # [T], root mean square of the update over that of the weights, pooled
    size: Floats  # [T], norm of the weights after the update
    update: Floats  # [T, P], NaN where not counted
    weight: Floats  # [T, P], NaN where not counted

    def part(self, rows: NDArray[np.bool_] | slice) -> "StepSizes":
        """Some of the rows."""
        return StepSizes(
            self.steps[rows],
            self.ratio[rows],
            self.size[rows],
            self.update[rows],
            self.weight[rows],
        )


def counted(trace: Trace) -> NDArray[np.bool_]:
    """[P]: trained weights whose size is a statistic."""
    return np.array(
        [
            t.num_elements >= SMALL
            and len(t.shape) > 1
            and t.kind not in UNSIZED
            and t.in_optimizer
            and t.trainable
            for t in trace.tensors
        ],
        bool,
    )


def step_sizes(trace: Trace) -> StepSizes:
    """Of `update_rms` and `param_rms`; weights pooled, so that a layer at 0 does no harm."""
    updates, weights = trace.series["update_rms"], trace.series["param_rms"]
    steps, at, there = np.intersect1d(updates.steps, weights.steps, return_indices=True)
    update = np.asarray(updates.values, np.float64)[at]
    weight = np.asarray(weights.values, np.float64)[there]
    among = counted(trace) & np.isfinite(update) & np.isfinite(weight)
    update, weight = np.where(among, update, np.nan), np.where(among, weight, np.nan)
    elements = trace.num_elements.astype(np.float64)
    measured = (among * elements).sum(axis=1)
    moved = np.sqrt(np.nansum(update**2 * elements, axis=1))
    size = np.sqrt(np.nansum(weight**2 * elements, axis=1))
    enough = (measured > 0) & (measured >= MOST * measured.max(initial=0)) & (size > 0)
    ratio = np.divide(moved, size, out=np.zeros_like(moved), where=size > 0)
    return StepSizes(steps, ratio, size, update, weight).part(enough & np.isfinite(ratio))
