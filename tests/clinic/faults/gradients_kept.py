"""A loop that forgets to set gradients to zero, under an optimizer that divides by their size."""

from faulting import Fault
from mistakes import keep_gradients, were_kept
from setups import Setup

FAULT = Fault(
    name="gradients-kept",
    says="Gradients are never set to zero: each update of Adam follows the sum of all of them.",
    rules=("gradients-not-zeroed",),
    doses=(0.5, 0.2, 0.0),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("char-lstm", "adamw"),
        Setup("digits-vit", "adamw"),
    ),
    inject=keep_gradients,
    probe=were_kept,
)
