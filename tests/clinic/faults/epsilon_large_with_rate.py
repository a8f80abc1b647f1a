"""A decoy: an epsilon above the gradients, and a rate that was chosen for it."""

import torch
from course import Course
from faulting import Fault, at
from setups import Setup

RATE = 10.0
"""Times the family's own."""


def _rules_most(run: Course) -> bool:
    """Whether epsilon is above the root of the second moment for most entries at the end."""
    (optimizer,) = run.optimizers
    moments = torch.cat([state["exp_avg_sq"].flatten() for state in optimizer.state.values()])
    corrected = moments / (1 - optimizer.param_groups[0]["betas"][1] ** run.steps)
    used = corrected[corrected > 0].sqrt()
    return float((used < optimizer.param_groups[0]["eps"]).float().mean()) > 0.5


FAULT = Fault(
    name="epsilon-large-with-rate",
    says="Adam's epsilon is above its gradients, and its rate is ten times as large for that.",
    rules=(),
    doses=(1e-2, 2e-2, 5e-3),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "adamw"),
        Setup("char-lstm", "adamw"),
    ),
    alter=lambda setup, eps: at(setup, eps=eps, rate_factor=RATE),
    probe=_rules_most,
    decoy=True,
)
