"""Rate by momentum, experimental: rates fall while the first moment is larger than it lately was.

With r the root mean square of the first moment over all elements, divided by what it usually is,

    factor = max(floor, decay ** max(r - 1, 0)),

so that it is 1 at the usual size or below, `decay` at twice the usual and never above 1. The usual
size is the mean of the logarithms of the last `memory` sizes, and nothing is done before there have
been so many.

This is the intent of a formula that said the opposite of its text: base * 0.9 ** (1 - n / 1000),
with n a sum of norms, grows with n, without bound, and with the number of weights. That the intent
is good for anything is hardly known: on digits (medians of 3 seeds) it changed nothing under AdamW,
whose update hardly grows with its moment, since it is divided by the root of the second; under SGD,
for which this is a soft clip that comes late, a loss of 0.277 became 0.246.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.optimizers import probe_of, settings_of, state_of
from optdoctor.optimizers.probe import Moment
from optdoctor.treatments.intervention import Refused
from optdoctor.treatments.multiplied import Multiplied
from optdoctor.treatments.needs import whole_gradients

TOLD = 0.8
"""The first factor below this is told, and then each that is lower by as much again."""


class MomentumAwareRate(Multiplied):
    """Multiplies all rates by a factor between `floor` and 1 that follows the first moment.

    It looks after each `every` steps, and waits for the device then. Refuses optimizers that keep
    no first moment, or do not move by the rate of their groups, and flat shards. Where it finds no
    moment of a tensor that tensor does not count.
    """

    name = "momentum-aware-rate"
    safety = "risky"

    def __init__(
        self, *, decay: float = 0.9, floor: float = 0.5, memory: int = 50, every: int = 5
    ) -> None:
        super().__init__()
        if not 0 < decay < 1:
            raise ValueError(f"decay must be between 0 and 1, not {decay!r}")
        if not 0 < floor < 1:
            raise ValueError(f"floor must be between 0 and 1, not {floor!r}")
        if memory < 2:
            raise ValueError(f"memory must be at least 2 looks, not {memory!r}")
        if every < 1:
            raise ValueError(f"every must be at least 1 step, not {every!r}")
        self.decay, self.floor, self.memory, self.every = decay, floor, memory, every
        self._forget()

    def _forget(self) -> None:
        self._now, self._mean, self._least = 1.0, 0.0, 1.0
        self._seen = self._taken = 0

    def check(self) -> None:
        """Refuses where there is no first moment, or nobody sees the whole of it."""
        super().check()
        whole_gradients(self.name, self.model)
        groups = self.optimizer.param_groups
        if not any(may_hold_moment(self.optimizer, group) for group in groups):
            raise Refused(
                f"{self.name} follows the first moment, and {type(self.optimizer).__name__} keeps"
                " none here",
                "set its momentum, or use another optimizer",
            )

    def begin(self) -> None:
        """Nothing is usual yet."""
        self._forget()

    def factor_now(self) -> float:
        """As of the last look."""
        return self._now

    def after(self) -> None:
        """Gives the rates back, and looks each `every` steps."""
        super().after()
        self._taken += 1
        if self._taken % self.every:
            return
        size = moment_size(self.optimizer)
        if size is not None:
            self._look(float(size))

    def _look(self, size: float) -> None:
        if not (math.isfinite(size) and size > 0):
            self._now = 1.0
            return
        if self._seen >= self.memory:
            ratio = math.exp(min(math.log(size) - self._mean, 100.0))
            self._now = max(self.floor, self.decay ** max(ratio - 1, 0.0))
            self._tell_if_low(size)
        self._seen += 1
        self._mean += (math.log(size) - self._mean) / min(self._seen, self.memory)

    def _tell_if_low(self, size: float) -> None:
        if self._now >= TOLD * self._least:
            return
        self.note(
            f"{self.name}: the first moment is {size:.3g}, usual is {math.exp(self._mean):.3g};"
            f" rates go to {self._now:.3g} of what is set, lower than ever before",
            self._least,
            self._now,
        )
        self._least = self._now

    def state_dict(self) -> dict[str, Any]:
        """The factor, and what is usual."""
        return {
            "now": self._now,
            "mean": self._mean,
            "least": self._least,
            "seen": self._seen,
            "taken": self._taken,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes it up where it was left."""
        if state:
            self._now, self._mean = float(state["now"]), float(state["mean"])
            self._least = float(state["least"])
            self._seen, self._taken = int(state["seen"]), int(state["taken"])


def may_hold_moment(optimizer: Any, group: Mapping[str, Any]) -> bool:
    """Whether its state has, or will have, a first moment under these settings."""
    probe, settings = probe_of(optimizer), settings_of(optimizer, group)
    if probe.family == "sgd" and "betas" not in group:
        return bool(group.get("momentum"))
    for parameter in group["params"]:
        state = state_of(optimizer, parameter)
        if state:
            return probe.layout(state, settings).first is not None
    try:
        return probe.layout({}, settings).first is not None
    except (KeyError, IndexError, TypeError, AttributeError):
        return True  # it will be seen


def moment_size(optimizer: Any) -> Tensor | None:
    """The root mean square of all first moments, in float32 where the first lies; None where there
    are none."""
    probe, sums, count = probe_of(optimizer), [], 0
    for group in optimizer.param_groups:
        settings = settings_of(optimizer, group)
        for parameter in group["params"]:
            state = state_of(optimizer, parameter)
            moment = probe.layout(state, settings).first if state else None
            if moment is None or not isinstance(state.get(moment.key), Tensor):
                continue
            mean = read(moment, state, {**settings, "params": [parameter]})
            sums.append(torch.linalg.vector_norm(mean, dtype=wide(mean.dtype)) ** 2)
            count += mean.numel()
    if not count:
        return None
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in sums]
    total = torch.stack([one.to(whole[0].device, torch.float32) for one in whole]).sum()
    return (total / count).sqrt()


def read(moment: Moment, state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    """The mean, in real numbers that can be squared."""
    mean = moment.read(state, group).detach()
    return torch.view_as_real(mean) if mean.is_complex() else mean


def wide(dtype: torch.dtype) -> torch.dtype:
    """In which squares are added."""
    return torch.float64 if dtype == torch.float64 else torch.float32


INTERVENTION = MomentumAwareRate
