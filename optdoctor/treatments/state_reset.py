"""State reset: an optimizer forgets its moments and counts its steps from the beginning, once.

Meant for data that changed, where old moments are of other gradients. It rarely helps: in small
trainings whose data changed at once it was no better than doing nothing (loss 2.296 and 2.293) or
worse. Moments and step counter have to go together. Who sets the second moment alone to zero
multiplies the next step by 1/sqrt(1 - beta2), 31.6 for 0.999, as the correction for its beginning
at zero is spent: losses rose to 17 and 33, against 3.0 and 5.5 untouched. After a full reset the
first steps are those of a new optimizer, about one learning rate for each weight: without a warmup
that may be too much for a trained model.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.optimizers import probe_of
from optdoctor.treatments.gradients import agreed, scale_of, with_gradients
from optdoctor.treatments.intervention import Intervention, Refused
from optdoctor.treatments.needs import gradients_before
from optdoctor.treatments.norms import global_norm

FAMILIES = {
    "adabelief",
    "adafactor",
    "adam",
    "adamax",
    "ademamix",
    "lamb",
    "lion",
    "nadam",
    "radam",
    "rmsprop",
    "sgd",
}
"""Those that make the state of a tensor at its next step where there is none."""
COUNTERS = ("step", "k")
"""What groups call a counter of their own."""


class StateReset(Intervention):
    """Drops the state of all tensors, moments and step counters together, before the next step.

    With `when_shift` it waits for a shift: the mean over `window` steps of the squared norm of the
    gradient (its variance, where its mean is small beside its noise) above `when_shift` times, or
    below 1/`when_shift` of, that of the `window` steps before. One wait for the device a window. It
    resets once. Steps whose gradient is not finite do not count.

    Undone, the old state does not come back.

    Refused: optimizers whose groups count the steps, as schedule-free ones and Prodigy, where the
    counter could not go with the moments; those that make their state when they are made, as
    Adagrad; and, without `when_shift`, where there is no state yet.
    """

    name = "state-reset"
    safety = "risky"
    _done = False
    _steps = 0
    """Since the last window began."""
    _old: float | None = None
    """Mean of the window before."""
    _sums: Tensor | None = None
    """[2] sum of squared norms of this window, how many of them."""

    def __init__(self, *, when_shift: float | None = None, window: int = 100) -> None:
        if when_shift is not None and not 1 < when_shift < float("inf"):
            raise ValueError(f"when_shift is a ratio above 1, not {when_shift!r}")
        if window < 1:
            raise ValueError(f"window must be at least 1 step, not {window!r}")
        self.when_shift, self.window = when_shift, window

    def check(self) -> None:
        """Refuses where moments and counter could not go together."""
        gradients_before(self.name, self.optimizer)
        kind = type(self.optimizer).__name__
        if any(key in group for group in self.optimizer.param_groups for key in COUNTERS):
            raise Refused(
                f"the groups of {kind} count its steps, and {self.name} resets what tensors hold",
                "make a new optimizer",
            )
        if probe_of(self.optimizer).family not in FAMILIES:
            raise Refused(
                f"{self.name} does not know that {kind} makes its state anew",
                "make a new optimizer",
            )
        if self.when_shift is None and not self._holding():
            raise Refused(f"{kind} has no state yet: it is as {self.name} would leave it", "wait")

    def before(self) -> None:
        """Resets, if it is time and was not done."""
        if self._done:
            return
        if self.when_shift is None:
            self._reset("at the user's wish")
            return
        self._learn()

    def _learn(self) -> None:
        present = with_gradients(self.parameters())
        if present:
            scale, square = scale_of(self.optimizer), global_norm(present).square()
            square = square if scale is None else square / scale.to(square.device).square()
            finite = torch.isfinite(square)
            new = torch.stack([torch.where(finite, square, 0.0), finite.to(square.dtype)]).double()
            self._sums = new if self._sums is None else self._sums + new
        self._steps += 1
        if self._steps < self.window:
            return
        total, count = (0.0, 0.0) if self._sums is None else self._sums.tolist()
        mean, old = total / count if count else 0.0, self._old
        self._steps, self._sums, self._old = 0, None, mean
        ratio = mean / old if old and mean else 1.0
        limit = self.when_shift or 1.0
        flag = torch.tensor(float(max(ratio, 1 / ratio) > limit), device=self._device())
        if bool(agreed(flag > 0)):
            self._reset(
                f"the mean squared gradient norm went from {old or 0.0:.3g} to {mean:.3g} within "
                f"{2 * self.window} steps"
            )

    def _reset(self, why: str) -> None:
        self._done = True
        holding = self._holding()
        for parameter in holding:
            del self.optimizer.state[parameter]
        self.note(
            f"{self.name} dropped moments and step counters of {len(holding)} tensors, {why}; it "
            "rarely helps, and the next steps are as large as the first",
            len(holding),
            0,
        )

    def _holding(self) -> list[Tensor]:
        state = self.optimizer.state
        return [p for p in self.parameters() if state.get(p)]

    def _device(self) -> torch.device:
        return self.parameters()[0].device

    def end(self) -> None:
        """Nothing comes back."""
        self._done, self._steps, self._old, self._sums = False, 0, None, None

    def state_dict(self) -> dict[str, Any]:
        """Whether it was done, and what it has measured."""
        sums = None if self._sums is None else self._sums.tolist()
        return {"done": self._done, "steps": self._steps, "old": self._old, "sums": sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on."""
        self._done, self._steps, self._old = state["done"], state["steps"], state["old"]
        sums = state["sums"]
        kept = None if sums is None else torch.tensor(sums, dtype=torch.float64)
        self._sums = None if kept is None else kept.to(self._device())


INTERVENTION = StateReset
