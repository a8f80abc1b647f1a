"""A milestone cuts the learning rate to a hundredth long before its time."""

from course import Course
from faulting import Fault
from setups import Setup


def _cut(run: Course, share: float) -> None:
    planned = run.schedule
    run.notes["planned"] = planned
    run.schedule = lambda step, total: (
        planned(step, total) * (1.0 if step < share * total else 0.01)
    )


def _is_cut(run: Course) -> bool:
    """Whether the rate at the end of the run is a hundredth of the planned one."""
    last = run.steps - 1
    planned = run.notes["planned"](last, run.steps)
    return 0 < run.schedule(last, run.steps) < 0.011 * planned


FAULT = Fault(
    name="step-decay-early",
    says="A milestone that was meant for the end comes early, and the rest of the run crawls.",
    rules=("learning-rate-spent",),
    doses=(0.3, 0.15, 0.08),
    places=(
        Setup("char-gpt", "adamw", schedule="constant"),
        Setup("digits-mlp", "sgd-plain", schedule="constant"),
        Setup("char-rnn", "adam", schedule="constant"),
    ),
    inject=_cut,
    probe=_is_cut,
    slow=True,
)
