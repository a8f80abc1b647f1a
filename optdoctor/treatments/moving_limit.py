"""A multiple of the moving mean of norms, for one norm or for many side by side.

The mean is one of logarithms: what is ten times too large counts as what is ten times too small.
Everything stays on the device.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

SPIKE = 4.0
"""Spikes are above so many times the limit: those do not move it at all, others as the limit."""


class MovingLimit:
    """`factor` times the mean of the last `memory` norms, between `floor` and `ceiling`.

    Until a norm has been seen `memory` times the limit is the ceiling. What is not finite, and
    zero, is not learnt. Nor are spikes, above `spike` limits; but after `memory` of them in a row,
    which are none then but the new size of gradients, each is learnt as if it were at the limit:
    so the limit follows, by a factor of `factor` in `memory` steps.
    """

    def __init__(
        self,
        factor: float,
        memory: int,
        floor: float = 0.0,
        ceiling: float = math.inf,
        spike: float = SPIKE,
    ) -> None:
        if not factor > 1:
            raise ValueError(
                f"factor must be above 1, not {factor!r}: every second step is above 1"
            )
        if memory < 2:
            raise ValueError(f"memory must be at least 2 steps, not {memory!r}")
        if not 0 <= floor <= ceiling:
            raise ValueError(f"floor {floor!r} and ceiling {ceiling!r} are no range")
        self.factor, self.memory, self.floor, self.ceiling = factor, memory, floor, ceiling
        self.spike = spike
        self.forget()

    def forget(self) -> None:
        """Begins anew."""
        self._mean = self._seen = self._row = torch.zeros(0)

    @property
    def started(self) -> bool:
        """Whether it knows how many norms there are."""
        return self._mean.numel() > 0

    def start(self, count: int, device: torch.device) -> None:
        """Of so many norms side by side."""
        self._mean = torch.zeros(count, device=device)
        self._seen, self._row = torch.zeros_like(self._mean), torch.zeros_like(self._mean)

    @property
    def mean(self) -> Tensor:
        """[N] what norms lately were; of what was never seen 1."""
        return self._mean.exp()

    def limits(self) -> Tensor:
        """[N] of the norms that come next: it is of those before them alone."""
        limit = (self.factor * self._mean.exp()).clamp(self.floor, self.ceiling)
        return torch.where(self._seen < self.memory, self.ceiling, limit)

    def learn(self, norms: Tensor, limits: Tensor) -> None:
        """[N] norms as nobody clipped them, 0 for those that are not there, and their limits."""
        sound = torch.isfinite(norms) & (norms > 0)
        spikes = sound & (norms > self.spike * limits)
        last = (self._row >= self.memory) & spikes
        taken = (sound & ~spikes) | last
        value = torch.minimum(norms, limits).clamp(min=torch.finfo(torch.float32).tiny).log()
        weight = 1 / torch.clamp(self._seen + 1, max=self.memory)
        self._mean = torch.where(taken, self._mean + weight * (value - self._mean), self._mean)
        self._seen = self._seen + taken
        self._row = torch.where(spikes, self._row + 1, torch.where(sound, 0.0, self._row))

    def state_dict(self) -> dict[str, Any]:
        """Means and what they are of; waits for the device."""
        if not self.started:
            return {}
        return {
            "mean": self._mean.tolist(),
            "seen": self._seen.tolist(),
            "row": self._row.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Takes it up where it was left."""
        if "mean" not in state:
            return
        self._mean, self._seen, self._row = (
            torch.tensor(state[key], device=device, dtype=torch.float32)
            for key in ("mean", "seen", "row")
        )
