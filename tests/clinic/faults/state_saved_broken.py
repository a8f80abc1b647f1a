"""A checkpoint holds optimizer state that is not finite, beside weights that are."""

import torch
from course import Course
from faulting import Fault
from setups import Setup


def _resume(run: Course, share: float) -> None:
    """Half way the process ends; that share of one second moment is NaN in what it saved."""
    run.resume_at = run.steps // 2

    def broken(course: Course, step: int) -> None:
        (optimizer,) = course.optimizers
        last = [p for p in course.model.parameters() if p.ndim == 2][-1]
        moment = optimizer.state[last]["exp_avg_sq"].view(-1)
        moment[: max(1, int(share * moment.numel()))] = torch.nan
        course.notes["finite"] = all(bool(p.isfinite().all()) for p in course.model.parameters())

    run.on_resume = broken


def _weights_broke_later(run: Course) -> bool:
    """Whether weights that were finite at the resume are NaN at the end."""
    nan = any(bool(p.isnan().any()) for p in run.model.parameters())
    return bool(run.notes["finite"]) and nan


FAULT = Fault(
    name="state-saved-broken",
    says="A second moment in the checkpoint is NaN: the first update after it makes weights NaN.",
    rules=("nonfinite-state",),
    doses=(0.0, 0.01, 1.0),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "adamw"),
        Setup("char-lstm", "adam"),
    ),
    inject=_resume,
    probe=_weights_broke_later,
)
