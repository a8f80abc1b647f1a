"""The optimizer is built from a list of layers that lacks the last one: it stays as it began."""

from faulting import Fault
from mistakes import forget_layer
from setups import Setup

FAULT = Fault(
    name="forgotten-last-layer",
    says="The last layer is in no optimizer: the others learn around what it was drawn as.",
    rules=("parameters-without-optimizer",),
    doses=(1.0, 0.3, 0.1),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "sgd"),
        Setup("char-lstm", "adamw"),
    ),
    **forget_layer(lambda layers: layers[-1]),
    static=True,
)
