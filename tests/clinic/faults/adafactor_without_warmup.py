"""Adafactor begins at its full rate: no harm here."""

from course import Course
from faulting import Fault, at
from setups import Setup


def _begins_high(run: Course) -> bool:
    """Whether the first update has nearly the peak of the rate."""
    return run.schedule(0, run.steps) > 0.9


FAULT = Fault(
    name="adafactor-without-warmup",
    says="Adafactor begins at its full rate, against the advice of its page.",
    rules=(),
    doses=("cosine", "constant", "milestones"),
    places=(
        Setup("char-gpt", "adafactor"),
        Setup("digits-mlp", "adafactor"),
        Setup("char-lstm", "adafactor"),
    ),
    alter=lambda setup, schedule: at(setup, schedule=schedule),
    probe=_begins_high,
    decoy=True,
)
