"""A loop that forgets to set gradients to zero, and an optimizer whose step is as long as they."""

from faulting import Fault
from mistakes import keep_gradients, were_kept
from setups import Setup

FAULT = Fault(
    name="gradients-kept-sgd",
    says="Gradients are never set to zero: the sum of all of them grows, and so does each step.",
    rules=("gradients-not-zeroed",),
    doses=(0.5, 0.2, 0.0),
    places=(
        Setup("digits-mlp", "sgd"),
        Setup("char-gpt", "sgd"),
        Setup("digits-cnn", "sgd-plain"),
    ),
    inject=keep_gradients,
    probe=were_kept,
)
