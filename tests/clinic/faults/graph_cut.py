"""A detach in the middle of the network: what lies below it never has a gradient."""

import re
from typing import Any

from course import Course
from faulting import Fault
from setups import Setup
from torch import Tensor, nn

BLOCK = re.compile(r"(blocks|layers|layer)\.\d+$")


def _detached(module: nn.Module, inputs: Any, output: Any) -> Any:
    if isinstance(output, Tensor):
        return output.detach()
    return (output[0].detach(), *output[1:])


def _cut(run: Course, share: float) -> None:
    """Cuts the graph above that share of the blocks, or of the layers where there are none."""
    modules = dict(run.model.named_modules())
    blocks = [m for name, m in modules.items() if BLOCK.search(name)]
    blocks = blocks or [m for m in modules.values() if isinstance(m, nn.Linear)][:-1]
    blocks[min(max(round(share * len(blocks)), 1), len(blocks)) - 1].register_forward_hook(
        _detached
    )


def _is_cut(run: Course) -> bool:
    """Whether a part of the trained tensors, and not all of them, is without a gradient."""
    none = [p.grad is None for p in run.model.parameters() if p.requires_grad]
    return any(none) and not all(none)


FAULT = Fault(
    name="graph-cut",
    says="A detach in the forward pass: the lower half of the network stays as it began.",
    rules=("gradient-never-arrives",),
    doses=(0.6, 0.76, 1.0),
    places=(
        Setup("autoencoder", "adamw"),
        Setup("char-gpt", "adamw"),
        Setup("masked-lm", "adamw"),
    ),
    inject=_cut,
    probe=_is_cut,
)
