"""The same few batches are trained on over and over."""

from course import Course
from faulting import Fault
from setups import Setup


def _repeat(run: Course, batches: int) -> None:
    every = run.batch
    run.notes["seen"] = set()

    def again(i: int):  # type: ignore[no-untyped-def]
        run.notes["seen"].add(i % batches)
        return every(i % batches)

    run.batch = again


def _are_few(run: Course) -> bool:
    """Whether each batch came back ten times and more."""
    return len(run.notes["seen"]) * 10 <= run.steps


FAULT = Fault(
    name="few-examples",
    says="A handful of batches is learnt by heart: the evaluations turn and rise.",
    rules=("bimodal-gap",),
    doses=(8, 4, 2),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("char-lstm", "adam"),
        Setup("digits-vit", "adamw"),
    ),
    inject=_repeat,
    probe=_are_few,
    slow=True,
)
