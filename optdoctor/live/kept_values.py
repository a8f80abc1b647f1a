"""Values that a call was given: held as references, and as plain ones that any torch can load."""

import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NUMBERS = (type(None), bool, int, float, str)
"""What is held and saved as it is."""
DEEPEST = 16
"""Containers within one another that are opened."""
LONGEST = 1000
"""Letters of a description."""
LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr)


class Kept(NamedTuple):
    """Positional and keyword arguments of one call; containers are ours, tensors are shared."""

    args: Any
    kwargs: Any
    tensors: tuple[tuple[Tensor, int], ...]
    """With the number of writes to each when it was taken."""
    num_bytes: int

    @property
    def num_changed(self) -> int:
        """Tensors that were written to since."""
        return sum(_writes(tensor) != writes for tensor, writes in self.tensors)


class Other:
    """Something that is neither number nor tensor nor container. It may hold any amount of memory,
    and is held weakly."""

    def __init__(self, value: Any) -> None:
        self._kind = type(value).__name__
        try:
            self._value: Any = weakref.ref(value)
        except TypeError:  # of a kind that has no weak reference
            self._value = lambda: None

    def __repr__(self) -> str:
        value = self._value()
        return f"<{self._kind}>" if value is None else repr(value)


def keep(args: Any, kwargs: Any) -> Kept:
    """Holds what a call is given. No element is read or copied, and no graph is kept alive."""
    tensors: list[tuple[Tensor, int]] = []
    held_args, held_kwargs = _held(args, tensors), _held(kwargs, tensors)
    size = sum(_num_bytes(tensor) for tensor, _ in tensors)
    return Kept(held_args, held_kwargs, tuple(tensors), size)


def _held(value: Any, tensors: list[tuple[Tensor, int]], depth: int = 0) -> Any:
    if isinstance(value, np.ndarray):
        value = _as_tensor(value)
    if isinstance(value, Tensor):
        value = value.detach() if value.requires_grad else value
        tensors.append((value, _writes(value)))
        return value
    if isinstance(value, (*NUMBERS, np.generic)):
        return value
    if depth < DEEPEST and isinstance(value, dict | Mapping):
        return {key: _held(part, tensors, depth + 1) for key, part in value.items()}
    if depth < DEEPEST and isinstance(value, list | tuple):
        parts = [_held(part, tensors, depth + 1) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if depth < DEEPEST and is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name, None) for field in fields(value)}
        return _held(named, tensors, depth + 1)
    return Other(value)


def _as_tensor(array: NDArray[Any]) -> Any:
    """The same memory where it may be written to; as it is where torch has no such tensor."""
    with suppress(TypeError, ValueError, RuntimeError):
        return torch.as_tensor(array) if array.flags.writeable else torch.tensor(array)
    return array


def _num_bytes(tensor: Tensor) -> int:
    held = tensor.numel() if tensor.layout is torch.strided else tensor._nnz()
    return held * tensor.element_size()


def _writes(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def plain(value: Any) -> Any:
    """Tensors on the host, lists, tuples, dicts, numbers and strings; of others a description."""
    if type(value) in NUMBERS:
        return value
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Tensor):
        return _plain_tensor(value)
    if isinstance(value, dict):
        return {_key(key): plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return _described(value)


def _key(key: Any) -> Any:
    return key if type(key) in NUMBERS else _described(key)


def _plain_tensor(tensor: Tensor) -> Any:
    """On the host and with memory of its own: saved, a view would take along what it is part of."""
    dispatched = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    if dispatched or tensor.layout not in LAYOUTS or tensor.is_meta or tensor.is_quantized:
        return f"<{type(tensor).__name__} {tuple(tensor.shape)} {tensor.dtype}>"
    with torch.no_grad():
        own = tensor.detach()
        if own.layout is not torch.strided:
            return own.to("cpu")
        own = own.as_subclass(Tensor).to("cpu", copy=True, memory_format=torch.contiguous_format)
        return own.resolve_conj().resolve_neg()


def _described(value: Any) -> str:
    try:
        return repr(value)[:LONGEST]
    except Exception:
        return f"<{type(value).__name__}>"
