"""A resume forgets where the scheduler was: warm-up and decay begin again near the end."""

from course import Course
from faulting import Fault
from setups import Setup


def _forget(run: Course, step: int) -> None:
    for scheduler in run.schedulers:
        scheduler.last_epoch = -1
        scheduler.step()


def _resume(run: Course, share: float) -> None:
    run.resume_at = int(share * run.steps)
    run.on_resume = _forget


def _is_behind(run: Course) -> bool:
    """Whether the schedulers counted only the updates since the resume."""
    since = run.steps - (run.resume_at or 0)
    return all(scheduler.last_epoch == since for scheduler in run.schedulers)


FAULT = Fault(
    name="schedule-restarted",
    says="The scheduler begins at its own step 0 after a resume, and the rate never comes down.",
    rules=("learning-rate-restarted",),
    doses=(0.8, 0.7, 0.6),
    places=(
        Setup("digits-mlp", "sgd", schedule="linear"),
        Setup("digits-cnn", "sgd", schedule="warm-cosine"),
        Setup("digits-vit", "adamw", schedule="warm-cosine"),
    ),
    inject=_resume,
    probe=_is_behind,
)
