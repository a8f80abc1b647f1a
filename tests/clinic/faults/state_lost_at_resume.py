"""A decoy: training goes on from a checkpoint without the optimizer's state."""

from course import Course
from faulting import Fault
from setups import Setup


def _resume(run: Course, share: float) -> None:
    """At that share of the run the state is forgotten, and nothing else."""
    run.resume_at = round(share * run.steps)

    def forget(course: Course, step: int) -> None:
        course.notes["held"] = all(optimizer.state for optimizer in course.optimizers)
        for optimizer in course.optimizers:
            optimizer.state.clear()

    run.on_resume = forget


def _counts_from_the_resume(run: Course) -> bool:
    """Whether the state counts fewer steps than the run made."""
    (optimizer,) = run.optimizers
    counted = {int(state["step"]) for state in optimizer.state.values()}
    return bool(run.notes["held"]) and max(counted) < run.steps


FAULT = Fault(
    name="state-lost-at-resume",
    says="The optimizer's state is not loaded at a resume; the run makes up for it.",
    rules=(),
    doses=(0.5, 0.25, 0.75),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "adamw"),
        Setup("char-lstm", "adam"),
    ),
    inject=_resume,
    probe=_counts_from_the_resume,
    decoy=True,
)
