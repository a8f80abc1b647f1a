"""The loss of one update from the model's own output, batch by batch, without waiting for it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class MicroLosses:
    """A forward hook that keeps the training losses of the update being made.

    Copying or pickling the model leaves the hook behind as one that does nothing.
    """

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._scaled = False

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """Keeps the loss of a forward pass in training mode."""
        if not module.training or not torch.is_grad_enabled():
            return
        loss = output.get("loss") if isinstance(output, Mapping) else _first(output)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            # A copy: compiled models and CUDA graphs write the next loss to the same place.
            self._losses.append(loss.detach().reshape(()).clone())
            self._scaled = kwargs.get("num_items_in_batch") is not None

    def take(self) -> Tensor | None:
        """The loss of the update, in the Trainer's own order of additions; None if none was seen.

        A loss that the model divided by the items of the whole update is summed; one that is a mean
        over its micro-batch is divided by their number first.
        """
        losses, self._losses = self._losses, []
        if not losses:
            return None
        total = torch.zeros((), device=losses[0].device)
        for loss in losses:
            total = total + (loss if self._scaled else loss / len(losses))
        return total

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return (_Nothing, ())

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Nothing":
        return _Nothing()


class _Nothing:
    """What a copy of the hook is."""

    def __call__(self, *args: Any) -> None:
        """Does nothing."""


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) and output else None
