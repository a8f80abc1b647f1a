"""L2 norms of many gradients at once, as cheap as an update can bear; [K] in the order given.

On the host small gradients are copied into one buffer and each big one is one product with itself:
next to a norm a tensor that is a third of the time, and exact to 1e-6 where a norm of 8 million
float32 is 5e-3 off. Each tensor by itself is looked at only where something is not finite. On a
device nothing is read: to look is to wait.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from optdoctor.live.tensors import local

flatten: Callable[[list[Tensor]], Tensor] = torch._C._nn.flatten_dense_tensors
"""One copy of all, in the widest dtype among them; a private name, seen in torch 2.4 to 2.13."""
SMALL = 1 << 14
"""Elements up to which a copy is cheaper than a call."""
WIDE = (torch.float32, torch.float64)
"""dtypes in which products are exact enough and fast."""
CHUNK = 1 << 18
"""Elements of one product: float32 sums of more lose digits."""
LEAST = 1e-20
"""Sums of squares below this may have lost what float32 cannot hold."""


class HostNorms:
    """Of tensors whose numbers can be read without waiting, strided and real: small ones first."""

    def __init__(self, small: list[Tensor], big: list[Tensor]) -> None:
        self._small = small
        self._flat = flatten(small) if small else torch.zeros(0, device="cpu")
        if self._flat.dtype not in WIDE:
            self._flat = self._flat.float()
        self._big = [_norm(tensor) for tensor in big]
        square: float = torch.dot(self._flat, self._flat).item()
        for norm in self._big:
            square += norm * norm
        if not LEAST < square < math.inf:
            square = sum(norm * norm for norm in self.each)
        self.square = square
        """Sum of the squares of all norms."""

    @cached_property
    def each(self) -> list[float]:
        """[K], infinite or NaN where an element is."""
        parts = torch.split(self._flat, [tensor.numel() for tensor in self._small])
        return [*map(_closely, parts), *self._big]


class DeviceNorms:
    """Of tensors on one device, where the numbers stay."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        alike: dict[torch.dtype, list[int]] = {}
        for k, tensor in enumerate(tensors):
            alike.setdefault(_wide_dtype(tensor.dtype), []).append(k)
        found: list[Tensor] = [torch.empty(0, device="cpu")] * len(tensors)
        for dtype, places in alike.items():
            norms = torch._foreach_norm([tensors[k] for k in places], 2, dtype=dtype)
            for k, norm in zip(places, norms, strict=True):
                found[k] = norm if len(alike) == 1 else norm.double()
        self.each = torch.stack(found).double()
        """[K] float64, infinite or NaN where an element is, or where a square is beyond float32."""


def elements(gradient: Tensor) -> Tensor:
    """What a gradient holds, real and strided; of a sparse one, its entries."""
    if gradient.layout == torch.sparse_coo:
        gradient = gradient.coalesce().values()
    elif gradient.layout != torch.strided:
        gradient = gradient.to_dense()
    return local(gradient)


def _norm(tensor: Tensor) -> float:
    if tensor.dtype not in WIDE:
        norm = float(torch.linalg.vector_norm(tensor, dtype=torch.float32))
        return norm if LEAST < norm * norm < math.inf else _closely(tensor)
    square = 0.0
    for part in torch.split(tensor.reshape(-1), CHUNK):
        square += torch.dot(part, part).item()
    return math.sqrt(square) if LEAST < square < math.inf else _closely(tensor)


def _closely(tensor: Tensor) -> float:
    """The norm from elements that are scaled first, so that no square leaves the range."""
    if not tensor.numel():
        return 0.0
    wide = _wide(tensor.reshape(-1))
    low, high = (bound.item() for bound in wide.aminmax())
    top = max(-low, high)
    if not 0 < top < math.inf:
        return math.nan if math.isnan(low) else top
    scaled = wide / top
    return top * math.sqrt(torch.dot(scaled, scaled).item())


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(_wide_dtype(tensor.dtype))


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
