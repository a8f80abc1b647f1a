"""The training data come sorted by class, in the same order in every epoch."""

import torch
from course import Course
from faulting import Fault
from setups import Setup
from tasks import Batch


def _sort(run: Course, batches: int) -> None:
    parts = [run.batch(i) for i in range(batches)]
    inputs, target = (torch.cat(several) for several in zip(*parts, strict=True))
    order = torch.argsort(target, stable=True)
    size = len(parts[0][1])
    inputs, target = inputs[order], target[order]
    run.notes["classes"] = []

    def of_class(i: int) -> Batch:
        at = slice(i % batches * size, (i % batches + 1) * size)
        run.notes["classes"].append(len(target[at].unique()))
        return inputs[at], target[at]

    run.batch = of_class


def _is_sorted(run: Course) -> bool:
    """Whether most batches held one or two classes."""
    classes = run.notes["classes"]
    return sum(number <= 2 for number in classes) > 0.7 * len(classes)


FAULT = Fault(
    name="data-sorted",
    says="Batches of one class after another: the loss jumps at each new class.",
    rules=("staircase-oscillation",),
    doses=(30, 40, 50),
    places=(
        Setup("digits-mlp", "sgd", rate_factor=0.2),
        Setup("digits-cnn", "adamw", rate_factor=0.2),
        Setup("digits-vit", "adamw", rate_factor=0.3),
    ),
    inject=_sort,
    probe=_is_sorted,
    of_its_task=True,
)
