"""The warm-up ends far below the peak, and one update takes the rate up to far too much."""

from itertools import pairwise

from course import Course
from faulting import Fault
from setups import Setup

WARM_UP = 0.15


def _jump(run: Course, factor: float) -> None:
    planned = run.schedule

    def schedule(step: int, total: int) -> float:
        early = step < WARM_UP * total
        return 0.1 * planned(step, total) if early else factor * planned(step, total)

    run.schedule = schedule


def _has_jumped(run: Course) -> bool:
    """Whether the rate grew more than tenfold in one update."""
    at = int(WARM_UP * run.steps)
    rates = [run.schedule(step, run.steps) for step in range(at - 2, at + 3)]
    return any(after > 10 * before for before, after in pairwise(rates))


FAULT = Fault(
    name="rate-jump-after-warmup",
    says="The rate jumps to far above the best one at the end of the warm-up: the loss explodes.",
    rules=("learning-rate-jump", "learning-rate-absurd", "step-too-large"),
    doses=(10.0, 30.0, 100.0),
    places=(
        Setup("char-gpt", "adamw", schedule="constant"),
        Setup("digits-mlp", "sgd", schedule="constant"),
        Setup("char-rnn", "adam", schedule="constant"),
    ),
    inject=_jump,
    probe=_has_jumped,
)
