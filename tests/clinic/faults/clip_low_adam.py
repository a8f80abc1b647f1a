"""A clip threshold far below the gradients, under an optimizer that divides it out again."""

from faulting import Fault, at
from setups import Setup

FAULT = Fault(
    name="clip-low-adam",
    says="The clip threshold is a hundredth of the usual gradient, which Adam does not feel.",
    rules=(),
    doses=(0.01, 0.003, 0.001),
    places=(
        Setup("digits-mlp", "adamw"),
        Setup("char-gpt", "adamw"),
        Setup("digits-cnn", "adam"),
    ),
    alter=lambda setup, threshold: at(setup, clip=threshold),
    probe=lambda run: run.clip is not None and run.clip <= 0.01,
    decoy=True,
)
