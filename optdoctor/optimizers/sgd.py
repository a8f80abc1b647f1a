"""SGD: at most a momentum, no second moment and no epsilon.

torch: Sutskever et al. 2013 in the form of its documentation: the first buffer is the first
gradient, undamped, and decay is part of the gradient. On CPU, fused, in float16 or bfloat16, torch
2.13 leaves all but the last few elements where they are (pytorch/pytorch#191763): the change
measured is then 0, whatever the rule asks for. bitsandbytes takes `nesterov` and `dampening` and
uses neither.
"""

import torch
from torch import Tensor

from optdoctor.optimizers.adam import not_overridden
from optdoctor.optimizers.probe import Elements, Group, Layout, Moment, Probe, State
from optdoctor.optimizers.quantized import blockwise_moment
from optdoctor.optimizers.settings import momentum_facts, named


def layout(state: State, group: Group) -> Layout:
    """momentum_buffer, where there is a momentum; one from before it was set to 0 stays behind."""
    held = bool(group.get("momentum")) and state.get("momentum_buffer") is not None
    return Layout(Moment("momentum_buffer") if held else None)


def foretell(e: Elements) -> Tensor:
    """-lr * buffer; Nesterov looks ahead by one more gradient; decay is part of both."""
    sign = -1.0 if e.group["maximize"] else 1.0
    gradient = sign * e.gradient + e["weight_decay"] * e.weight
    if e.first is None:
        return -e.rate * gradient
    if e.group["nesterov"]:
        return -e.rate * (gradient + e["momentum"] * e.first)
    return -e.rate * e.first


def blockwise_layout(state: State, group: Group) -> Layout:
    """The momentum under state1."""
    return Layout(blockwise_moment(state, "state1"))


def blockwise_foretell(e: Elements) -> Tensor:
    """The same from the buffer before: what it moved by was not yet rounded to 8 bits."""
    buffer = e.gradient + e["weight_decay"] * e.weight
    if "first" in e.before:
        buffer = buffer + e.group["betas"][0] * e.before["first"]
    return -e.rate * buffer


def blockwise_facts(group: Group) -> dict[str, float]:
    """Its betas are momentum and dampening."""
    return named(momentum=group["betas"][0], weight_decay=group.get("weight_decay"))


PROBES = (
    Probe(
        family="sgd",
        matches=("torch.optim.sgd.SGD",),
        layout=layout,
        facts=momentum_facts,
        foretell=foretell,
    ),
    Probe(
        family="sgd",
        matches=tuple(f"bitsandbytes.optim.sgd.{name}" for name in ("SGD", "SGD8bit", "SGD32bit")),
        layout=blockwise_layout,
        facts=blockwise_facts,
        foretell=blockwise_foretell,
        keeps=("first",),
        own=("mng", "args"),
        knows=not_overridden,
        state_dtype=lambda dtype: torch.float32,
    ),
)
