"""From a part of the run on, the data are others: what was learnt does not fit them."""

import torch
from course import Course
from faulting import Fault
from setups import Setup
from tasks import Batch


def _shift(run: Course, share: float) -> None:
    first, classes = run.batch, run.task.num_classes or 2
    run.notes["shifted"] = 0
    others = torch.randperm(classes, generator=torch.Generator().manual_seed(run.setup.seed))

    def later(i: int) -> Batch:
        inputs, target = first(i)
        if i < share * run.steps * run.accumulate:
            return inputs, target
        run.notes["shifted"] += 1
        return inputs, others[target]

    run.batch = later


def _has_shifted(run: Course) -> bool:
    """Whether a part of the batches had other labels."""
    return bool(run.notes["shifted"] > 0)


FAULT = Fault(
    name="data-shift",
    says="The meaning of the labels changes within the run: the loss jumps, the evaluation breaks.",
    rules=("divergence", "upward-drift", "loss-spike"),
    doses=(0.6, 0.5, 0.4),
    places=(
        Setup("digits-mlp", "adamw"),
        Setup("char-gpt", "adamw"),
        Setup("digits-cnn", "sgd"),
    ),
    inject=_shift,
    probe=_has_shifted,
    of_its_task=True,
)
