"""A clip threshold far below the gradients, under an optimizer that feels it."""

from course import Course
from faulting import Fault, at
from setups import Setup


def _note_norm(run: Course, threshold: float) -> None:
    """Writes down the gradient's norm before the clip, at the start."""

    def note(run: Course, step: int) -> None:
        if step == 1:
            squares = [
                float((p.grad**2).sum()) for p in run.model.parameters() if p.grad is not None
            ]
            run.notes["clipped"] = sum(squares) ** 0.5

    run.before_step.append(note)


def _is_shortened(run: Course) -> bool:
    """Whether the second gradient left the clip with the norm of the threshold."""
    return bool(abs(run.notes["clipped"] / (run.clip or 1.0) - 1) < 0.01)


FAULT = Fault(
    name="clip-too-low",
    says="The clip threshold is a hundredth of the usual gradient: SGD crawls.",
    rules=("clipping-too-low",),
    doses=(0.01, 0.003, 0.001),
    places=(
        Setup("digits-mlp", "sgd"),
        Setup("digits-cnn", "sgd"),
        Setup("tabular-classification", "sgd"),
    ),
    alter=lambda setup, threshold: at(setup, clip=threshold),
    inject=_note_norm,
    probe=_is_shortened,
)
