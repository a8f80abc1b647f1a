"""Norms of gradients, and gradients made shorter, without a number of theirs on the host.

One number for each tensor, in float32, on the device of the first: half precision is squared in
float32, of a complex number both parts count, of a sparse gradient what it holds, and a sharded
tensor (DTensor) is asked for the norm of the whole.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
Placed = list[tuple[int, Tensor]]
"""Tensors and their places in a sequence."""


def norms(parameters: Sequence[Tensor]) -> Tensor:
    """[T] Euclidean norms of their gradients, which are all there; scaled ones are so still."""
    gradients = [gradient_of(p) for p in parameters]
    device = parameters[0].device
    whole = {i: _norm_of_all(g) for i, g in enumerate(gradients) if hasattr(g, "full_tensor")}
    here = [(i, held(g)) for i, g in enumerate(gradients) if i not in whole]
    for those in _alike(here):
        for i, norm in _norms_of(those, 2.0):
            whole[i] = norm
    return torch.stack([whole[i].to(device, torch.float32) for i in range(len(gradients))])


def global_norm(parameters: Sequence[Tensor]) -> Tensor:
    """The norm of all of them together, a tensor without dimensions."""
    return cast(Tensor, torch.linalg.vector_norm(norms(parameters)))


def are_finite(parameters: Sequence[Tensor]) -> Tensor:
    """[T] whether each gradient is, as far as it lies in this process. By the largest number of
    each, since a sum of squares may be infinite where no number is."""
    values = [held(_local(gradient_of(p))) for p in parameters]
    found = {i: torch.ones((), device=v.device) for i, v in enumerate(values) if not v.numel()}
    for those in _alike([(i, v) for i, v in enumerate(values) if i not in found]):
        for i, norm in _norms_of(those, math.inf):
            found[i] = norm
    device = parameters[0].device
    return torch.stack([torch.isfinite(found[i]).to(device) for i in range(len(values))])


def shorten(parameters: Sequence[Tensor], factors: Tensor) -> None:
    """Multiplies their gradients in place, by one factor or by [T]; 1 leaves every bit."""
    values = [held(_local(gradient_of(p)), coalesced=False) for p in parameters]
    for those in _alike(list(enumerate(values))):
        first = those[0][1]
        there = factors.to(first.device, first.dtype)
        several = [one for _, one in those]
        if there.dim() == 0:
            torch._foreach_mul_(several, there)
        else:
            torch._foreach_mul_(several, [there[i] for i, _ in those])


def excess(norm: Tensor, limit: Tensor) -> Tensor:
    """limit / norm where the norm is finite and above it, else 1: a gradient that is not finite is
    left as it is, since to scale it makes NaN of all its numbers."""
    above = torch.isfinite(norm) & (norm > limit)
    return torch.where(above, limit / norm, 1.0)


def gradient_of(parameter: Tensor) -> Tensor:
    """The gradient of one that has one."""
    gradient = parameter.grad
    assert gradient is not None
    return gradient.detach()


def held(gradient: Tensor, *, coalesced: bool = True) -> Tensor:
    """The real numbers of a gradient that lie there, sharing its memory: the values of a sparse
    one, the parts of a complex one. Entries of the same place are added up if `coalesced`, into a
    tensor of their own."""
    if gradient.layout == torch.sparse_coo:
        gradient = gradient.coalesce().values() if coalesced else gradient._values()
    elif gradient.layout != torch.strided:
        gradient = gradient.values()
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


def _alike(several: Placed) -> list[Placed]:
    """By device and dtype, as one kernel takes them."""
    found: dict[tuple[torch.device, torch.dtype], Placed] = {}
    for i, one in several:
        found.setdefault((one.device, one.dtype), []).append((i, one))
    return list(found.values())


def _norms_of(those: Placed, order: float) -> Placed:
    wide = torch.float32 if those[0][1].dtype in HALF else None
    made = torch._foreach_norm([one for _, one in those], order, dtype=wide)
    return [(i, norm) for (i, _), norm in zip(those, made, strict=True)]


def _norm_of_all(gradient: Any) -> Tensor:
    """Of a DTensor: its shards ask each other."""
    return cast(Tensor, torch.linalg.vector_norm(gradient.float()).full_tensor())


def _local(gradient: Any) -> Tensor:
    return cast(Tensor, gradient.to_local()) if hasattr(gradient, "to_local") else gradient
