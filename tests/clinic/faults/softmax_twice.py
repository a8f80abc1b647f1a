"""The model's outputs go through a softmax before a cross-entropy that applies its own."""

import torch
from course import Course
from faulting import Fault
from setups import Setup
from torch import Tensor


def _apply_twice(run: Course, sharpness: float) -> None:
    plain = run.loss

    def twice(output: Tensor, target: Tensor) -> Tensor:
        probabilities = torch.softmax(sharpness * output, -1)
        run.notes["highest"] = float(probabilities.detach().max())
        return plain(probabilities, target)

    run.loss = twice


def _is_bounded(run: Course) -> bool:
    """Whether the cross-entropy was handed numbers of at most 1."""
    return 0 < float(run.notes["highest"]) <= 1


FAULT = Fault(
    name="softmax-twice",
    says="A softmax before the cross-entropy bounds its loss from below at ln(1 + (C - 1) / e).",
    rules=("softmax-applied-twice",),
    doses=(1.0, 2.0, 4.0),
    places=(
        Setup("digits-vit", "adamw"),
        Setup("digits-mlp", "adamw"),
        Setup("digits-cnn", "sgd"),
    ),
    inject=_apply_twice,
    probe=_is_bounded,
    of_its_task=True,
)
