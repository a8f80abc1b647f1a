"""The treatments of one run: which are switched on, what they did, and whether they did harm."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from optdoctor.errors import Told
from optdoctor.findings import Diagnosis
from optdoctor.knowledge.losses import NEVER_FALLING
from optdoctor.store import Series
from optdoctor.trace import EventKind, Fact, Trace
from optdoctor.treatments import Intervention, Refused, interventions, make
from optdoctor.treatments.around import Seeing, around

SAFE = "safe"
"""What is asked for who wants every safe treatment that a finding proposes, and no other."""
BEFORE, AFTER = 64, 16
"""Losses of before a treatment that the guard compares with, and the least of after it."""
FIRST_LOOK, LAST_LOOK = 16, 512
"""Updates after which the guard looks, ever twice as many; what comes later is hardly its doing."""
BEYOND = 3.0
"""Robust deviations above the highest loss of before at which a treatment is undone: heuristic. In
140 healthy runs of the clinic's open half, 3,690 updates at which one that does nothing might have
been switched on, it would have been undone after 24: 21 of GANs, 3 of one autoencoder by Lion."""


class Treating:
    """Switches treatments on and off, tells the run of it, and undoes what makes the loss worse.

    None of it is called where no treatment was asked for.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        facts: Callable[[], Mapping[str, Fact]],
        note: Callable[[EventKind, str, Fact, Fact], None],
        eye: Seeing,
    ) -> None:
        self._optimizer, self._model, self._facts, self._note = optimizer, model, facts, note
        self._eye = eye
        """Who sees gradients before a treatment changes them."""
        self._asked_safe = False
        self._on: list[Intervention] = []
        self._since: dict[str, int] = {}
        """{treatment: the update before its first}."""
        self._look_at: dict[str, int] = {}
        self._had: set[str] = set()
        """Names of what was switched on or refused once: no finding brings it back."""
        self._waiting: dict[str, Mapping[str, Any]] = {}
        """States of treatments that a checkpoint told and that are not switched on yet."""

    @property
    def on(self) -> tuple[Intervention, ...]:
        """Those switched on, in that order."""
        self._on = [one for one in self._on if one.applied]
        return tuple(self._on)

    @property
    def at_work(self) -> bool:
        """Whether any is switched on or may be by a finding."""
        return bool(self._on) or self._asked_safe

    def prefer_safe(self) -> None:
        """From now on findings switch on what is safe."""
        self._asked_safe = True

    def apply(self, asked: str | Intervention, step: int, why: str = "") -> Intervention:
        """Switches one on, from the update after `step`.

        Raises:
            ValueError: no treatment has that name, or it is switched on already.
            Refused: it cannot act on this training.
        """
        one = make(asked)
        if any(other.name == one.name for other in self.on):
            raise Refused(
                f"{one.name} is switched on already", "undo it before another of its kind"
            )
        self._had.add(one.name)
        one.apply(self._optimizer, self._model, facts=self._facts(), tell=self._note)
        around(self._optimizer).show(self._eye)
        self._on.append(one)
        self._since[one.name], self._look_at[one.name] = step, step + FIRST_LOOK
        if one.name in self._waiting:
            one.load_state_dict(self._waiting.pop(one.name))
        reason = f", for {why}" if why else ""
        told = f"{one!r} is switched on from step {step + 1}{reason}"
        self._note("treatment", told, None, one.name)
        return one

    def undo(self, name: str | None = None, why: str = "") -> None:
        """Switches one off, or all.

        Raises:
            ValueError: none of that name is switched on.
        """
        chosen = [one for one in self.on if name in (None, one.name)]
        if name is not None and not chosen:
            told = ", ".join(one.name for one in self.on) or "none"
            raise ValueError(f"{name!r} is not switched on; {told} is")
        for one in reversed(chosen):
            one.undo()
            self._note("undo", f"{one.name} is switched off{why}", one.name, None)

    def observe(self, values: Mapping[str, float | Tensor]) -> None:
        """Hands on what the loop logs to those who ask for it; waits where it lies on a device."""
        asking = [one.observe for one in self.on if hasattr(one, "observe")]
        if asking:
            numbers = {name: float(value) for name, value in values.items()}
            for observe in asking:
                observe(numbers)

    def consider(self, diagnosis: Diagnosis, step: int) -> None:
        """Switches on what is safe and proposed by a finding, where that was asked for.

        Also by a note: what is known before the first step is often one, and safe it is anyway.
        """
        if not self._asked_safe:
            return
        for finding in diagnosis.findings:
            for name in _safe(t.intervention for t in finding.treatments if t.intervention):
                if name in self._had:
                    continue
                try:
                    self.apply(name, step, why=finding.rule)
                except Told as refused:
                    self._note("gap", f"{name} was not switched on: {refused}", None, None)

    def is_due(self, step: int) -> bool:
        """Whether the guard looks at this update."""
        return bool(self._look_at) and step >= min(self._look_at.values())

    def guard(self, trace: Trace, step: int) -> None:
        """Undoes what the loss says did harm. `trace` holds the loss up to `step`. A loss that is
        not expected to fall says nothing."""
        falls = self._facts().get("loss_kind") not in NEVER_FALLING
        loss = trace.series.get("loss") if falls else None
        for name in [name for name, at in self._look_at.items() if step >= at]:
            since = self._since[name]
            following = since + 2 * (self._look_at[name] - since)
            self._look_at[name] = following
            if following - since > LAST_LOOK:
                del self._look_at[name]
            harm = "" if loss is None else harm_since(loss, since)
            if harm and any(one.name == name for one in self.on):
                self.undo(name, f", by its guard: {harm}")
                self._look_at.pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        """What those switched on remember, by name."""
        return {one.name: one.state_dict() for one in self.on}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Gives each its own; to those that are switched on later then."""
        self._waiting = dict(states)
        for one in self.on:
            if one.name in self._waiting:
                one.load_state_dict(self._waiting.pop(one.name))

    def close(self) -> None:
        """Switches all off: the training is over, or the doctor leaves."""
        for one in reversed(self.on):
            with suppress(Exception):  # what fails must not keep the others
                one.undo()


def _safe(names: Iterable[str]) -> list[str]:
    known = interventions()
    return [name for name in names if name in known and known[name].safety == SAFE]


def harm_since(loss: Series, since: int) -> str:
    """In which way the losses after update `since` are worse than all of shortly before; "" where
    they are not, or nobody can tell.

    A run that was rising already has its highest losses just before: only what exceeds them counts.
    """
    before = loss.values[loss.steps <= since][-BEFORE:]
    after = loss.values[loss.steps > since][-AFTER:]
    if len(before) < AFTER or len(after) < AFTER or not np.isfinite(before).all():
        return ""
    if not np.isfinite(after).any():
        return f"no loss of the last {AFTER} updates is finite, all of before were"
    middle = float(np.median(after[np.isfinite(after)]))
    highest = float(before.max())
    spread = 1.4826 * float(np.median(np.abs(before - np.median(before))))
    if middle <= highest + BEYOND * spread:
        return ""
    return (
        f"the median loss of the last {AFTER} updates is {middle:.4g}, and the highest of the"
        f" {len(before)} before it was switched on {highest:.4g}"
    )
