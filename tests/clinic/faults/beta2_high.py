"""A second moment that averages over far more updates than the run has: no harm here."""

from course import Course
from faulting import Fault, at
from setups import Setup


def _remembers_long(run: Course) -> bool:
    beta2: float = run.optimizers[0].param_groups[0]["betas"][1]
    return 1 / (1 - beta2) > run.steps


FAULT = Fault(
    name="beta2-high",
    says="beta2 is so high that the second moment is a mean over the whole run.",
    rules=(),
    doses=(0.9999, 0.99999, 0.9995),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "adam"),
        Setup("word-gpt", "adamw"),
    ),
    alter=lambda setup, beta2: at(setup, betas=(0.9, beta2)),
    probe=_remembers_long,
    decoy=True,
)
