"""Tensors grouped so that a handful of operations measures all of them.

Small tensors of one shape are stacked into a matrix: 800 of them cost about what one big one does.
Big ones stay where they are and are walked in chunks that fit a cache.
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from optdoctor.live.tensors import Tracked, local
from optdoctor.trace import SAMPLED

STACKED = 1 << 16
"""Elements up to which tensors of one shape are stacked: above, the copy costs more than the calls
that it spares."""
CHUNK = 1 << 17
"""Elements that are looked at at once on a host: in float32 their sum of squares is right to 1e-6,
one operation leaves them in the cache for the next, and no new page of memory is asked for."""
BLOCK = 1 << 18
"""Elements of a stack on a host: so many that calls are few, so few that a cache holds them."""
HALF = (torch.float16, torch.bfloat16)
MEASURED = {
    *(*HALF, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
}
"""dtypes that have an arithmetic. Integers stand for something else (codes of a quantized weight),
and most operations do not know float8."""


@dataclass(frozen=True, slots=True)
class Unit:
    """S tensors of one shape, dtype, device and parameter group: stacked, or one big one."""

    positions: tuple[int, ...]
    """[S], in the table of tensors."""
    dtype: torch.dtype
    device: torch.device
    group: int
    trainable: bool
    num_elements: int
    """K: of each, on this rank; a complex number is two."""
    rows: int
    """Length of the first dimension of each; 1 of a number."""
    index: Tensor | None
    """[S, k]: places of the sampled elements of each, the same for the whole run; None: all."""

    @property
    def stacked(self) -> bool:
        """Whether its tensors are copied into one matrix [S, K]; else S is 1."""
        return self.num_elements <= STACKED

    @property
    def fills(self) -> bool:
        """Whether its samples are about a block, and are not to be joined with others."""
        return self.device.type == "cpu" and 2 * len(self.positions) * self.num_sampled > BLOCK

    @property
    def num_sampled(self) -> int:
        """k: elements of each that shares come from."""
        return min(self.num_elements, SAMPLED)

    @property
    def num_bytes(self) -> int:
        """Of all its weights."""
        return len(self.positions) * self.num_elements * self.dtype.itemsize

    def matrix(self, tensors: Sequence[Tensor], into: Tensor | None = None) -> Tensor:
        """[S, K]: a new matrix, if it can be in the memory `into`, or a view where S is 1 and the
        tensor is contiguous."""
        if len(tensors) == 1:
            return plain(tensors[0]).reshape(1, -1)
        if ORDINARY.issuperset(map(type, tensors)):
            shape = (len(tensors), *tensors[0].shape)
            out = None
            if into is not None and into.numel() == math.prod(shape):
                out = into.view(shape) if into.dtype == tensors[0].dtype else None
            try:
                matrix = torch.stack(tensors, out=out)  # type: ignore[arg-type]
            except RuntimeError:  # some of them are sparse
                matrix = None
            if matrix is not None and matrix.layout == torch.strided and not matrix.is_complex():
                return matrix.reshape(len(tensors), -1)
        return torch.stack([plain(t) for t in tensors]).reshape(len(tensors), -1)

    def sampled(self, matrix: Tensor) -> Tensor:
        """[S, k] of a matrix [S, K]."""
        if self.index is None:
            return matrix
        if len(self.positions) == 1:  # five times faster than to gather
            return matrix[0].index_select(0, self.index[0]).unsqueeze(0)
        return matrix.gather(1, self.index)


@lru_cache(1 << 14)
def array_of(positions: tuple[int, ...]) -> NDArray[np.int64]:
    """[S]"""
    return np.array(positions)


ORDINARY = frozenset((Tensor, torch.nn.Parameter))


def plain(tensor: Tensor) -> Tensor:
    """The real, strided tensor on this rank."""
    if tensor.layout != torch.strided:
        tensor = tensor.detach().to_dense()
    if type(tensor) in ORDINARY:
        return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor
    return local(tensor)


def units_of(tracked: Tracked) -> list[Unit]:
    """All tensors of the optimizer that hold an element here and can be measured."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, (parameter, info) in enumerate(zip(tracked.parameters, tracked.tensors, strict=True)):
        if not info.in_optimizer:
            continue
        here = local(parameter)
        state = (info.moment1_dtype, info.state_dtype)
        key = (here.dtype, here.device, info.group, parameter.requires_grad, *state, here.shape)
        apart = i if here.numel() > STACKED else -1
        if here.numel() and here.dtype in MEASURED:
            alike.setdefault((*key, apart), []).append(i)
    return [
        _unit(tracked, tuple(some))
        for positions in alike.values()
        for some in _of_size(positions, local(tracked.parameters[positions[0]]))
    ]


def _of_size(positions: Sequence[int], like: Tensor) -> Iterator[Sequence[int]]:
    """So many tensors that a host holds their elements in its cache."""
    most = max(1, BLOCK // like.numel()) if like.device.type == "cpu" else len(positions)
    for start in range(0, len(positions), most):
        yield positions[start : start + most]


def _unit(tracked: Tracked, positions: tuple[int, ...]) -> Unit:
    first = tracked.parameters[positions[0]]
    here = local(first)
    places = [chosen(tracked.tensors[i].name, here.numel()) for i in positions]
    return Unit(
        positions,
        here.dtype,
        here.device,
        tracked.tensors[positions[0]].group,
        first.requires_grad,
        here.numel(),
        here.shape[0] if here.dim() else 1,
        None
        if places[0] is None
        else torch.stack([p for p in places if p is not None]).to(here.device),
    )


def chosen(name: str, num_elements: int, most: int = SAMPLED) -> Tensor | None:
    """Places of the sampled elements, in rising order; None where all are taken.

    One from each of as many stretches of equal length: spread like the tensor, and free of any
    period of its rows. The generator is private and seeded by the name.
    """
    if num_elements <= most:
        return None
    generator = torch.Generator("cpu")
    generator.manual_seed(zlib.crc32(name.encode()))
    edges = torch.arange(most + 1, dtype=torch.int64, device="cpu") * num_elements // most
    lengths = edges[1:] - edges[:-1]
    inside = torch.rand(most, generator=generator, dtype=torch.float64, device="cpu") * lengths
    return edges[:-1] + torch.minimum(inside.long(), lengths - 1)


def chunks(flat: Tensor) -> Sequence[Tensor]:
    """A big tensor in pieces: on a host of a size that fits its cache, elsewhere as a whole."""
    return flat.split(CHUNK) if flat.device.type == "cpu" else (flat,)  # type: ignore[no-untyped-call]
