"""Adaptive clipping: each gradient is held to a multiple of what gradients lately were.

A fixed threshold is wrong as soon as the scale of gradients changes, and they change by themselves
in the first thousand steps. The limit is `factor` times the moving mean of the norms of the past,
in the logarithm, from which spikes and what is not finite are left out (after ZClip, arXiv
2504.02507, in another form). Adam-like optimizers hardly feel a constant factor of all gradients;
what they feel is one spike among others.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.treatments.gradients import scale_of, with_gradients
from optdoctor.treatments.intervention import Intervention, Refused

SPIKE = 4.0
"""Spikes are above so many times the limit: those do not move it at all, others as the limit."""


class AdaptiveClipping(Intervention):
    """Clips the global norm of gradients at `factor` times its own moving mean.

    `memory` is the number of steps that the mean remembers, and of those that pass before the first
    clip. The limit stays within `floor` and `ceiling`. Norms are taken before this clip; where the
    loop clips by itself they are after that, so that it is refused where the run tells of one.
    """

    name = "adaptive-clipping"
    safety = "risky"

    def __init__(
        self,
        factor: float = 1.5,
        *,
        memory: int = 50,
        floor: float = 0.0,
        ceiling: float = math.inf,
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
        self._mean: Tensor | None = None
        """Of the logarithm of norms."""
        self._seen: Tensor | None = None
        """Norms taken into it."""
        self._clipped: Tensor | None = None

    def check(self) -> None:
        """Refuses where the loop clips: it would see what is left."""
        own = self.facts.get("max_grad_norm")
        if isinstance(own, int | float) and own > 0:
            raise Refused(
                f"{self.name} needs gradients that nobody clipped, and this run clips at {own:g}",
                "set max_grad_norm to 0",
            )

    def before(self) -> None:
        """Clips, then learns. Nothing is read back from the device."""
        parameters = with_gradients(self.parameters())
        if not parameters:
            return
        if self._mean is None or self._seen is None or self._clipped is None:
            zero = torch.zeros((), device=parameters[0].device, dtype=torch.float32)
            self._mean, self._seen, self._clipped = zero, zero.clone(), zero.clone()
        scale = scale_of(self.optimizer)
        limit = (self.factor * self._mean.exp()).clamp(self.floor, self.ceiling)
        limit = torch.where(self._seen < self.memory, math.inf, limit)
        allowed: Any = limit if scale is None else limit * scale.to(limit.device)
        norm = torch.nn.utils.clip_grad_norm_(parameters, allowed).to(limit)
        norm = norm if scale is None else norm / scale.to(limit.device)
        taken = torch.isfinite(norm) & (norm > 0) & (norm <= SPIKE * limit)
        value = torch.minimum(norm, limit).clamp(min=torch.finfo(norm.dtype).tiny).log()
        weight = 1 / torch.clamp(self._seen + 1, max=self.memory)
        self._mean = torch.where(taken, self._mean + weight * (value - self._mean), self._mean)
        self._clipped = self._clipped + (norm > limit)
        self._seen = self._seen + taken

    def end(self) -> None:
        """Says how often it acted: the only time that it asks the device."""
        if self._clipped is not None:
            self.note(f"{self.name} clipped {int(self._clipped)} steps", kind="undo")
        self._mean = self._seen = self._clipped = None

    def state_dict(self) -> dict[str, Any]:
        """The mean and what it is of."""
        if self._mean is None or self._seen is None or self._clipped is None:
            return {}
        return {
            "mean": float(self._mean),
            "seen": float(self._seen),
            "clipped": float(self._clipped),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes it up where it was left."""
        if state:
            device = self.parameters()[0].device
            self._mean, self._seen, self._clipped = (
                torch.tensor(float(state[key]), device=device)
                for key in ("mean", "seen", "clipped")
            )


INTERVENTION = AdaptiveClipping
