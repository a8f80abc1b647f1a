"""Adagrad: the sum of squares divides, and only grows.

Duchi et al. 2011, with epsilon outside of the root and decay as part of the gradient. `sum` is no
mean, so that its size grows with the steps. bitsandbytes keeps it in state1, where others keep m.
"""

import torch
from torch import Tensor

from optdoctor.optimizers.adam import not_overridden
from optdoctor.optimizers.probe import (
    Elements,
    Group,
    Layout,
    Moment,
    Number,
    Probe,
    State,
    setting_of,
)
from optdoctor.optimizers.quantized import blockwise_moment
from optdoctor.optimizers.settings import named


def layout(state: State, group: Group) -> Layout:
    """sum."""
    return Layout(second=Moment("sum"))


def rate(group: Group, step: Number) -> Number:
    """lr / (1 + (t - 1) * lr_decay)."""
    return setting_of(group, "lr") / (1 + (step - 1) * setting_of(group, "lr_decay"))


def foretell(e: Elements) -> Tensor:
    """-rate * g / (√sum + eps)."""
    assert e.second is not None
    sign = -1.0 if e.group["maximize"] else 1.0
    gradient = sign * e.gradient + e["weight_decay"] * e.weight
    return -e.rate * gradient / (e.second.sqrt() + e["eps"])


def blockwise_layout(state: State, group: Group) -> Layout:
    """The sum under state1."""
    return Layout(second=blockwise_moment(state, "state1"))


def blockwise_foretell(e: Elements) -> Tensor:
    """The same from the sum before: what divided was not yet rounded to 8 bits."""
    gradient = e.gradient + e["weight_decay"] * e.weight
    total = gradient.square()
    if "second" in e.before:
        total = total + e.before["second"]
    return -e.rate * gradient / (total.sqrt() + e["eps"])


def facts(group: Group) -> dict[str, float]:
    """Epsilon and decay; the betas of bitsandbytes mean nothing here."""
    return named(eps=group.get("eps"), weight_decay=group.get("weight_decay"))


PROBES = (
    Probe(
        family="adagrad",
        matches=("torch.optim.adagrad.Adagrad",),
        layout=layout,
        facts=facts,
        rate=rate,
        adaptive=True,
        foretell=foretell,
    ),
    Probe(
        family="adagrad",
        matches=tuple(
            f"bitsandbytes.optim.adagrad.{name}"
            for name in ("Adagrad", "Adagrad8bit", "Adagrad32bit")
        ),
        layout=blockwise_layout,
        facts=facts,
        adaptive=True,
        foretell=blockwise_foretell,
        keeps=("second",),
        own=("mng", "args"),
        knows=not_overridden,
        state_dtype=lambda dtype: torch.float32,
    ),
)
