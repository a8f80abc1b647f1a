"""Whole-data SGD at a rate where gradients turn back and forth, and the loss falls all the same."""

from course import Course
from faulting import Fault, at
from setups import Setup


def _count_turns(run: Course, factor: float) -> None:
    """Counts updates whose gradient points against the one before."""
    largest = max(run.model.parameters(), key=lambda p: p.numel())
    run.notes["turns"] = 0

    def compare(run: Course, step: int) -> None:
        before, now = run.notes.get("gradient"), largest.grad
        if now is None:
            return
        if before is not None and float((before * now).sum()) < 0:
            run.notes["turns"] += 1
        run.notes["gradient"] = now.clone()

    run.before_step.append(compare)


FAULT = Fault(
    name="edge-of-stability",
    says="Large batches and a large rate of SGD: two-cycles of the gradient that do no harm.",
    rules=(),
    doses=(1.25, 1.5, 2.0),
    places=(
        Setup("autoencoder", "sgd", schedule="constant", batch_factor=20.0),
        Setup("contrastive", "sgd", schedule="constant", batch_factor=8.0),
        Setup("digits-cnn", "sgd", schedule="constant", batch_factor=40.0),
    ),
    alter=lambda setup, factor: at(setup, rate_factor=factor),
    inject=_count_turns,
    probe=lambda run: run.notes["turns"] > 0.05 * run.steps,
    decoy=True,
)
