"""Settings that rise over a number of steps to what the user set, and are left alone from there."""

from collections.abc import Mapping
from typing import Any

from optdoctor.treatments.intervention import Intervention
from optdoctor.treatments.rate_needs import warmup_steps
from optdoctor.treatments.rates import Borrowed


class Ramp(Intervention):
    """Multiplies a setting by a share that is 1 from step `steps` on, counted from the first after
    it is switched on. A step that a gradient scaler leaves out is none, unless the optimizer is
    fused; nothing is read from the device, and all processes count alike.
    """

    what = "rates"
    """What it multiplies, for the notes."""

    def __init__(self, steps: int | None = None) -> None:
        if steps is not None and steps < 1:
            raise ValueError(f"steps must be at least 1, not {steps!r}")
        self.steps = steps
        self._borrowed = Borrowed()
        self._taken, self._total = 0, 0

    def default_steps(self) -> int:
        """Its length where none was given."""
        return warmup_steps(self.optimizer)

    def share(self, progress: float) -> float:
        """Of the setting, at a progress above 0 and below 1."""
        return progress

    def multiply(self, share: float) -> None:
        """For the step that begins."""
        self._borrowed.multiply(self.optimizer, share)

    def begin(self) -> None:
        """Counts from here."""
        self._taken = 0
        self._total = self.default_steps() if self.steps is None else self.steps
        if self._total > 1:
            first = self.share(1 / self._total)
            self.note(
                f"{self.name} begins: {self.what} times {first:.3g}, as set from step "
                f"{self._total} on",
                1.0,
                first,
            )

    def before(self) -> None:
        """One step further up."""
        if self._taken >= self._total:
            return
        self._taken += 1
        if self._taken < self._total:
            self.multiply(self.share(self._taken / self._total))
        elif self._total > 1:
            last = self.share(1 - 1 / self._total)
            self.note(
                f"{self.name} is over after {self._total} steps: {self.what} are as set", last, 1.0
            )

    def after(self) -> None:
        """The settings as they were."""
        self._borrowed.give_back()

    def end(self) -> None:
        """Says where it stood, if it was not over."""
        self._borrowed.give_back()
        if 0 < self._taken < self._total:
            share = self.share(self._taken / self._total)
            self.note(
                f"{self.name} is broken off after {self._taken} of {self._total} steps:"
                f" {self.what} jump from {share:.3g} of what is set to all of it",
                share,
                1.0,
                kind="undo",
            )

    def state_dict(self) -> dict[str, Any]:
        """How far it is."""
        return {"taken": self._taken, "total": self._total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from there."""
        if state:
            self._taken, self._total = int(state["taken"]), int(state["total"])
