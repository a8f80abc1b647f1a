"""Adam and AdamW of torch: exp_avg and exp_avg_sq, both in the dtype of the weights."""

from collections.abc import Mapping
from typing import Any

import torch

from optdoctor.optimizers import Moments, Probe


def moments(state: Mapping[str, Any]) -> Moments:
    """exp_avg, exp_avg_sq; with amsgrad the running maximum is what divides, the mean is stored."""
    return Moments(state.get("exp_avg"), state.get("exp_avg_sq"), state.get("step"))


def facts(group: Mapping[str, Any]) -> dict[str, float]:
    """Betas, epsilon, decay."""
    beta1, beta2 = group["betas"]
    return {
        "beta1": float(beta1),
        "beta2": float(beta2),
        "eps": float(group["eps"]),
        "weight_decay": float(group["weight_decay"]),
    }


PROBE = Probe(
    family="adam",
    matches=("torch.optim.adam.Adam", "torch.optim.adamw.AdamW"),
    moments=moments,
    facts=facts,
    adaptive=True,
    make=lambda params: torch.optim.AdamW(params, lr=1e-2),
)
