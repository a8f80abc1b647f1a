"""What the graph behind a loss tells of it.

Names of nodes and what they save are private to torch: seen in 2.13, looked after by
tests/live/test_loss_graph.py. A backward pass frees the tensors that nodes hold, not their shapes.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from optdoctor.trace import Fact

NEGATIVE_LIKELIHOOD = frozenset({"NllLossBackward0", "NllLoss2DBackward0"})
LOGARITHM, RESHAPED = "LogSoftmaxBackward0", "ViewBackward0"
OF_LOGITS = frozenset({LOGARITHM, "BinaryCrossEntropyWithLogitsBackward0"})
"""Nodes that take logits and make probabilities of them."""
PROBABILITIES = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
MOVED = frozenset(
    {
        RESHAPED, "ReshapeAliasBackward0", "UnsafeViewBackward0", "CloneBackward0",
        "ToCopyBackward0", "TransposeBackward0", "PermuteBackward0", "SliceBackward0",
    }
)  # fmt: skip
"""Nodes that hand on the same numbers in another form."""
NEAR = 64
"""Nodes of the graph that are looked at: those of the loss come before those of the model."""
MEAN = 1
"""Of torch's reductions."""


def loss_facts(loss: Tensor) -> dict[str, Fact]:
    """What is known of the loss by its graph: `num_classes`, `loss_input`."""
    return {**_classes(loss.grad_fn), **_input(loss.grad_fn)}


def _classes(node: Any) -> dict[str, Fact]:
    """{"num_classes": count} of a loss that is a mean cross-entropy itself, nothing of any other:
    one that is added to another, smoothed, scaled or of a compiled graph is not told from those."""
    if node is None or node.name() not in NEGATIVE_LIKELIHOOD or node._saved_reduction != MEAN:
        return {}
    node = _before(node)
    if node is not None and node.name() == RESHAPED:  # images of other than two dimensions
        node = _before(node)
    if node is None or node.name() != LOGARITHM:
        return {}
    return {"num_classes": _width(node)}


def _input(loss: Any) -> dict[str, Fact]:
    """{"loss_input": "softmax" or "sigmoid"} where what is taken as logits is made by it."""
    for node in _near(loss):
        if node.name() not in OF_LOGITS:
            continue
        made = _before(node)
        while made is not None and made.name() in MOVED:
            made = _before(made)
        if made is None or made.name() not in PROBABILITIES:
            continue
        is_softmax_twice = node.name() == LOGARITHM and hasattr(made, "_saved_dim")
        if not is_softmax_twice or _width(node) == _width(made):  # else it is of another axis
            return {"loss_input": PROBABILITIES[made.name()]}
    return {}


def _near(node: Any) -> Iterator[Any]:
    """The nodes nearest to the loss, breadth first; not what lies behind logits."""
    waiting, seen = deque([node]), {node}
    while waiting and len(seen) <= NEAR:
        node = waiting.popleft()
        if node is None:
            continue
        yield node
        if node.name() not in OF_LOGITS:
            fresh = [before for before, _ in node.next_functions if before not in seen]
            waiting.extend(fresh)
            seen.update(fresh)


def _before(node: Any) -> Any:
    return node.next_functions[0][0]


def _width(node: Any) -> int:
    """Entries along the axis that a softmax is taken over."""
    shape = node._input_metadata[0].shape
    axis = node._saved_dim  # counted from the end it is 2^64 less that
    return int(shape[axis if axis < len(shape) else axis - 2**64])
