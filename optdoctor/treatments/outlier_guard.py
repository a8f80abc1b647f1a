"""Outlier guard: a step whose gradient is many times as large as lately is left out too.

As the step guard, and beyond it: where a clip makes such a gradient shorter, this one takes nothing
of it. What is left out is data. In small trainings both leaving out a bad batch and clipping it
kept the run whole, and Adam hardly felt the batch with neither. A run whose gradients grow for good
is no outlier: after `patience` steps in a row the guard says so, and learns what is usual anew.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from optdoctor.findings import Safety
from optdoctor.treatments.gradients import scale_of
from optdoctor.treatments.moving_limit import MovingLimit
from optdoctor.treatments.needs import whole_gradients
from optdoctor.treatments.norms import global_norm
from optdoctor.treatments.step_guard import StepGuard


class OutlierGuard(StepGuard):
    """Leaves out steps whose gradient is not finite, or has a norm above `factor` times its moving
    mean over `memory` steps (a mean of logarithms), in all processes if in one.

    The first `memory` steps are only learnt. Steps that are left out are not. Each step waits once
    for the device. Norms are those that the loop's own clip leaves: one that is tight hides all
    outliers.
    """

    name = "outlier-guard"
    safety: ClassVar[Safety] = "risky"

    def __init__(self, factor: float = 10.0, *, memory: int = 100, patience: int = 5) -> None:
        super().__init__(patience=patience)
        self._limit = MovingLimit(factor, memory, spike=1.0)
        self.factor, self.memory = factor, memory
        self._norm: Tensor | None = None
        """Of this step."""

    def check(self) -> None:
        """Refuses what the step guard refuses, and flat shards."""
        super().check()
        whole_gradients(self.name, self.model)

    def is_bad(self, parameters: list[Tensor]) -> Tensor:
        """Not finite, or too large; what is neither is learnt."""
        bad = super().is_bad(parameters)
        self._norm = None
        if not parameters:
            return bad
        norm, scale = global_norm(parameters), scale_of(self.optimizer)
        if not self._limit.started:
            self._limit.start(1, norm.device)
        limits = self._limit.limits()
        norm = norm.to(limits.device)
        self._norm = (norm if scale is None else norm / scale.to(norm.device)).reshape(1)
        self._limit.learn(self._norm, limits)
        return bad | (self._norm > limits).reshape(()).to(bad.device)

    def reason(self, parameters: list[Tensor]) -> str:
        """Not finite, or by how much too large."""
        told = super().reason(parameters)
        if self._norm is None or "another process" not in told:
            return told
        norm, usual = float(self._norm), float(self._limit.mean)
        if norm > float(self._limit.limits()):
            return f"the gradient's norm is {norm:.4g}, lately it was {usual:.4g}"
        return "another process has a gradient that is not finite or too large"

    def out_of_patience(self) -> None:
        """Learns anew: it may be no outlier."""
        self.note(
            f"{self.name} has left out {self.patience} steps in a row: it takes what comes for "
            f"usual now, and guards again after {self.memory} steps"
        )
        self._limit.forget()

    def end(self) -> None:
        """Says how often it acted."""
        super().end()
        self._limit.forget()
        self._norm = None

    def state_dict(self) -> dict[str, Any]:
        """What is usual, too."""
        return {**super().state_dict(), **self._limit.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on."""
        super().load_state_dict(state)
        self._limit.load_state_dict(state, self.parameters()[0].device)


INTERVENTION = OutlierGuard
