"""The optimizer is built from a list of layers that lacks one in the middle."""

from faulting import Fault
from mistakes import forget_layer
from setups import Setup

FAULT = Fault(
    name="forgotten-middle-layer",
    says="A layer between others is in no optimizer: the others learn around what it was drawn as.",
    rules=("parameters-without-optimizer",),
    doses=(1.0, 0.3, 0.1),
    places=(
        Setup("digits-mlp", "sgd"),
        Setup("autoencoder", "adamw"),
        Setup("tabular-regression", "adamw"),
    ),
    **forget_layer(lambda layers: layers[len(layers) // 2]),
    static=True,
)
