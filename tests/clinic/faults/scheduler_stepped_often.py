"""The scheduler is stepped for every micro-batch, so that its plan ends early."""

from course import Course
from faulting import Fault, at
from setups import Setup


def _step_often(run: Course, times: int) -> None:
    run.schedulers_step = times


def _has_counted(run: Course) -> bool:
    """Whether each scheduler counts several times the updates."""
    return all(s.last_epoch == run.schedulers_step * run.steps for s in run.schedulers)


FAULT = Fault(
    name="scheduler-stepped-often",
    says="The scheduler steps once for each micro-batch: the rate is spent early.",
    rules=("learning-rate-stepped-too-often", "learning-rate-spent"),
    doses=(4, 8, 2),
    places=(
        Setup("char-gpt", "adamw", schedule="warm-cosine"),
        Setup("digits-mlp", "sgd", schedule="linear"),
        Setup("char-rnn", "adam", schedule="cosine"),
    ),
    alter=lambda setup, times: at(setup, accumulate=times, batch_factor=setup.batch_factor / times),
    inject=_step_often,
    probe=_has_counted,
    slow=True,
)
