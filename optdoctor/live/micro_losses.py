"""The loss of one update, micro-batch by micro-batch, without waiting for it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class MicroLosses:
    """Adds up the losses of the micro-batches of the update being made."""

    def __init__(self) -> None:
        self._total: Tensor | None = None

    @torch.no_grad()
    def add(self, loss: Any) -> None:
        """Takes the loss of one micro-batch, already divided as its update asks for."""
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            return
        if self._total is None:
            self._total = torch.zeros((), device=loss.device)
        # In place, from 0 in float32: the Trainer adds up in this order and gets the same bits.
        self._total += loss.reshape(())

    def take(self) -> Tensor | None:
        """The loss of the update; None if none was seen."""
        total, self._total = self._total, None
        return total


@dataclass
class Window:
    """The losses between two rows of a log, as sums on their device."""

    count: int = 0
    total: Tensor | float = 0.0
    size: Tensor | float = 0.0
    """Sum of their absolute values."""

    def add(self, loss: Tensor) -> None:
        """Takes the loss of one update."""
        self.count += 1
        self.total, self.size = self.total + loss, self.size + loss.abs()
