"""Step guard: a step whose gradients are not finite is left out.

One NaN in a gradient makes NaN of every weight that it reaches, and of Adam's moments for good.
Leaving the step out costs one batch. It does not cure what made the gradient: where every step is
left out the run stands still, with weights that are whole. After `patience` of them in a row the
guard says so.
`continue` on a NaN loss, as it is often seen, is no substitute: a finite loss may have a NaN
gradient, and processes that do not agree wait for each other for ever.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.treatments.gradients import agreed, with_gradients
from optdoctor.treatments.intervention import Intervention
from optdoctor.treatments.left_out import LeftOut

PATIENCE = 50
NAMED = 3
"""Tensors that a note names."""


class StepGuard(Intervention):
    """Leaves out steps with a gradient that is not finite, in all processes if in one.

    Each step waits once for the device, and asks all processes where several train. Under a
    gradient scaler, which leaves such steps out by itself, it never acts.
    """

    name = "step-guard"
    safety = "safe"

    def __init__(self, *, patience: int = PATIENCE) -> None:
        if patience < 1:
            raise ValueError(f"patience must be at least 1 step, not {patience!r}")
        self.patience = patience
        self._left_out = LeftOut()
        self._total = self._in_a_row = 0

    def before(self) -> None:
        """Decides; all processes ask at every step."""
        parameters = self.parameters()
        own = self.is_bad(with_gradients(parameters))
        if not bool(agreed(own)):
            self._in_a_row = 0
            return
        self._total += 1
        self._in_a_row += 1
        if self._in_a_row == self.patience:
            told = f"{self.name} has left out {self.patience} steps in a row: the run stands still"
            self.note(f"{told}, and what it guards against does not pass")
        self.note(f"{self.name} left out a step: {self.reason(with_gradients(parameters))}")
        self._left_out.leave_out(self.optimizer, parameters)

    def is_bad(self, parameters: list[Tensor]) -> Tensor:
        """Whether this process wants the step left out; on the device."""
        if not parameters:
            return torch.zeros((), dtype=torch.bool)
        sums = torch.stack([_sum(p).to(parameters[0].device) for p in parameters])
        return ~torch.isfinite(sums).all()

    def reason(self, parameters: list[Tensor]) -> str:
        """Why, with the tensors: asked only where a step is left out."""
        names = self.names()
        bad = [
            names.get(id(p), "a tensor without a name")
            for p in parameters
            if not bool(torch.isfinite(_sum(p)))
        ]
        if not bad:
            return "another process has a gradient that is not finite"
        more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        return f"the gradient of {', '.join(bad[:NAMED])}{more} is not finite"

    def after(self) -> None:
        """Gives the gradients back."""
        self._left_out.give_back()

    def end(self) -> None:
        """Says how often it acted."""
        self._left_out.give_back()
        if self._total:
            self.note(f"{self.name} left out {self._total} steps in all", kind="undo")
        self._total = self._in_a_row = 0

    def state_dict(self) -> dict[str, Any]:
        """How many in a row."""
        return {"total": self._total, "in_a_row": self._in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on counting."""
        self._total, self._in_a_row = int(state["total"]), int(state["in_a_row"])


def _sum(parameter: Tensor) -> Tensor:
    """Finite if all of the gradient is: 0 times a number is 0, times NaN or infinity NaN."""
    gradient = parameter.grad
    assert gradient is not None
    gradient = gradient.detach()
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    if hasattr(gradient, "to_local"):
        gradient = gradient.to_local()
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient)
    return (gradient * 0).sum(dtype=torch.float32)


INTERVENTION = StepGuard
