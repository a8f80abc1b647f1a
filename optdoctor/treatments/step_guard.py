"""Step guard: a step whose gradients are not finite is left out.

One NaN in a gradient makes NaN of every weight that it reaches, and of Adam's moments for good.
Leaving the step out costs one batch. It does not cure what made the gradient: where every step is
left out the run stands still, with weights that are whole. After `patience` of them in a row the
guard says so.
`continue` on a NaN loss, as it is often seen, is no substitute: a finite loss may have a NaN
gradient, and processes that do not agree wait for each other for ever.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from optdoctor.findings import Safety
from optdoctor.treatments.gradients import agreed, with_gradients
from optdoctor.treatments.intervention import Intervention
from optdoctor.treatments.left_out import LeftOut, is_left_out_by_scaler
from optdoctor.treatments.needs import gradients_before
from optdoctor.treatments.norms import are_finite

PATIENCE = 50
NAMED = 3
"""Tensors that a note names."""


class StepGuard(Intervention):
    """Leaves out steps with a gradient that is not finite, in all processes if in one.

    Each step waits once for the device, and asks all processes where several train. Under a
    gradient scaler, which leaves such steps out by itself, it never acts. Of the first `patience`
    steps in a row each is told; those that follow are only counted.
    """

    name = "step-guard"
    safety: ClassVar[Safety] = "safe"

    def __init__(self, *, patience: int = PATIENCE) -> None:
        if patience < 1:
            raise ValueError(f"patience must be at least 1 step, not {patience!r}")
        self.patience = patience
        self._left_out = LeftOut()
        self._total = self._in_a_row = 0

    def check(self) -> None:
        """Refuses steps that take their gradients within."""
        gradients_before(self.name, self.optimizer)

    def before(self) -> None:
        """Decides; all processes ask at every step."""
        parameters = self.parameters()
        present = with_gradients(parameters)
        if not parameters or not bool(agreed(self.is_bad(present))):
            self._in_a_row = 0
            return
        if is_left_out_by_scaler(self.optimizer):
            return
        self._total += 1
        self._in_a_row += 1
        if self._in_a_row <= self.patience:
            self.note(f"{self.name} left out a step: {self.reason(present)}")
        self._left_out.leave_out(self.optimizer, parameters)
        if self._in_a_row == self.patience:
            self.out_of_patience()

    def is_bad(self, parameters: list[Tensor]) -> Tensor:
        """Whether this process wants the step left out; on the device. All have gradients."""
        if not parameters:
            return torch.zeros((), dtype=torch.bool, device=self.parameters()[0].device)
        return ~are_finite(parameters).all()

    def reason(self, parameters: list[Tensor]) -> str:
        """Why, with the tensors: asked only where a step is left out."""
        if not parameters:
            return "another process wants it"
        names = self.names()
        finite = are_finite(parameters).tolist()
        bad = [
            names.get(id(p), "a tensor without a name")
            for p, is_finite in zip(parameters, finite, strict=True)
            if not is_finite
        ]
        if not bad:
            return "another process has a gradient that is not finite"
        more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        return f"the gradient of {', '.join(bad[:NAMED])}{more} is not finite"

    def out_of_patience(self) -> None:
        """So many in a row were left out, this one too."""
        told = f"{self.name} has left out {self.patience} steps in a row: the run stands still"
        self.note(f"{told}, and what it guards against does not pass")

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


INTERVENTION = StepGuard
