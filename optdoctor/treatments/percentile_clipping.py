"""Percentile clipping: gradients are held to a percentile of what they lately were.

The 99.9th percentile of 100 steps, as it is often told, is their maximum. Here it is of the last
`samples` norms, at least so many that something lies above it. Norms at the beginning are larger
than later: the window forgets them. It holds spikes too, and tells them from nothing else: more
than (1 - q) * `samples` of them in it, and the limit is one. Adam-like optimizers hardly feel a
constant factor of all gradients.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.treatments.gradients import scale_of, with_gradients
from optdoctor.treatments.intervention import Intervention
from optdoctor.treatments.needs import clippable
from optdoctor.treatments.norms import excess, global_norm, shorten

ROUNDING = 1e-9
"""Of 100 - 99.9 in floating numbers."""


class PercentileClipping(Intervention):
    """Clips the global norm at the `percentile` of the last `samples` norms, taken unclipped.

    Of the two samples around the percentile it is the lower one, so that a spike that is the
    largest of all does not reach it. Memory is bounded: a ring of `samples` float32 numbers on the
    device of the first gradient (4 kB for 1000). Until it is full nothing is clipped, which it
    says. Norms that are not finite are not kept.
    """

    name = "percentile-clipping"
    safety = "risky"
    changes_gradients = True

    def __init__(self, percentile: float = 99.9, *, samples: int = 1000) -> None:
        if not 0 < percentile < 100:
            raise ValueError(f"percentile must be between 0 and 100, not {percentile!r}")
        if samples * (100 - percentile) < 100 * (1 - ROUNDING):
            least = round(100 / (100 - percentile))
            raise ValueError(
                f"{samples!r} samples are too few: their percentile {percentile:g} would be the "
                f"maximum; it takes at least {least}"
            )
        self.percentile, self.samples = percentile, samples
        place = int(percentile / 100 * (samples - 1) + ROUNDING)
        self._above = samples - 1 - place
        """Samples that lie above the percentile."""
        self._forget()

    def _forget(self) -> None:
        self._ring: Tensor | None = None
        self._seen: Tensor | None = None
        self._clipped: Tensor | None = None
        self._look_in = self.samples + 1
        """Steps until it may be full; 0 once it was seen to be."""

    def check(self) -> None:
        """Refuses where the loop clips, where a step takes its own gradients, and flat shards."""
        clippable(self)

    def begin(self) -> None:
        """Says that it has too few samples yet."""
        self.note(
            f"{self.name} has 0 of the {self.samples} norms that it needs, and does not clip before"
        )

    def before(self) -> None:
        """Clips, then keeps the norm. The device is asked once, for the note of the first limit."""
        parameters = with_gradients(self.parameters())
        if not parameters:
            return
        norm = global_norm(parameters)
        if self._ring is None or self._seen is None or self._clipped is None:
            self._ring = torch.zeros(self.samples, device=norm.device)
            self._seen = torch.zeros((), dtype=torch.int64, device=norm.device)
            self._clipped = torch.zeros_like(self._seen)
        scale = scale_of(self.optimizer)
        norm = norm.to(self._ring.device)
        norm = norm if scale is None else norm / scale.to(norm.device)
        limit = self._limit(self._ring, self._seen)
        self._tell_first(self._seen, limit)
        shorten(parameters, excess(norm, limit))
        finite = torch.isfinite(norm)
        self._clipped = self._clipped + (finite & (norm > limit))
        place = (self._seen % self.samples).reshape(1)
        kept = torch.where(finite, norm, self._ring[place])
        self._ring.index_copy_(0, place, kept.reshape(1))
        self._seen = self._seen + finite

    def _limit(self, ring: Tensor, seen: Tensor) -> Tensor:
        """Infinity until the ring is full."""
        above = torch.topk(ring, self._above + 1, sorted=True).values[-1]
        return torch.where(seen < self.samples, torch.inf, above)

    def _tell_first(self, seen: Tensor, limit: Tensor) -> None:
        """Asks only when so many steps have passed that the ring may be full."""
        if self._look_in == 0:
            return
        self._look_in -= 1
        if self._look_in == 0:
            self._look_in = max(self.samples - int(seen), 0)
            if self._look_in == 0:
                self.note(f"{self.name} clips at {float(limit):.4g} from now", new=float(limit))

    def end(self) -> None:
        """Says how often it acted."""
        if self._clipped is not None and self._seen is not None:
            told = f"{self.name} clipped {int(self._clipped)} steps"
            few = int(self._seen) < self.samples
            lacking = f": it had seen {int(self._seen)} of {self.samples} norms" if few else ""
            self.note(told + lacking, kind="undo")
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """The ring and how far it is filled."""
        if self._ring is None or self._seen is None or self._clipped is None:
            return {}
        return {
            "ring": self._ring.clone(),
            "seen": int(self._seen),
            "clipped": int(self._clipped),
            "look_in": self._look_in,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes it up where it was left; a ring of another size is passed over."""
        if "ring" not in state or len(state["ring"]) != self.samples:
            return
        device = self.parameters()[0].device
        self._ring = state["ring"].to(device, torch.float32, copy=True)
        self._seen = torch.tensor(int(state["seen"]), device=device)
        self._clipped = torch.tensor(int(state["clipped"]), device=device)
        self._look_in = int(state["look_in"])


INTERVENTION = PercentileClipping
