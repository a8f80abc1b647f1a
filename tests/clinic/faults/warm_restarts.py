"""A cosine that begins again several times by design, and ends low."""

import math
from itertools import pairwise

from course import Course
from faulting import Fault
from setups import Setup


def _restart(run: Course, cycles: int) -> None:
    def schedule(step: int, total: int) -> float:
        length = -(-total // cycles)
        return 0.5 * (1 + math.cos(math.pi * (step % length) / length))

    run.schedule = schedule


def _has_restarted(run: Course) -> bool:
    """Whether the rate rose at least once by more than half of its peak in one update."""
    rates = [run.schedule(step, run.steps) for step in range(run.steps)]
    return any(after - before > 0.5 for before, after in pairwise(rates))


FAULT = Fault(
    name="warm-restarts",
    says="The rate jumps back to its peak by design, and the run ends as well as without.",
    rules=(),
    doses=(2, 3, 4),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("char-lstm", "adamw"),
        Setup("autoencoder", "adamw"),
    ),
    inject=_restart,
    probe=_has_restarted,
    decoy=True,
)
