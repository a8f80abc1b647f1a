"""Whether the copies of weights that autocast makes outlive an update.

Autocast casts each float32 weight once and keeps the copy until its outermost context is left. A
context around the whole loop is never left: the forward pass goes on with the copies of its first
update. Told by a weight of the doctor's own, whose copy is the same node of the graph or another.
Nothing is read from a device.
"""

from typing import Any

import torch
from torch import nn

from optdoctor.trace import Fact

LOOKS = 3
"""Updates that are looked at: two, and one more as the first may lie in a trial run of its own."""


class KeptCasts:
    """Asked before each of the first updates, while it is `wanted`."""

    def __init__(self, model: nn.Module) -> None:
        self._looks = 0 if _is_compiled(model) else LOOKS
        self._weight: nn.Parameter | None = None
        self._copy: Any = None

    @property
    def wanted(self) -> bool:
        """Whether it is not known yet."""
        return self._looks > 0

    def news(self, device: torch.device) -> dict[str, Fact]:
        """{"casts_kept": "yes"} where the copy of the last update is still in use, "no" where none
        of the first updates had that."""
        self._looks -= 1
        is_on = torch.is_autocast_enabled(device.type) and torch.is_autocast_cache_enabled()
        before, self._copy = self._copy, self._cast(device) if is_on else None
        if before is not None and before is self._copy:
            self._looks = 0
            return {"casts_kept": "yes"}
        return {} if self.wanted else {"casts_kept": "no"}

    def _cast(self, device: torch.device) -> Any:
        """The node that copies the weight for a product of matrices."""
        if self._weight is None:
            self._weight = nn.Parameter(torch.zeros(8, 8, device=device, dtype=torch.float32))
        with torch.enable_grad():
            node: Any = torch.mm(self._weight, self._weight).grad_fn
        return node.next_functions[0][0]


def _is_compiled(model: nn.Module) -> bool:
    """Then its graph has the casts in it: they are made at every pass."""
    return any(
        hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None
        for m in model.modules()
    )
