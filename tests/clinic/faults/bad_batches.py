"""One batch comes back again and again with inputs far too large and labels of others."""

import torch
from course import Course
from faulting import Fault
from setups import Setup
from tasks import Batch

EVERY = 40


def _spoil(run: Course, scale: float) -> None:
    sound = run.batch
    run.notes["spoilt"] = 0

    def spoilt(i: int) -> Batch:
        inputs, target = sound(i)
        if i < EVERY or i % EVERY:
            return inputs, target
        run.notes["spoilt"] += 1
        draws = torch.Generator().manual_seed(7919 * run.setup.seed + i)
        return scale * inputs, target[torch.randperm(len(target), generator=draws)]

    run.batch = spoilt


def _are_spoilt(run: Course) -> bool:
    """Whether several batches were spoilt."""
    return bool(run.notes["spoilt"] >= 4)


FAULT = Fault(
    name="bad-batches",
    says="A broken batch at every fortieth update throws the weights off.",
    rules=("bad-batch", "staircase-oscillation"),
    doses=(5.0, 10.0, 20.0),
    places=(
        Setup("digits-mlp", "sgd"),
        Setup("digits-cnn", "sgd"),
        Setup("tabular-classification", "sgd"),
    ),
    inject=_spoil,
    probe=_are_spoilt,
)
