"""The learning rate of an adaptive optimizer is far too high."""

from course import Course
from faulting import Fault, at
from setups import Setup


def _is_high(run: Course) -> bool:
    """Whether the peak rate is ten times that of the family or more."""
    peak = max(group["initial_lr"] for o in run.optimizers for group in o.param_groups)
    return bool(peak >= 10 * run.family.rates[run.setup.optimizer])


FAULT = Fault(
    name="rate-too-high",
    says="The learning rate is 30 times too high or more: the loss stays above what it could be.",
    rules=("learning-rate-absurd", "step-too-large"),
    doses=(30.0, 100.0, 300.0),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "adam"),
        Setup("word-gpt", "lion"),
    ),
    alter=lambda setup, factor: at(setup, rate_factor=factor),
    probe=_is_high,
    static=True,
)
