"""What a training holds, kept so that it can be put back to the bit, and in place: each object is
afterwards the one that it was, with the content that it had.

Whoever holds a reference, as a schedule to a group, a bucket to a gradient or a graph to a weight,
finds what was there. A tensor also counts as never written to: its version is put back.
"""

import copy
import random
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.autograd import grad_mode
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from optdoctor.treatments import Intervention

OPENED = (Optimizer, LRScheduler, GradScaler, Intervention)
"""Objects whose attributes are kept too; of others only which object it is."""
OPENED_OF = ("optdoctor.treatments", "pytorch_optimizer")
"""Packages of which all objects are: helpers in the state of an optimizer or of a treatment."""
NEVER = ("optdoctor.treatments.around",)
"""Its hooks come and go with the treatments."""


class Kept:
    """Takes objects with `keep`; `restore` puts them back, as often as it is asked to.

    Opens tensors, dictionaries, lists, tuples, sets, arrays, generators of random numbers,
    modules, optimizers, schedules and scalers, and what these hold. Hooks are left alone. It holds
    one copy of all tensors, where they lie.
    """

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        """By identity, so that each is kept once and none of them is freed meanwhile."""
        self._undo: list[Callable[[], None]] = []
        self._versions: list[Callable[[], None]] = []
        """Last: tensors that lie in one place count together."""

    def keep(self, value: Any) -> None:
        """Remembers what it is now."""
        if value is None or isinstance(value, str | bytes | int | float | type | torch.dtype):
            return
        if id(value) in self._known:
            return
        self._known[id(value)] = value
        if isinstance(value, Tensor):
            self._keep_tensor(value)
        elif isinstance(value, nn.Module):
            self._keep_module(value)
        elif isinstance(value, dict):
            self._keep_dict(value)
        elif isinstance(value, list | deque | set):
            self._keep_collection(value)
        elif isinstance(value, tuple | frozenset):
            self._keep_each(value)
        elif isinstance(value, np.ndarray):
            self._keep_array(value)
        elif (state := _generator(value)) is not None:
            self._undo.append(state)
        elif _is_opened(value):
            self._keep_attributes(value, _attributes(value))

    def restore(self) -> None:
        """Puts all back; what cannot be is told once the rest is.

        Raises:
            RuntimeError: an object let itself not be put back.
        """
        failures: list[Exception] = []
        with torch.no_grad():
            for undo in (*self._undo, *self._versions):
                try:
                    undo()
                except Exception as error:
                    failures.append(error)
        if failures:
            raise RuntimeError(
                f"{len(failures)} objects could not be put back, the first: {failures[0]}"
            ) from failures[0]

    def _keep_each(self, values: Iterable[Any]) -> None:
        for value in values:
            self.keep(value)

    def _keep_tensor(self, tensor: Tensor) -> None:
        if tensor.is_meta or is_lazy(tensor):
            return
        requires_grad, is_leaf = tensor.requires_grad, tensor.is_leaf
        grad = tensor.grad if is_leaf else None
        self.keep(grad)
        put_back = self._content(tensor)
        self._versions.append(_version(tensor))

        def undo() -> None:
            put_back()
            if is_leaf and tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
            if is_leaf and tensor.grad is not grad:
                tensor.grad = grad

        self._undo.append(undo)

    def _content(self, tensor: Tensor) -> Callable[[], None]:
        """How its numbers are put back."""
        if hasattr(tensor, "__tensor_flatten__"):  # made of others, as a shard or quantized state
            for name in tensor.__tensor_flatten__()[0]:
                self.keep(getattr(tensor, name))
            return lambda: None
        place = tensor.detach()  # where the numbers lie, should it be given others
        content = place.clone()

        def put_back() -> None:
            if _layout(tensor) != _layout(place):
                tensor.data = place
            if not _overlaps(place):
                place.copy_(content)

        return put_back

    def _keep_module(self, module: nn.Module) -> None:
        """Its settings, tensors and which modules it holds; the modules themselves are not opened:
        whoever keeps a model keeps each of its `modules()`."""
        held = {k: v for k, v in vars(module).items() if not _is_of_hooks(k)}
        self._keep_attributes(module, held)

    def _keep_attributes(self, owner: Any, held: dict[str, Any]) -> None:
        def undo() -> None:
            now = _attributes(owner)
            for name in now.keys() - held.keys():
                object.__delattr__(owner, name)
            for name, value in held.items():
                if name not in now or now[name] is not value:
                    object.__setattr__(owner, name, value)

        self._undo.append(undo)
        for value in held.values():
            if not isinstance(value, nn.Module):
                self.keep(value)

    def _keep_dict(self, known: dict[Any, Any]) -> None:
        items = list(known.items())

        def undo() -> None:
            now = list(known.items())
            same = len(now) == len(items) and all(
                a[0] is b[0] and a[1] is b[1] for a, b in zip(now, items, strict=True)
            )
            if not same:
                known.clear()
                known.update(items)

        self._undo.append(undo)
        for key, value in items:
            self.keep(key)
            if not isinstance(value, nn.Module):
                self.keep(value)

    def _keep_collection(self, known: Any) -> None:
        elements = list(known)

        def undo() -> None:
            if list(map(id, known)) != list(map(id, elements)):
                known.clear()
                (known.update if isinstance(known, set) else known.extend)(elements)

        self._undo.append(undo)
        self._keep_each(e for e in elements if not isinstance(e, nn.Module))

    def _keep_array(self, array: Any) -> None:
        content = array.copy()
        if array.flags.writeable:
            self._undo.append(lambda: np.copyto(array, content))


def _generator(value: Any) -> Callable[[], None] | None:
    """How a generator of random numbers is put back; None for anything else."""
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return partial(_discarding, value.set_state, state)
    if isinstance(value, random.Random):
        inner = value.getstate()
        return lambda: value.setstate(inner)
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        kept = copy.deepcopy(bits.state)
        return lambda: setattr(bits, "state", copy.deepcopy(kept))
    if isinstance(value, np.random.RandomState):
        known = value.get_state()
        return lambda: value.set_state(known)
    return None


def _discarding(function: Callable[[Any], Any], given: Any) -> None:
    function(given)


def _is_opened(value: Any) -> bool:
    module = type(value).__module__
    if module in NEVER or callable(value):
        return False
    return isinstance(value, OPENED) or module.startswith(OPENED_OF)


def _attributes(owner: Any) -> dict[str, Any]:
    """Those of its own, in a dictionary or in slots, without hooks."""
    slots = (name for kind in type(owner).__mro__ for name in vars(kind).get("__slots__", ()))
    held = {name: getattr(owner, name) for name in slots if hasattr(owner, name)}
    held |= getattr(owner, "__dict__", {})
    return {name: value for name, value in held.items() if not _is_of_hooks(name)}


def _is_of_hooks(name: str) -> bool:
    return "_hook" in name or name in ("__weakref__", "__dict__")


def _version(tensor: Tensor) -> Callable[[], None]:
    """How it is put back how often the tensor was written to. Seen in torch 2.13."""
    with suppress(Exception):  # a tensor of inference mode counts nothing
        kept = grad_mode._unsafe_preserve_version_counter(tensor)
        return lambda: kept.__exit__(None, None, None)
    return lambda: None


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return (tensor.layout, tensor.shape)
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def _overlaps(tensor: Tensor) -> bool:
    """Whether several of its elements lie in one place, as in what was expanded."""
    if tensor.layout is not torch.strided:
        return False
    return any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True))
