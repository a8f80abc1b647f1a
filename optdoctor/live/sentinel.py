"""Looks at every gradient of every update, before a clip smears it, without waiting for a device.

One pass for norms, in which a tensor's norm is not finite as soon as one element is not. What is
seen belongs to an update only once the update is made: a loop may leave it out.
"""

import math
import weakref
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from optdoctor.live.tensors import Tracked, local

Sight = tuple["weakref.ref[Tensor]", int]
"""A gradient at one moment: which tensor it is, and how often it was written to."""


class Sentinel:
    """The gradients of one optimizer. P tensors, in the order of `tracked`."""

    def __init__(self, tracked: Tracked, earlier: "Sentinel | None" = None) -> None:
        pairs = zip(tracked.parameters, tracked.tensors, strict=True)
        self._trained = {id(p): i for i, (p, t) in enumerate(pairs) if t.in_optimizer}
        self._parameters = tracked.parameters
        self._seen: dict[int, Tensor] = {}
        """Norms before a clip, on their devices, of the update being made."""
        self._at: dict[int, Sight] = {}
        self._first: dict[torch.device, Tensor] = {}
        """[P] float64 on each device but the host: the first bad step, 0 for never."""
        self._first_here: dict[int, int] = {}
        """The same of tensors on the host."""
        self._indices: dict[tuple[int, ...], Tensor] = {}
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

    @torch.no_grad()
    def look(self, positions: Iterable[int]) -> list[int]:
        """Takes the norms of gradients that stand before a clip; returns those not yet taken.

        A second clip of the same gradients sees what the first has left: only a gradient that was
        written to since is looked at again.
        """
        fresh = [i for i in positions if self._at.get(i) != self._sight(i)]
        self._seen |= dict(zip(fresh, self._norms(fresh), strict=True))
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

    @torch.no_grad()
    def commit(self, step: int) -> dict[str, float | Tensor]:
        """The update was made: its global norm, under the name of what it is.

        `grad_norm` where a clip was watched, with gradients that were not clipped as they are; else
        `grad_norm_used`: who knows what the loop did before.
        """
        name = "grad_norm" if self._seen else "grad_norm_used"
        positions = self.positions(self._parameters)
        rest = [i for i in positions if i not in self._seen]
        norms = self._seen | dict(zip(rest, self._norms(rest), strict=True))
        self.forget()
        if not norms:
            return {}
        squares: list[Tensor] = []
        for device, several in _by_device(norms).items():
            values = torch.stack([norms[i].double() for i in several])
            if device.type == "cpu":
                self._mark_here(several, values, step)
            else:
                self._mark(device, several, values, step)
            squares.append(values.square().sum())
        home = squares[0].device
        norm = torch.stack([s.to(home, non_blocking=True) for s in squares]).sum().sqrt()
        return {name: float(norm) if home.type == "cpu" else norm}

    def first(self) -> NDArray[np.float32] | None:
        """[P]: the first step at which each gradient was not finite, NaN for never; None if none.

        Waits for the device.
        """
        row = np.full(len(self._parameters), np.nan, np.float32)
        for i, step in self._first_here.items():
            row[i] = step
        for first in self._first.values():
            values = first.cpu().numpy()
            row = np.where(values > 0, values, row)
        return None if np.isnan(row).all() else row.astype(np.float32)

    def _inherit(self, earlier: "Sentinel") -> None:
        row = earlier.first()
        if row is None:
            return
        known = {id(p): row[i] for i, p in enumerate(earlier._parameters)}
        for i, parameter in enumerate(self._parameters):
            step = known.get(id(parameter), np.nan)
            if np.isfinite(step) and parameter.device.type == "cpu":
                self._first_here[i] = int(step)
            elif np.isfinite(step):
                self._steps_on(parameter.device)[i] = float(step)

    def _sight(self, position: int) -> Sight | None:
        grad = self._parameters[position].grad
        return None if grad is None else (weakref.ref(grad), grad._version)

    def _norms(self, positions: list[int]) -> list[Tensor]:
        """L2 norms of the gradients, on their devices; float32, of float64 gradients float64."""
        grads = [_elements(self._parameters[i].grad) for i in positions]
        alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for k, grad in enumerate(grads):
            wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
            alike.setdefault((grad.device, wide), []).append(k)
        norms: dict[int, Tensor] = {}
        for (_, wide), several in alike.items():
            chosen = [grads[k] for k in several]
            norms |= zip(several, torch._foreach_norm(chosen, 2, dtype=wide), strict=True)
        for k, norm in norms.items():
            # Squares beyond float32 are no infinite gradient. Elsewhere, to look would be to wait.
            if norm.device.type == "cpu" and norm == torch.inf:
                norms[k] = torch.linalg.vector_norm(grads[k], dtype=torch.float64)
        return [norms[k] for k in range(len(grads))]

    def _mark_here(self, positions: list[int], norms: Tensor, step: int) -> None:
        for i, norm in zip(positions, norms.tolist(), strict=True):
            if not math.isfinite(norm):
                self._first_here.setdefault(i, step)

    def _mark(self, device: torch.device, positions: list[int], norms: Tensor, step: int) -> None:
        first, key = self._steps_on(device), tuple(positions)
        if key not in self._indices:
            self._indices = {key: torch.tensor(positions).to(device, non_blocking=True)}
        index = self._indices[key]
        known = first[index]
        fresh = (known == 0) & ~torch.isfinite(norms)
        first[index] = torch.where(fresh, float(step), known)

    def _steps_on(self, device: torch.device) -> Tensor:
        if device not in self._first:
            zeros = torch.zeros(len(self._parameters), dtype=torch.float64, device=device)
            self._first[device] = zeros
        return self._first[device]


def _by_device(norms: Mapping[int, Tensor]) -> dict[torch.device, list[int]]:
    grouped: dict[torch.device, list[int]] = {}
    for i, norm in norms.items():
        grouped.setdefault(norm.device, []).append(i)
    return grouped


def _elements(grad: Tensor | None) -> Tensor:
    """What a gradient holds; of a sparse one, its entries."""
    if grad is None:
        raise ValueError("no gradient")
    if grad.layout != torch.strided:
        grad = grad.coalesce().values() if grad.layout == torch.sparse_coo else grad.to_dense()
    return local(grad)
