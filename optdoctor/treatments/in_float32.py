"""One step of an optimizer in float32, though weights or state are of 16 bits."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def is_half(tensor: Tensor) -> bool:
    """Whether it is of 16 bits; shards of a tensor are left alone."""
    return tensor.dtype in HALF and not hasattr(tensor, "to_local")


class InFloat32:
    """Lends float32 weights, gradients and state to a step, and takes them away again.

    `master_of` gives the float32 weights of a half tensor for this step. After it the parameter
    holds its own 16-bit storage again, into which `written` puts what is to be kept of the new
    float32 weights; its gradient is the very tensor that it was.
    """

    def __init__(
        self,
        master_of: Callable[[Tensor], Tensor],
        written: Callable[[Tensor, Tensor, Tensor], None],
    ) -> None:
        self._master_of, self._written = master_of, written
        self._lent: list[tuple[Tensor, Tensor, Tensor | None, Tensor]] = []

    def lend(self, optimizer: Any, parameters: list[Tensor]) -> None:
        """Before the step. Parameters without a gradient keep what they have."""
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            if is_half(parameter):
                half = parameter.data
                master = self._master_of(parameter)
                self._lent.append((parameter, half, gradient, master))
                parameter.grad = None
                parameter.data = master
                parameter.grad = gradient.to(torch.float32)
            widen(optimizer.state.get(parameter))

    def take_back(self) -> None:
        """After the step."""
        while self._lent:
            parameter, half, gradient, master = self._lent.pop()
            new = parameter.data
            parameter.grad = None
            parameter.data = half
            self._written(parameter, half, new)
            parameter.grad = gradient
            if new is not master and new.data_ptr() != master.data_ptr():
                master.copy_(new)  # an optimizer that puts new storage in place


def widen(state: Any) -> None:
    """The 16-bit moments of one tensor in float32, for good: the step finds and leaves them so."""
    if isinstance(state, dict):
        for name, value in state.items():
            if isinstance(value, Tensor) and is_half(value):
                state[name] = value.to(torch.float32)


def narrow(state: Any, dtype: torch.dtype) -> None:
    """Moments back in the dtype in which the optimizer would keep them: not its counters."""
    if isinstance(state, dict):
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dtype == torch.float32 and value.dim() > 0:
                state[name] = value.to(dtype)
