"""Micro-batches are added up and not averaged, under an optimizer that does not feel it."""

from faulting import Fault, at
from mistakes import add_up, is_sum
from setups import Setup

FAULT = Fault(
    name="accumulation-sum-adam",
    says="The gradient is a sum over micro-batches, which Adam divides away again.",
    rules=(),
    doses=(8, 16, 4),
    places=(
        Setup("digits-mlp", "adamw"),
        Setup("digits-cnn", "adamw"),
        Setup("char-gpt", "adam"),
    ),
    alter=lambda setup, several: at(
        setup, accumulate=several, batch_factor=setup.batch_factor / several
    ),
    inject=add_up,
    probe=is_sum,
    decoy=True,
)
