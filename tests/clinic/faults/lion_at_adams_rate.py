"""Lion at the rate of AdamW: higher than advised, and no harm in small runs."""

from course import Course
from faulting import Fault, at
from setups import Setup, families


def _at_adams_rate(setup: Setup, factor: float) -> Setup:
    rates = families()[setup.family].rates
    return at(setup, rate_factor=factor * rates["adamw"] / rates["lion"])


def _is_adams(run: Course) -> bool:
    """Whether the peak rate is three tenths of AdamW's or more."""
    peak = run.optimizers[0].param_groups[0]["initial_lr"]
    return bool(peak >= 0.3 * run.family.rates["adamw"])


FAULT = Fault(
    name="lion-at-adams-rate",
    says="Lion has the learning rate of AdamW, where a third of it is advised.",
    rules=(),
    doses=(0.4, 0.6, 1.0),
    places=(
        Setup("char-gpt", "lion"),
        Setup("word-gpt", "lion"),
        Setup("masked-lm", "lion"),
    ),
    alter=_at_adams_rate,
    probe=_is_adams,
    decoy=True,
)
