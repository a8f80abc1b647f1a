"""Micro-batches are added up and not averaged, under an optimizer that feels it."""

from faulting import Fault, at
from mistakes import add_up, is_sum
from setups import Setup

FAULT = Fault(
    name="accumulation-sum",
    says="The gradient is a sum over micro-batches: SGD takes steps that many times too long.",
    rules=("accumulation-not-normalised",),
    doses=(8, 16, 4),
    places=(
        Setup("digits-mlp", "sgd"),
        Setup("digits-cnn", "sgd"),
        Setup("autoencoder", "sgd"),
    ),
    alter=lambda setup, several: at(
        setup, accumulate=several, batch_factor=setup.batch_factor / several
    ),
    inject=add_up,
    probe=is_sum,
    decoy=False,
)
