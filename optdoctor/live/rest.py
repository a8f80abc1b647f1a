"""Whether a step that a gradient scaler told to make no update made none.

Optimizers that divide by the scale in their own step are called on overflow too, and have to heed
the scaler's mark by themselves.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


class Rest:
    """The smallest tensor with a gradient, as it was before the step; of hosts alone, where the
    mark can be read before the step."""

    @torch.no_grad()
    def __init__(self, parameters: Iterable[Tensor]) -> None:
        reached = [p for p in parameters if p.grad is not None]
        self._tensor = min(reached, key=Tensor.numel, default=None)
        self._before = None if self._tensor is None else self._tensor.detach().clone()

    @torch.no_grad()
    def broken(self) -> bool:
        """Whether the step has moved it; what was NaN and is NaN did not move."""
        if self._tensor is None or self._before is None:
            return False
        now, before = self._tensor.detach(), self._before
        return not torch.allclose(now, before, rtol=0, atol=0, equal_nan=True)
