"""Adam and AdamW of torch: exp_avg and exp_avg_sq, both in the dtype of the weights."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch

from optdoctor.optimizers import Moments, Probe, number_of


def moments(state: Mapping[str, Any]) -> Moments:
    """exp_avg, exp_avg_sq; with amsgrad the running maximum is what divides, the mean is stored."""
    return Moments(
        first=state.get("exp_avg"),
        second=state.get("exp_avg_sq"),
        step=state.get("step"),
        divisor=state.get("max_exp_avg_sq"),
    )


def facts(group: Mapping[str, Any]) -> dict[str, float]:
    """Betas, epsilon, decay; a subclass may lack some."""
    betas = dict(zip(("beta1", "beta2"), group.get("betas") or (), strict=False))
    given = betas | {name: group.get(name) for name in ("eps", "weight_decay")}
    return {name: v for name, value in given.items() if isfinite(v := number_of(value))}


PROBE = Probe(
    family="adam",
    matches=("torch.optim.adam.Adam", "torch.optim.adamw.AdamW"),
    moments=moments,
    facts=facts,
    adaptive=True,
    make=lambda params: torch.optim.AdamW(params, lr=1e-2),
)
