"""All labels of one batch of the run are masked: a NaN in the log, and no harm."""

import torch
from course import Course
from faulting import Fault
from setups import Setup
from tasks import Batch

IGNORED = -100


def _mask(run: Course, share: float) -> None:
    whole, at = run.batch, int(share * run.steps)

    def masked(i: int) -> Batch:
        inputs, target = whole(i)
        run.notes["masked"] = run.notes.get("masked", 0) + (i == at)
        return inputs, torch.full_like(target, IGNORED) if i == at else target

    run.batch = masked


def _is_masked(run: Course) -> bool:
    """Whether one batch had no label."""
    return bool(run.notes["masked"] == 1)


FAULT = Fault(
    name="labels-masked-once",
    says="One batch without labels logs a NaN and leaves the weights whole.",
    rules=(),
    doses=(0.5, 0.3, 0.8),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "sgd"),
        Setup("char-rnn", "adam"),
    ),
    inject=_mask,
    probe=_is_masked,
    decoy=True,
    of_its_task=True,
)
