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
        self._seen: dict[int, float | Tensor] = {}
        """Norms before a clip of the update being made."""
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
        here = {i: norm for i, norm in norms.items() if isinstance(norm, float)}
        for i, norm in here.items():
            if not math.isfinite(norm):
                self._first_here.setdefault(i, step)
        square = sum(norm * norm for norm in here.values())
        if len(here) == len(norms):
            return {name: math.sqrt(square)}
        squares = [torch.tensor(square, dtype=torch.float64)] if here else []
        for device, several in _by_device(norms).items():
            values = torch.stack([norm.double() for norm in several.values()])
            self._mark(device, list(several), values, step)
            squares.append(values.square().sum())
        home = squares[-1].device
        return {name: torch.stack([s.to(home, non_blocking=True) for s in squares]).sum().sqrt()}

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
            if np.isfinite(step) and is_host(parameter.device):
                self._first_here[i] = int(step)
            elif np.isfinite(step):
                self._steps_on(parameter.device)[i] = float(step)

    def _sight(self, position: int) -> Sight | None:
        grad = self._parameters[position].grad
        return None if grad is None else (weakref.ref(grad), grad._version)

    def _norms(self, positions: list[int]) -> list[float | Tensor]:
        """L2 norms of the gradients: on a device tensors there, float32 or, of float64, float64."""
        grads = [_elements(self._parameters[i].grad) for i in positions]
        alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for k, grad in enumerate(grads):
            wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
            alike.setdefault((grad.device, wide), []).append(k)
        norms: dict[int, float | Tensor] = {}
        for (device, wide), several in alike.items():
            found = torch._foreach_norm([grads[k] for k in several], 2, dtype=wide)
            there = torch.stack(found).tolist() if is_host(device) else found
            norms |= zip(several, there, strict=True)
        for k, norm in norms.items():
            # Squares beyond float32 are no infinite gradient. On a device, to look is to wait.
            if isinstance(norm, float) and norm == math.inf:
                norms[k] = float(torch.linalg.vector_norm(grads[k], dtype=torch.float64))
        return [norms[k] for k in range(len(grads))]

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


def is_host(device: torch.device) -> bool:
    """Whether numbers there can be read without waiting."""
    return device.type == "cpu"


def _by_device(norms: Mapping[int, float | Tensor]) -> dict[torch.device, dict[int, Tensor]]:
    grouped: dict[torch.device, dict[int, Tensor]] = {}
    for i, norm in norms.items():
        if isinstance(norm, Tensor):
            grouped.setdefault(norm.device, {})[i] = norm
    return grouped


def _elements(grad: Tensor | None) -> Tensor:
    """What a gradient holds; of a sparse one, its entries."""
    if grad is None:
        raise ValueError("no gradient")
    if grad.layout != torch.strided:
        grad = grad.coalesce().values() if grad.layout == torch.sparse_coo else grad.to_dense()
    return local(grad)
