"""A decoy: the smallest gradients round to 0 in float16, and nothing comes of it."""

from course import Course
from faulting import Fault
from setups import Setup


def _round(run: Course, scale: float) -> None:
    """Each gradient is taken into float16 and back, multiplied by that."""
    run.notes["zero"] = []

    def act(course: Course, step: int) -> None:
        zero = total = 0
        for parameter in course.model.parameters():
            if parameter.grad is not None:
                parameter.grad.copy_((parameter.grad * scale).half().float() / scale)
                zero += int((parameter.grad == 0).sum())
                total += parameter.numel()
        run.notes["zero"].append(zero / max(total, 1))

    run.before_step.append(act)


def _rounds_much(run: Course) -> bool:
    """Whether a tenth of all entries was 0 in the mean of the run."""
    zero = run.notes["zero"]
    return sum(zero) / len(zero) > 0.1


FAULT = Fault(
    name="gradients-rounded-to-zero",
    says="The smallest gradients round to 0 in float16; those that count do not.",
    rules=(),
    doses=(2e-4, 1e-4, 5e-5),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "sgd"),
        Setup("autoencoder", "adamw"),
    ),
    inject=_round,
    probe=_rounds_much,
    decoy=True,
)
