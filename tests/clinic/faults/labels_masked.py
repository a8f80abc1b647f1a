"""All labels of most batches are masked, as where a length limit cuts off every answer."""

import torch
from course import Course
from faulting import Fault
from setups import Setup
from tasks import Batch

IGNORED = -100


def _mask(run: Course, share: float) -> None:
    whole = run.batch
    run.notes.update(masked=0, batches=0)

    def masked(i: int) -> Batch:
        inputs, target = whole(i)
        draws = torch.Generator().manual_seed(7919 * run.setup.seed + i)
        is_masked = float(torch.rand((), generator=draws)) < share
        run.notes["masked"] += is_masked
        run.notes["batches"] += 1
        return inputs, torch.full_like(target, IGNORED) if is_masked else target

    run.batch = masked


def _are_masked(run: Course) -> bool:
    """Whether most batches had no label."""
    return bool(run.notes["masked"] > 0.5 * run.notes["batches"])


FAULT = Fault(
    name="labels-masked",
    says="Every label of most batches is masked: NaN losses with a gradient of 0, nothing learnt.",
    rules=("labels-masked",),
    doses=(0.9, 1.0, 0.97),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "sgd"),
        Setup("char-rnn", "adam"),
    ),
    inject=_mask,
    probe=_are_masked,
    of_its_task=True,
)
