"""Adam's first moment averages over more updates than the run has."""

from course import Course
from faulting import Fault, at
from setups import Setup


def _remembers_long(run: Course) -> bool:
    """Whether the first moment still holds more than half of the gradient of 60 updates ago."""
    beta1: float = run.optimizers[0].param_groups[0]["betas"][0]
    return beta1**60 > 0.5


FAULT = Fault(
    name="beta1-too-long",
    says="beta1 is so high that the first moment points where the loss fell long ago.",
    rules=("momentum-too-long",),
    doses=(0.99, 0.999, 0.9995),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "adamw"),
        Setup("char-lstm", "adamw"),
    ),
    alter=lambda setup, beta1: at(setup, betas=(beta1, 0.999)),
    probe=_remembers_long,
    static=True,
)
