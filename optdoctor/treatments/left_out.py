"""Leaving out one step of an optimizer from within its hooks."""

from typing import Any

from torch import Tensor

from optdoctor.treatments.gradients import with_gradients

MARK = "_left_out_by_optdoctor"
"""Tells the doctor, who sees a step without gradients, that it is none. Not `found_inf`, by which a
scaler tells it to fused optimizers: others refuse to step with it (torch 2.13)."""


class LeftOut:
    """Takes the gradients away for one step and gives the very tensors back after it: no weight,
    no moment, no decay and no counter of a tensor moves. A counter that an optimizer keeps for
    itself, as the one of schedule-free, goes on."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor | None]] = []
        self._optimizer: Any = None

    def leave_out(self, optimizer: Any, parameters: list[Tensor]) -> None:
        """The step that is about to be made."""
        present = with_gradients(parameters)
        self._optimizer = optimizer
        setattr(optimizer, MARK, True)
        for parameter in present:
            self._kept.append((parameter, parameter.grad))
            parameter.grad = None

    def give_back(self) -> None:
        """The step has ended."""
        if self._optimizer is None:
            return
        for parameter, gradient in self._kept:
            if parameter.grad is None:
                parameter.grad = gradient
        delattr(self._optimizer, MARK)
        self._kept, self._optimizer = [], None


def is_left_out(optimizer: Any) -> bool:
    """Whether the step at work is none."""
    return getattr(optimizer, MARK, False) is True


def is_left_out_by_scaler(optimizer: Any) -> bool:
    """Whether a gradient scaler has told a fused optimizer to leave this step out; waits for the
    device where it has told anything."""
    mark = getattr(optimizer, "found_inf", None)
    return isinstance(mark, Tensor) and bool(mark > 0)
