"""Tensor clipping: the gradient of each tensor is held to a multiple of what it lately was.

After AdaGC (arXiv 2502.11034), in the form of adaptive clipping. Where one tensor alone spikes, the
global norm hardly shows it if the tensor is small, and if it is large the global clip shortens all
others too. Clipping tensors apart turns the direction of the whole gradient, which the global clip
does not. A constant factor is nothing to Adam-like optimizers; a spike among other gradients is.
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
from optdoctor.treatments.norms import excess, norms, shorten

NAMED = 3
"""Tensors that the last note names."""


class TensorClipping(Intervention):
    """Clips the norm of each tensor's gradient at `factor` times the moving mean of that norm.

    `memory` is the number of its gradients that a mean remembers, and of those that pass before the
    first clip of that tensor; steps in which it has none do not count. Norms of single tensors vary
    more than the global one: the factor is larger than that of adaptive clipping. A spike, above
    four times the limit, does not move the mean; more than `memory` in a row do.
    """

    name = "tensor-clipping"
    safety = "risky"
    changes_gradients = True

    def __init__(
        self,
        factor: float = 2.0,
        *,
        memory: int = 50,
        floor: float = 0.0,
        ceiling: float = math.inf,
    ) -> None:
        self._limit = MovingLimit(factor, memory, floor, ceiling)
        self.factor, self.memory, self.floor, self.ceiling = factor, memory, floor, ceiling
        self._clipped: Tensor | None = None
        self._places: tuple[tuple[int, ...], Tensor] | None = None
        """Of those with a gradient, on the host and on the device."""

    def check(self) -> None:
        """Refuses where the loop clips, where a step takes its own gradients, and flat shards."""
        clippable(self)

    def before(self) -> None:
        """Clips, then learns. Nothing is read back from the device."""
        parameters = self.parameters()
        present = with_gradients(parameters)
        if not present:
            return
        found = norms(present)
        if self._clipped is None or not self._limit.started:
            self._limit.start(len(parameters), found.device)
            self._clipped = torch.zeros(len(parameters), device=found.device)
        limits = self._limit.limits()
        places = self._where(parameters, limits.device)
        scale = scale_of(self.optimizer)
        found = found.to(limits.device)
        found = found if scale is None else found / scale.to(limits.device)
        shorten(present, excess(found, limits[places]))
        # in places of all parameters, so that one without a gradient keeps its own
        spread = torch.zeros_like(limits).index_copy(0, places, found)
        self._clipped = self._clipped + (torch.isfinite(spread) & (spread > limits))
        self._limit.learn(spread, limits)

    def _where(self, parameters: list[Tensor], device: torch.device) -> Tensor:
        """[T] places of those with a gradient; made anew where they are others than in the step
        before."""
        places = tuple(i for i, p in enumerate(parameters) if p.grad is not None)
        if self._places is None or self._places[0] != places:
            self._places = (places, torch.tensor(places, device=device))
        return self._places[1]

    def end(self) -> None:
        """Says how often it clipped which tensors: the only time that it asks the device."""
        if self._clipped is not None:
            counts = self._clipped.int().tolist()
            names = self.names()
            told = {
                names.get(id(p), "?"): c for p, c in zip(self.parameters(), counts, strict=True)
            }
            most = sorted(told, key=lambda name: -told[name])[:NAMED]
            which = ", ".join(f"{name} {told[name]}" for name in most if told[name])
            self.note(
                f"{self.name} clipped {sum(counts)} gradients of single tensors"
                + (f": {which} times" if which else ""),
                kind="undo",
            )
        self._clipped = self._places = None
        self._limit.forget()

    def state_dict(self) -> dict[str, Any]:
        """Means in the order of the optimizer's tensors, and how often it acted."""
        if self._clipped is None:
            return {}
        return {**self._limit.state_dict(), "clipped": self._clipped.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes it up where it was left; a state of other tensors is passed over."""
        parameters = self.parameters()
        if len(state.get("clipped", ())) == len(parameters):
            device = parameters[0].device
            self._limit.load_state_dict(state, device)
            self._clipped = torch.tensor(state["clipped"], device=device)


INTERVENTION = TensorClipping
