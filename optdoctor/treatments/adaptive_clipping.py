"""Adaptive clipping: each gradient is held to a multiple of what gradients lately were.

A fixed threshold is wrong as soon as the scale of gradients changes, and they change by themselves
in the first thousand steps. The limit is `factor` times the moving mean of the norms of the past,
in the logarithm, from which spikes and what is not finite are left out (after ZClip, arXiv
2504.02507, in another form). Adam-like optimizers hardly feel a constant factor of all gradients;
what they feel is one spike among others. Of five small runs of SGD that single bad batches had
harmed it made three better by half and none well: such batches have to go. A NaN it cannot mend: a
gradient that is not finite passes as it is.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.treatments.gradients import scale_of, with_gradients
from optdoctor.treatments.intervention import Intervention
from optdoctor.treatments.moving_limit import MovingLimit
from optdoctor.treatments.needs import clippable
from optdoctor.treatments.norms import excess, global_norm, shorten


class AdaptiveClipping(Intervention):
    """Clips the global norm of gradients at `factor` times its own moving mean.

    `memory` is the number of steps that the mean remembers, and of those that pass before the first
    clip. The limit stays within `floor` and `ceiling`; the ceiling holds from the first step. Norms
    are taken before this clip; where the loop clips by itself they are after that, so that it is
    refused where the run tells of one. Spikes, above four times the limit, do not move it; more
    than `memory` in a row do.
    """

    name = "adaptive-clipping"
    safety = "risky"
    changes_gradients = True

    def __init__(
        self,
        factor: float = 1.5,
        *,
        memory: int = 50,
        floor: float = 0.0,
        ceiling: float = math.inf,
    ) -> None:
        self._limit = MovingLimit(factor, memory, floor, ceiling)
        self.factor, self.memory, self.floor, self.ceiling = factor, memory, floor, ceiling
        self._clipped: Tensor | None = None

    def check(self) -> None:
        """Refuses where the loop clips, where a step takes its own gradients, and flat shards."""
        clippable(self)

    def before(self) -> None:
        """Clips, then learns. Nothing is read back from the device."""
        parameters = with_gradients(self.parameters())
        if not parameters:
            return
        norm = global_norm(parameters)
        if self._clipped is None:
            self._clipped = torch.zeros((), device=norm.device)
        if not self._limit.started:
            self._limit.start(1, norm.device)
        scale = scale_of(self.optimizer)
        limit = self._limit.limits()
        norm = norm.to(limit.device)
        norm = norm if scale is None else norm / scale.to(limit.device)
        shorten(parameters, excess(norm, limit).reshape(()))
        self._clipped = self._clipped + (torch.isfinite(norm) & (norm > limit)).sum()
        self._limit.learn(norm.reshape(1), limit)

    def end(self) -> None:
        """Says how often it acted: the only time that it asks the device."""
        if self._clipped is not None:
            self.note(f"{self.name} clipped {int(self._clipped)} steps", kind="undo")
        self._clipped = None
        self._limit.forget()

    def state_dict(self) -> dict[str, Any]:
        """The mean, what it is of, and how often it acted."""
        if self._clipped is None:
            return {}
        return {**self._limit.state_dict(), "clipped": float(self._clipped)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes it up where it was left."""
        if state:
            device = self.parameters()[0].device
            self._limit.load_state_dict(state, device)
            self._clipped = torch.tensor(float(state["clipped"]), device=device)


INTERVENTION = AdaptiveClipping
