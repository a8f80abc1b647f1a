"""The learning rate of SGD is too high: steps overshoot and the loss leaves."""

from course import Course
from faulting import Fault, at
from setups import Setup


def _is_high(run: Course) -> bool:
    """Whether the peak rate is three times that of the family or more."""
    peak = max(group["initial_lr"] for o in run.optimizers for group in o.param_groups)
    return bool(peak >= 3 * run.family.rates[run.setup.optimizer])


FAULT = Fault(
    name="rate-too-high-sgd",
    says="The rate of SGD is many times too high: the loss jumps up and units die.",
    rules=("learning-rate-absurd", "step-too-large", "divergence"),
    doses=(10.0, 30.0, 100.0),
    places=(
        Setup("digits-mlp", "sgd", schedule="constant"),
        Setup("digits-cnn", "sgd", schedule="constant"),
        Setup("char-rnn", "sgd"),
    ),
    alter=lambda setup, factor: at(setup, rate_factor=factor),
    probe=_is_high,
)
