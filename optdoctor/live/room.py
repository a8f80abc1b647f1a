"""Memory of the host that is written to again and again.

A fresh page costs more than the numbers that are written to it, and what was used a moment ago
still lies in the cache.
"""

import torch
from torch import Tensor

LEAST = 1 << 18
"""Elements that are asked for at least."""


class Room:
    """Nothing that it gave may be used once it is cleared."""

    def __init__(self) -> None:
        self._kept: dict[torch.dtype, Tensor] = {}
        self._used: dict[torch.dtype, int] = {}

    def empty(self, num_elements: int, dtype: torch.dtype) -> Tensor:
        """[num_elements], of what it keeps."""
        start = self._used.get(dtype, 0)
        end = start + num_elements
        kept = self._kept.get(dtype)
        if kept is None or end > len(kept):
            # What was given of the smaller one stays valid, and lives as long as it is used.
            kept = self._kept[dtype] = torch.empty(max(2 * end, LEAST), dtype=dtype, device="cpu")
        self._used[dtype] = end
        return kept[start:end]

    def clear(self) -> None:
        """All of it is free again."""
        self._used.clear()


def written(like: Tensor, room: Room, dtype: torch.dtype | None = None) -> Tensor:
    """Memory of this shape that an operation is to fill; on a device, fresh."""
    dtype = dtype or like.dtype
    if like.device.type != "cpu":
        return torch.empty(like.shape, dtype=dtype, device=like.device)
    return room.empty(like.numel(), dtype).view(like.shape)
