"""The learning rate is set to 0 in the middle of the run and stays there."""

from course import Course
from faulting import Fault
from setups import Setup


def _cut(run: Course, share: float) -> None:
    planned = run.schedule
    run.schedule = lambda step, total: planned(step, total) if step < share * total else 0.0


def _is_zero(run: Course) -> bool:
    """Whether the rates of all groups ended at 0."""
    return all(group["lr"] == 0 for o in run.optimizers for group in o.param_groups)


FAULT = Fault(
    name="rate-cut-to-zero",
    says="The rate is 0 from a part of the run on: the loss stands still.",
    rules=("learning-rate-spent",),
    doses=(0.3, 0.15, 0.08),
    places=(
        Setup("char-gpt", "adamw", schedule="constant"),
        Setup("digits-mlp", "sgd", schedule="cosine"),
        Setup("char-lstm", "adam", schedule="constant"),
    ),
    inject=_cut,
    probe=_is_zero,
    slow=True,
)
