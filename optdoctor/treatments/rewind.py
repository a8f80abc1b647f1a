"""Rewind: a run that has gone off its path goes back some steps, and the data goes on.

As PaLM's authors did by hand (arXiv 2204.02311, section 5.1): they went back about 100 steps and
left out 200 to 500 batches, and the spikes did not come again; they saw no fault in the batches as
such. It costs the steps that are lost and memory for two copies. What makes a run diverge by
itself, as a rate that is too high, it does not cure: it will diverge again, until `limit` is
reached.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.treatments.gradients import agreed, scale_of, with_gradients
from optdoctor.treatments.intervention import Intervention
from optdoctor.treatments.left_out import LeftOut, is_left_out_by_scaler
from optdoctor.treatments.moving_limit import MovingLimit
from optdoctor.treatments.needs import gradients_before, whole_gradients
from optdoctor.treatments.norms import are_finite, global_norm
from optdoctor.treatments.snapshots import Snapshot, numbers_of
from optdoctor.treatments.usual_loss import UsualLoss

TIMES, MEMORY = 10.0, 100
"""A gradient is far out above so many times the moving mean of its norm over so many steps."""
SOMEBODY = "another process wants it"


class Rewind(Intervention):
    """Goes back to the older of its two snapshots once `patience` steps in a row had a loss or a
    gradient that was not finite or far out, in any process.

    Snapshots of weights, optimizer state and the model's buffers are taken every `every` steps that
    are sound, and kept on `device` (None: where the tensors lie; two copies of all of it). The loss
    is what `observe` is told as "loss"; without it gradients alone decide. Schedules, random
    generators and gradient scalers go on. The step at which it goes back is left out. After `limit`
    times it says so and switches itself off. Each step waits once for the device.
    """

    name = "rewind"
    safety = "risky"

    def __init__(
        self,
        *,
        every: int = 100,
        patience: int = 10,
        limit: int = 3,
        device: str | None = "cpu",
    ) -> None:
        for what, value in (("every", every), ("patience", patience), ("limit", limit)):
            if value < 1:
                raise ValueError(f"{what} must be at least 1, not {value!r}")
        self.every, self.patience, self.limit, self.device = every, patience, limit, device
        self._left_out = LeftOut()
        self._norms = MovingLimit(TIMES, MEMORY, spike=1.0)
        self._snapshots: deque[Snapshot] = deque(maxlen=2)
        self._losses = UsualLoss()
        self._own: set[str] = set()
        """Settings of groups that were seen to change within a step."""
        self._settings: list[dict[str, float]] = []
        self._forget()

    def _forget(self) -> None:
        self._told: list[float] = []
        """Losses since the last step."""
        self._step = self._due = self._in_a_row = self._used = 0
        self._reason = ""
        self._snapshots.clear()
        self._losses.forget()
        self._norms.forget()

    def check(self) -> None:
        """Refuses steps that take their gradients within, and flat shards."""
        gradients_before(self.name, self.optimizer)
        whole_gradients(self.name, self.model)

    def observe(self, values: Mapping[str, float]) -> None:
        """Takes what the loop logs, before or after the step that it is of."""
        if "loss" in values:
            self._told.append(float(values["loss"]))

    def before(self) -> None:
        """Judges the step, then keeps a snapshot or goes back; all processes do the same."""
        parameters = self.parameters()
        self._settings = [numbers_of(group) for group in self.optimizer.param_groups]
        self._step += 1
        bad = self._loss_is_bad() | self._gradient_is_bad(with_gradients(parameters))
        if not bool(agreed(bad)):
            self._in_a_row = 0
            self._keep()
            return
        self._in_a_row += 1
        if self._in_a_row >= self.patience:
            self._go_back(parameters)

    def _keep(self) -> None:
        if self._step > self._due:
            self._snapshots.append(
                Snapshot(self.optimizer, self.model, self._step - 1, self.device)
            )
            self._due = self._step - 1 + self.every

    def _go_back(self, parameters: list[Tensor]) -> None:
        self._in_a_row = 0
        if not self._snapshots:
            self.note(f"{self.name} has no sound snapshot to go back to: {self._reason}")
            return
        if self._used == self.limit:
            self.note(f"{self.name} has gone back {self.limit} times and gives up: {self._reason}")
            self.undo()
            return
        self._used += 1
        older = self._snapshots[0]
        older.restore(self._own)
        while len(self._snapshots) > 1:
            self._snapshots.pop()
        self._left_out.leave_out(self.optimizer, parameters)
        lost = self._step - 1 - older.step
        self.note(
            f"{self.name} went back to the weights of {older.step} steps from those of "
            f"{self._step - 1}, {lost} steps are lost: {self._reason}",
            old=self._step - 1,
            new=older.step,
        )
        self._due = self._step + self.every

    def _loss_is_bad(self) -> Tensor:
        """Of this process; a sound one is learnt."""
        told, self._told = self._told, []
        wrong = self._losses.take(told)
        self._reason = wrong or SOMEBODY
        return torch.tensor(bool(wrong), device=self.parameters()[0].device)

    def _gradient_is_bad(self, parameters: list[Tensor]) -> Tensor:
        """Of this process; on the device."""
        device = self.parameters()[0].device
        if not parameters or is_left_out_by_scaler(self.optimizer):
            return torch.zeros((), dtype=torch.bool, device=device)
        norm, scale = global_norm(parameters), scale_of(self.optimizer)
        if not self._norms.started:
            self._norms.start(1, norm.device)
        limits = self._norms.limits()
        norm = norm.to(limits.device)
        norm = (norm if scale is None else norm / scale.to(norm.device)).reshape(1)
        self._norms.learn(norm, limits)
        bad = ~are_finite(parameters).all().to(norm.device) | (norm > limits).reshape(())
        if self._reason == SOMEBODY and bool(bad):
            usual = float(self._norms.mean)
            self._reason = f"the gradient's norm is {float(norm):.4g}, lately it was {usual:.4g}"
        return bad.to(device)

    def after(self) -> None:
        """Gives the gradients back, and looks which settings the optimizer itself has changed."""
        self._left_out.give_back()
        for group, old in zip(self.optimizer.param_groups, self._settings, strict=False):
            new = numbers_of(group)
            self._own |= {key for key in old if new.get(key) != old[key]}
        self._settings = []

    def end(self) -> None:
        """Says how often it acted, and lets the snapshots go."""
        self._left_out.give_back()
        if self._used:
            self.note(f"{self.name} went back {self._used} times", kind="undo")
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Counts, and what is usual; not the snapshots, of which a resumed run takes new ones."""
        return {
            "step": self._step,
            "used": self._used,
            "in_a_row": self._in_a_row,
            "losses": self._losses.state(),
            "norms": self._norms.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on; the first snapshot is of the next sound step."""
        self._step, self._used = int(state["step"]), int(state["used"])
        self._in_a_row, self._due = int(state["in_a_row"]), self._step
        self._losses.load(state["losses"])
        self._norms.load_state_dict(state["norms"], self.parameters()[0].device)


INTERVENTION = Rewind
