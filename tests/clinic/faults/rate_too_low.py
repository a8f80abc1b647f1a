"""The learning rate is far too low for the length of the run."""

from course import Course
from faulting import Fault, at
from setups import Setup


def _is_low(run: Course) -> bool:
    """Whether the peak rate is a twentieth of that of the family or less."""
    peak = max(group["initial_lr"] for o in run.optimizers for group in o.param_groups)
    return bool(peak <= run.family.rates[run.setup.optimizer] / 20)


FAULT = Fault(
    name="rate-too-low",
    says="The learning rate is a hundred times too low: the loss falls far too slowly.",
    rules=("step-too-small", "learning-rate-absurd"),
    doses=(1 / 100, 1 / 300, 1 / 1000),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "sgd"),
        Setup("word-gpt", "lion"),
    ),
    alter=lambda setup, factor: at(setup, rate_factor=factor),
    probe=_is_low,
)
