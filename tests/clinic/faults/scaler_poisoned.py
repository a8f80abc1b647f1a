"""A gradient scaler meets infinite gradients in most updates and skips them."""

import torch
from course import Course
from faulting import Fault
from setups import Setup
from torch import Tensor

SINCE = 0.5


def _poison(run: Course, share: float) -> None:
    weight = next(p for p in run.model.parameters() if p.requires_grad)
    draws = torch.Generator().manual_seed(run.setup.seed)
    run.notes.update(poisoned=False, count=0)

    def decide(course: Course, step: int) -> None:
        drawn = float(torch.rand((), generator=draws))
        course.notes["poisoned"] = step >= SINCE * course.steps and drawn < share
        course.notes["count"] += course.notes["poisoned"]

    def spoil(gradient: Tensor) -> Tensor:
        return torch.full_like(gradient, float("inf")) if run.notes["poisoned"] else gradient

    weight.register_hook(spoil)
    run.before_backward.append(decide)


def _has_skipped(run: Course) -> bool:
    """Whether a third of the updates had an infinite gradient, and the scale fell."""
    return run.notes["count"] > run.steps / 4 and float(run.scaler.get_scale()) < 1.0


FAULT = Fault(
    name="scaler-poisoned",
    says="Infinite gradients of one tensor make the scaler skip most updates, and its scale falls.",
    rules=("loss-scale-collapse",),
    doses=(0.7, 0.8, 0.9),
    places=(
        Setup("char-gpt", "adamw", precision="float16-scaler"),
        Setup("digits-mlp", "sgd", precision="float16-scaler"),
        Setup("autoencoder", "adamw", precision="float16-scaler"),
    ),
    inject=_poison,
    probe=_has_skipped,
)
