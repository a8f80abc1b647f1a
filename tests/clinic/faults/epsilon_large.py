"""An epsilon above the gradients: Adam's step is the gradient over epsilon, and small."""

import torch
from course import Course
from faulting import Fault, at
from setups import Setup


def _rules_most(run: Course) -> bool:
    """Whether epsilon is above the root of the second moment for most entries at the end."""
    (optimizer,) = run.optimizers
    group = optimizer.param_groups[0]
    moments = torch.cat([state["exp_avg_sq"].flatten() for state in optimizer.state.values()])
    corrected = moments / (1 - group["betas"][1] ** run.steps)
    used = corrected[corrected > 0].sqrt()
    return float((used < group["eps"]).float().mean()) > 0.5


FAULT = Fault(
    name="epsilon-large",
    says="Adam's epsilon is above its gradients: steps are much smaller than the rate says.",
    rules=("epsilon-dominates",),
    doses=(1e-2, 1e-1, 1.0),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "adamw"),
        Setup("tabular-classification", "adamw"),
    ),
    alter=lambda setup, eps: at(setup, eps=eps),
    probe=_rules_most,
)
