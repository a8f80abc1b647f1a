"""A share of the training labels is drawn at random; the held-out ones are clean."""

import torch
from course import Course
from faulting import Fault
from setups import Setup
from tasks import Batch


def _mislabel(run: Course, share: float) -> None:
    clean, classes = run.batch, run.task.num_classes or 2
    run.notes.update(wrong=0, labels=0)

    def noisy(i: int) -> Batch:
        inputs, target = clean(i)
        draws = torch.Generator().manual_seed(7919 * run.setup.seed + i)
        wrong = torch.rand(target.shape, generator=draws) < share
        other = torch.randint(classes, target.shape, generator=draws)
        run.notes["wrong"] += int(wrong.sum())
        run.notes["labels"] += target.numel()
        return inputs, torch.where(wrong, other, target)

    run.batch = noisy


def _is_noisy(run: Course) -> bool:
    """Whether a fifth of the labels, at least, were drawn at random."""
    return bool(run.notes["wrong"] > 0.2 * run.notes["labels"])


FAULT = Fault(
    name="label-noise",
    says="Labels drawn at random in training alone: its loss stands far above the evaluations.",
    rules=("training-loss-floor",),
    doses=(0.3, 0.5, 0.7),
    places=(
        Setup("digits-mlp", "adamw"),
        Setup("digits-cnn", "sgd"),
        Setup("digits-vit", "adamw"),
    ),
    inject=_mislabel,
    probe=_is_noisy,
    slow=True,
    of_its_task=True,
)
