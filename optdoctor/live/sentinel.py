"""Looks at every gradient of every update, before a clip smears it, without waiting for a device.

One pass for norms, in which a tensor's norm is not finite as soon as one element is not. What is
seen belongs to an update only once the update is made: a loop may leave it out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from optdoctor.live.norms import SMALL, DeviceNorms, HostNorms, elements
from optdoctor.live.tensors import Tracked

STRIDED = torch.strided

Sight = tuple[int, int]
"""A gradient at one moment: which tensor it is, and how often it was written to. No reference to
it, not even a weak one: torch refuses to swap tensors that have one."""


class FirstBad(NamedTuple):
    """The first step at which each of P gradients was not finite; to be read once it has come."""

    num_tensors: int
    here: Mapping[int, int]
    copies: Sequence[Tensor]

    def read(self) -> NDArray[np.float32] | None:
        """[P], NaN for never; None if none."""
        row = np.full(self.num_tensors, np.nan, np.float32)
        for i, step in self.here.items():
            row[i] = step
        for copy in self.copies:
            steps = copy.numpy()
            row = np.where(steps > 0, steps, row).astype(np.float32)
        return None if np.isnan(row).all() else row


class Look(NamedTuple):
    """Norms of the gradients at `positions`, all on one device."""

    positions: tuple[int, ...]
    norms: HostNorms | DeviceNorms


class Sentinel:
    """The gradients of one optimizer. P tensors, in the order of `tracked`."""

    def __init__(self, tracked: Tracked, earlier: "Sentinel | None" = None) -> None:
        pairs = list(zip(tracked.parameters, tracked.tensors, strict=True))
        self._trained = {id(p): i for i, (p, t) in enumerate(pairs) if t.in_optimizer}
        # Small ones first, as their norms are taken.
        own = sorted(self._trained.values(), key=lambda i: tracked.parameters[i].numel() > SMALL)
        self._own, self._positions = [tracked.parameters[i] for i in own], tuple(own)
        self._num_small = sum(p.numel() <= SMALL for p in self._own)
        self._parameters = tracked.parameters
        self._plain = all(_is_plain(p) for p in self._own)
        """Whether each gradient, if it is strided, can be taken as it is, all on one device."""
        self._plain &= len({p.device for p in self._own}) == 1
        self._seen: dict[int, Look] = {}
        """What was seen before a clip of the update being made: the last look at each gradient."""
        self._at: dict[int, Sight] = {}
        self._skipped: Tensor | None = None
        self._first: dict[torch.device, Tensor] = {}
        """[P] float64 on each device but the host: the first bad step, 0 for never."""
        self._first_here: dict[int, int] = {}
        """The same of tensors on the host."""
        self._indices: dict[torch.device, tuple[tuple[int, ...], Tensor]] = {}
        if earlier is not None:
            self._inherit(earlier)

    @property
    def tapped(self) -> bool:
        """Whether gradients of the update being made were seen before a clip."""
        return bool(self._seen)

    def positions(self, parameters: Iterable[Tensor]) -> list[int]:
        """Those of `parameters` that are this optimizer's and hold a gradient."""
        found = (self._trained.get(id(p)) for p in parameters)
        return [i for i in found if i is not None and self._parameters[i].grad is not None]

    def look(self, positions: Iterable[int]) -> list[int]:
        """Takes the norms of gradients that stand before a clip; returns those not yet taken.

        A second clip of the same gradients sees what the first has left: only a gradient that was
        written to since is looked at again.
        """
        fresh = [i for i in positions if not self._at or self._at.get(i) != self._sight(i)]
        for look in self._look(fresh):
            self._seen |= dict.fromkeys(look.positions, look)
        self.clipped(fresh)
        return fresh

    def clipped(self, positions: Iterable[int]) -> None:
        """Remembers how a clip has left these gradients."""
        self._at |= {i: sight for i in positions if (sight := self._sight(i)) is not None}

    def of_gradients(self, gradients: Iterable[Tensor]) -> list[int]:
        """Positions of the tensors whose gradients these are."""
        known = {id(gradient) for gradient in gradients}
        return [i for i in self._trained.values() if id(self._parameters[i].grad) in known]

    def forget(self) -> None:
        """The update was not made."""
        self._seen, self._at = {}, {}

    def confirm(self) -> bool:
        """Whether what was clipped is what lies there; else it is forgotten.

        A loop may have dropped that update, or have added to its gradients since.
        """
        if all(self._at.get(i) == self._sight(i) for i in self._seen):
            return True
        self.forget()
        return False

    def commit(self, step: int, skipped: Tensor | None = None) -> dict[str, float | Tensor]:
        """The update was made: its global norm, under the name of what it is.

        If `skipped` is above 0, a number that is not read, it was not, and no gradient is bad.

        `grad_norm` where a clip was watched, with gradients that were not clipped as they are; else
        `grad_norm_used`: who knows what the loop did before.
        """
        self._skipped = skipped
        if not self._seen:
            looks = self._look_at_all()
            return {} if not looks else {"grad_norm_used": self._told(looks, step)}
        seen, rest = self._seen, []
        rest = [i for i in self.positions(self._own) if i not in seen]
        looks = [*{id(look): look for look in seen.values()}.values(), *self._look(rest)]
        norm = self._told(looks, step)
        self.forget()
        return {"grad_norm": norm}

    def first(self) -> NDArray[np.float32] | None:
        """[P]: the first step at which each gradient was not finite, NaN for never; None if none.

        Waits for the device.
        """
        copies = [first.cpu() for first in self._first.values()]
        return FirstBad(len(self._parameters), self._first_here, copies).read()

    def sent(self) -> "FirstBad":
        """The same, on its way to the host behind all that its devices were asked for so far."""
        copies = [first.to("cpu", non_blocking=True) for first in self._first.values()]
        return FirstBad(len(self._parameters), dict(self._first_here), copies)

    def _look_at_all(self) -> list[Look]:
        """`_look` at every gradient there is: the usual case, in which each microsecond counts."""
        if self._plain:
            grads = [g for p in self._own if (g := p.grad) is not None and g.layout is STRIDED]
            if len(grads) == len(self._own):
                return [Look(self._positions, _norms(grads, self._num_small))]
        return self._look(self.positions(self._own))

    def _look(self, positions: Sequence[int]) -> list[Look]:
        """The norms at these positions, which hold gradients: one look a device."""
        by_device: dict[torch.device, list[tuple[bool, int, Tensor]]] = {}
        for i in positions:
            gradient = self._parameters[i].grad
            assert gradient is not None
            held = elements(gradient)
            by_device.setdefault(held.device, []).append((held.numel() > SMALL, i, held))
        looks = []
        for several in by_device.values():
            several.sort(key=lambda each: each[0])
            num_small = sum(not is_big for is_big, _, _ in several)
            places = tuple(i for _, i, _ in several)
            looks.append(Look(places, _norms([held for _, _, held in several], num_small)))
        return looks

    def _told(self, looks: Sequence[Look], step: int) -> float | Tensor:
        """The global norm; marks those that are not finite and were until now."""
        square, squares = 0.0, []
        for look in looks:
            # Of a gradient that was looked at again the last look counts.
            last = not self._seen or all(self._seen.get(i, look) is look for i in look.positions)
            if isinstance(look.norms, HostNorms):
                square += self._told_here(look.positions, look.norms, look, step, last)
            else:
                squares.append(self._told_there(look.positions, look.norms.each, look, step, last))
        if not squares:
            return math.sqrt(square)
        if square:
            squares.append(torch.full((), square, dtype=torch.float64, device="cpu"))
        home = squares[0].device
        return torch.stack([s.to(home, non_blocking=True) for s in squares]).sum().sqrt()

    def _told_here(
        self, positions: tuple[int, ...], norms: HostNorms, look: Look, step: int, last: bool
    ) -> float:
        if last and math.isfinite(norms.square):
            return norms.square
        square = 0.0
        for i, norm in zip(positions, norms.each, strict=True):
            if self._seen.get(i, look) is look:
                square += norm * norm
                if not math.isfinite(norm):
                    self._first_here.setdefault(i, step)
        return square

    def _told_there(
        self, positions: tuple[int, ...], norms: Tensor, look: Look, step: int, last: bool
    ) -> Tensor:
        if not last:
            kept = [k for k, i in enumerate(positions) if self._seen.get(i, look) is look]
            positions = tuple(positions[k] for k in kept)
            norms = norms[torch.tensor(kept, device="cpu").to(norms.device, non_blocking=True)]
        first = self._steps_on(norms.device)
        known = self._indices.get(norms.device)
        if known is None or known[0] != positions:
            index = torch.tensor(positions, device="cpu").to(norms.device, non_blocking=True)
            known = self._indices[norms.device] = (positions, index)
        so_far = first[known[1]]
        fresh = (so_far == 0) & ~torch.isfinite(norms)
        if self._skipped is not None:
            fresh &= self._skipped.to(norms.device, non_blocking=True) <= 0
        first[known[1]] = torch.where(fresh, float(step), so_far)
        return norms.square().sum()

    def _inherit(self, earlier: "Sentinel") -> None:
        row = earlier.first()
        if row is None:
            return
        known = {id(p): row[i] for i, p in enumerate(earlier._parameters)}
        for i, parameter in enumerate(self._parameters):
            step = known.get(id(parameter), np.nan)
            if np.isfinite(step) and is_host(parameter.device):
                self._first_here[i] = int(step)
            elif np.isfinite(step):
                self._steps_on(parameter.device)[i] = float(step)

    def _sight(self, position: int) -> Sight | None:
        grad = self._parameters[position].grad
        return None if grad is None else sight_of(grad)

    def _steps_on(self, device: torch.device) -> Tensor:
        if device not in self._first:
            zeros = torch.zeros(len(self._parameters), dtype=torch.float64, device=device)
            self._first[device] = zeros
        return self._first[device]


def sight_of(gradient: Tensor) -> Sight:
    """The gradient as it is now."""
    return id(gradient), -1 if gradient.is_inference() else gradient._version


def is_host(device: torch.device) -> bool:
    """Whether numbers there can be read without waiting."""
    return device.type == "cpu"


def _norms(tensors: list[Tensor], num_small: int) -> HostNorms | DeviceNorms:
    if is_host(tensors[0].device):
        return HostNorms(tensors[:num_small], tensors[num_small:])
    with torch.no_grad():
        return DeviceNorms(tensors)


def _is_plain(parameter: Tensor) -> bool:
    return not parameter.is_complex() and not hasattr(parameter, "to_local")
