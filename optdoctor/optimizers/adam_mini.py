"""Adam-mini: one second moment for each block of weights (Zhang et al. 2024, algorithm 1).

Which blocks a tensor has, pytorch_optimizer tells by its name: each weight of an embedding is one
of its own (`v`), queries and keys have a block for each head of attention, a fused projection one
for each head and kind, and any other tensor is one block (`v_mean`). m and v are float32 whatever
the weights are, and m of attention has the shape of its blocks, its elements in their order.
"""

import torch
from torch import Tensor

from optdoctor.optimizers.probe import (
    Elements,
    Group,
    Layout,
    Moment,
    Probe,
    State,
    adam_corrections,
    rate_times_decay,
)
from optdoctor.optimizers.settings import adam_facts


def layout(state: State, group: Group) -> Layout:
    """m; v of each weight, or v_mean of each block."""
    second = Moment("v") if "v" in state else Moment("v_mean", "factored", of_blocks)
    return Layout(Moment("m", decode=first_mean), second)


def first_mean(state: State, group: Group) -> Tensor:
    """m in the shape of the weights, of which a group holds one tensor."""
    mean: Tensor = state["m"]
    return mean.reshape(group["params"][0].shape)


def of_blocks(state: State, group: Group) -> Tensor:
    """The mean of its block at each weight."""
    mean, blocks = state["m"], state["v_mean"]
    inner = (1,) * (mean.dim() - blocks.dim())
    spread: Tensor = blocks.reshape(*blocks.shape, *inner).expand_as(mean)
    return spread.reshape(group["params"][0].shape)


def foretell(e: Elements) -> Tensor:
    """As AdamW, with the mean of the block for its own."""
    assert e.first is not None
    assert e.second is not None
    change = -e.rate * (e.first / e.c1) / ((e.second / e.c2).sqrt() + e["eps"])
    return change + rate_times_decay(e.group) * e.weight


PROBES = (
    Probe(
        family="adam_mini",
        matches=("pytorch_optimizer.optimizer.adam_mini.AdamMini",),
        layout=layout,
        facts=adam_facts,
        adaptive=True,
        corrections=adam_corrections,
        foretell=foretell,
        decay_apart=rate_times_decay,
        state_dtype=lambda dtype: torch.float32,
    ),
)
