"""Weight decay so strong that weights forget within tens of updates."""

from course import Course
from faulting import Fault, at
from setups import Setup, families


def _forgetful(setup: Setup, taken: float) -> Setup:
    """A decay that takes that share of a weight at an update of the family's rate."""
    rate = families()[setup.family].rates[setup.optimizer]
    longer = 10 if setup.optimizer == "sgd" else 1  # its momentum is 0.9
    return at(setup, weight_decay=taken / rate / longer)


def _is_forgetful(run: Course) -> bool:
    """Whether rate times decay, over 1 minus momentum, leaves a memory of 50 updates or less."""
    group = run.optimizers[0].param_groups[0]
    taken = group["initial_lr"] * group["weight_decay"] / (1 - group.get("momentum", 0.0))
    return bool(taken >= 1 / 50)


FAULT = Fault(
    name="decay-too-strong",
    says="Weight decay takes several percent of the weights at each update: they shrink away.",
    rules=("decay-shrinks-weights",),
    doses=(0.05, 0.15, 0.5),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "sgd"),
        Setup("autoencoder", "lion"),
    ),
    alter=_forgetful,
    probe=_is_forgetful,
)
