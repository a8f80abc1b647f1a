"""One update has an infinite gradient, and a guard looks at the loss only."""

import math

import torch
from course import Course
from faulting import Fault
from setups import Setup
from torch import Tensor

AT = 0.4
"""Share of the run."""


def _inject(run: Course, share: float) -> None:
    """Infinity in that share of one weight's gradient; updates with a NaN loss are left out."""
    weight = max(run.model.parameters(), key=lambda p: p.numel())
    loss, last = run.loss, [0.0]

    def remembered(output: Tensor, target: Tensor) -> Tensor:
        value = loss(output, target)
        last[0] = float(value.detach())
        return value

    def act(course: Course, step: int) -> None:
        if step == round(AT * course.steps) and weight.grad is not None:
            entries = weight.grad.view(-1)
            entries[: max(1, int(share * entries.numel()))] = torch.inf
        if not math.isfinite(last[0]):
            for parameter in course.model.parameters():
                parameter.grad = None

    run.loss = remembered
    run.before_step.append(act)


def _weights_are_nan(run: Course) -> bool:
    return any(bool(p.isnan().any()) for p in run.model.parameters())


FAULT = Fault(
    name="gradient-infinite-once",
    says="An infinite gradient makes Adam's state and weights NaN; skipping NaN losses is late.",
    rules=("nonfinite-gradient", "nan-pulse"),
    doses=(0.0, 0.01, 0.5),
    places=(
        Setup("digits-mlp", "adamw"),
        Setup("char-lstm", "adamw"),
        Setup("char-gpt", "adamw"),
    ),
    inject=_inject,
    probe=_weights_are_nan,
)
