"""Lion at a rate that was high for AdamW, of which it wants a third to a tenth."""

from course import Course
from faulting import Fault, at
from setups import Setup, families


def _times_adamw(setup: Setup, factor: float) -> Setup:
    rates = families()[setup.family].rates
    return at(setup, rate_factor=factor * rates["adamw"] / rates["lion"])


def _is_above_adamw(run: Course) -> bool:
    rates = families()[run.setup.family].rates
    return bool(run.optimizers[0].param_groups[0]["initial_lr"] > 2 * rates["adamw"])


FAULT = Fault(
    name="lion-rate-of-adamw",
    says="Lion runs at many times the best rate of AdamW: each update moves every weight so far.",
    rules=("learning-rate-absurd", "step-too-large"),
    doses=(10, 30, 100),
    places=(
        Setup("digits-cnn", "lion"),
        Setup("autoencoder", "lion"),
        Setup("char-gpt", "lion"),
    ),
    alter=_times_adamw,
    probe=_is_above_adamw,
    static=True,
)
