"""A deep stack without norms whose layers enlarge what passes through."""

from faulting import Fault
from setups import HERE, Setup, load
from torch import nn

deepen = load(HERE / "faults" / "gradient_fades.py").deepen

FAULT = Fault(
    name="gradient-explodes",
    says="Sixteen plain layers whose start enlarges signal and gradient by a factor each.",
    rules=("gradient-abnormal-at-start",),
    doses=(3.0, 4.0, 6.0),
    places=(
        Setup("digits-mlp", "adamw"),
        Setup("autoencoder", "adamw"),
        Setup("tabular-classification", "adamw"),
    ),
    inject=lambda run, gain: deepen(run, gain, nn.ReLU),
    probe=lambda run: run.notes["ratio"] < 1 / 3_000,
    of_its_task=True,
)
