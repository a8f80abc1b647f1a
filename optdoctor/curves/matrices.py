"""The trained matrices of a network by the groups of its optimizer: rate, size and growth."""

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor.trace import TensorInfo, Trace

UNJUDGED = frozenset({"norm", "bias", "embedding"})
LAYERS = frozenset({"attention", "mlp", "conv", "recurrent", "head"})
"""Kinds that are known to be layers."""
NEAR_ZERO = 0.1
"""Share of 1 over the root of its inputs, the size at which a matrix hands on what it takes in,
below which its weights began near 0 on purpose: they grow to their size, and are none yet."""
LEAST, FEWEST = 1e-3, 64
"""Root mean square below which weights began near 0, and elements of a matrix that has a size:
those of `weights_rms`."""
PAIR = 2
"""Matrices from which a network is deep: what one multiplies the next one takes in."""

Floats = NDArray[np.float64]


class Group(NamedTuple):
    """Layers whose group has a higher rate than the main one."""

    rate: float  # the largest that was used
    size: float  # median root mean square when watching began
    steps: tuple[int, int]  # first and last sample above so many sizes
    growth: float
    tensors: tuple[str, ...]


def matrices(trace: Trace) -> list[int]:
    """Positions of the trained matrices that are no embedding."""
    return [i for i, info in enumerate(trace.tensors) if _is_matrix(info)]


def _is_matrix(info: TensorInfo) -> bool:
    is_trained = info.in_optimizer and info.trainable
    return is_trained and len(info.shape) > 1 and info.num_elements > 0 and _is_judged(info)


def _is_judged(info: TensorInfo) -> bool:
    return info.kind not in UNJUDGED


def least_size(info: TensorInfo) -> float:
    """What a matrix has to be at least to begin at a size of its own."""
    return NEAR_ZERO / math.sqrt(info.num_elements / info.shape[0])


def main_group(trace: Trace) -> int:
    """The group with the most trained elements."""
    held: Counter[int] = Counter()
    for info in trace.tensors:
        if info.in_optimizer and info.trainable:
            held[info.group] += info.num_elements
    return max(held, key=lambda group: (held[group], -group), default=0)


def growth_of(trace: Trace, positions: list[int]) -> float:
    """Median growth since the first sample, of matrices that did not begin near 0; 1 where it was
    not measured. Rounded: what is printed was judged."""
    if "param_rms" not in trace.series or not positions:
        return 1.0
    least = np.array([least_size(trace.tensors[i]) for i in positions])
    began = _start(trace)[positions]
    now = np.asarray(trace.series["param_rms"].values, np.float64)[-1, positions]
    known = (began >= least) & np.isfinite(now)
    return round(float(np.median(now[known] / began[known])), 2) if known.any() else 1.0


def _start(trace: Trace) -> Floats:
    """[P]: root mean square before the first sampled update, which has no bias to its weights."""
    weights, updates = trace.series["param_rms"], trace.series.get("update_rms")
    sizes: Floats = np.asarray(weights.values, np.float64)[0]
    if updates is None or updates.steps[0] != weights.steps[0]:
        return sizes
    moved = np.nan_to_num(np.asarray(updates.values, np.float64)[0])
    return np.asarray(np.sqrt(np.maximum(sizes**2 - moved**2, 0.0)), np.float64)


def faster_groups(trace: Trace, rate: float, sizes: float) -> list[Group]:
    """Groups of layers that used a rate above that of the main one and above so many `sizes` of
    their own matrices."""
    if "tensor_lr" not in trace.series or "param_rms" not in trace.series:
        return []
    rates, began = trace.series["tensor_lr"], _start(trace)
    used, main = np.asarray(rates.values, np.float64), main_group(trace)
    layers = [i for i in matrices(trace) if _is_layer(trace.tensors[i]) and began[i] >= LEAST]
    found = []
    for group in sorted({trace.tensors[i].group for i in layers} - {main}):
        own = [i for i in layers if trace.tensors[i].group == group]
        least = float(np.median([least_size(trace.tensors[i]) for i in own]))
        size = max(float(np.median(began[own])), least)
        of_group = used[:, own[0]]
        peak = float(np.nanmax(of_group, initial=0.0))
        above = rates.steps[of_group / size > sizes]
        if len(own) >= PAIR and peak > rate and above.size:
            names = tuple(trace.tensors[i].name for i in own)
            steps = int(above[0]), int(above[-1])
            found.append(Group(peak, size, steps, growth_of(trace, own), names))
    return found


def _is_layer(info: TensorInfo) -> bool:
    """Whether it is known to be a layer's, and no table or image that is optimized."""
    is_known = info.kind in LAYERS or bool(info.layer)
    return is_known and info.kind != "adapter" and info.num_elements >= FEWEST
