"""One small trained tensor whose backward passes tell of all: whether anybody had set its gradient
to zero before, and how many passes an update adds up.

No number of a device is read, no gradient is held, and none is changed.
"""

from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor

from optdoctor.live.guard import Guard
from optdoctor.live.sentinel import STRIDED, Sight, is_host, sight_of
from optdoctor.live.tensors import Tracked
from optdoctor.live.units import HALF
from optdoctor.optimizers.untraced import untraced

FEW = 8
"""Elements below which all may have a gradient of 0 while others have none."""
ALIKE = 3
"""Updates in a row after which a number of micro-batches is taken for that of the run."""


class Witness:
    """Chosen after an update among tensors that have a gradient; anew where no pass reaches it."""

    def __init__(self, tracked: Tracked, guard: Guard) -> None:
        pairs = zip(tracked.parameters, tracked.tensors, strict=True)
        several = [p for p, t in pairs if t.in_optimizer and t.trainable and _is_whole(p)]
        self._candidates = sorted(several, key=lambda p: (p.numel() < FEW, p.numel()))
        self._guard = guard
        self._next = self._unreached = 0
        self._chosen: Tensor | None = None
        self._handles: list[Any] = []
        self._left: Sight | None = None
        """How the last pass, or the last update, has left its gradient."""
        self._suspected = False
        """Whether the newest update found what was left. Only then sizes are looked at: writes
        through `.data` do not count as such, and a loop may shrink what it keeps on purpose."""
        self._size: float | Tensor | None = None
        """The size of what that update has left. What happens to it before the step tells nothing:
        torch's scaler divides without a write that counts."""
        self._begin()

    def _begin(self) -> None:
        self._reached = self._renewed = False
        self._held: bool | Tensor = True
        self.passes = 0
        """Backward passes that the gradient of this update adds up so far."""

    def finish(self) -> tuple[float | Tensor | None, int]:
        """An update was made: (1 where its first backward pass and all others found the gradient
        as it was left, 0 where not, None where no pass reached it; `passes`)."""
        told: float | Tensor | None = None
        if self._reached:
            told = 0.0 if self._renewed else _number(self._held)
        passes = self.passes
        self._unreached = 0 if self._reached else self._unreached + 1
        # Without one that is reached, a search at every update would cost as much as a sample.
        if self._unreached and self._unreached & (self._unreached - 1) == 0:
            self._choose()
        grad = None if self._chosen is None else self._chosen.grad
        self._left = None if grad is None else _own_sight(grad)
        self._size = _size(grad) if self._suspected else None
        self._begin()
        return told, passes

    def close(self) -> None:
        """Removes the hooks. Within a backward pass too: torch walks through a copy of them."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._chosen = [], None

    def _choose(self) -> None:
        self.close()
        for i in range(len(self._candidates)):
            parameter = self._candidates[(self._next + i) % len(self._candidates)]
            if _can_tell(parameter):
                self._next += i + 1
                self._chosen = parameter
                before, after = _weakly(self._before), _weakly(self._after)
                self._handles = [
                    parameter.register_hook(before),  # type: ignore[no-untyped-call]
                    parameter.register_post_accumulate_grad_hook(after),  # type: ignore[no-untyped-call]
                ]
                return

    def _before(self, gradient: Tensor) -> None:
        """A pass reached the tensor, and has not yet added to its gradient."""
        with self._guard("backward"):
            old = None if self._chosen is None else self._chosen.grad
            found = old is not None and _own_sight(old) == self._left
            if not self._reached:
                self._suspected = found
            if old is None or not found or not self._holds(old):
                self._renewed, self.passes = True, 0

    def _holds(self, old: Tensor) -> bool:
        """Whether not all of it is 0, as far as that is known here; at the first pass of an update
        whether it is as the update before has left it too."""
        if self._renewed and not is_host(old.device):
            return True
        is_sized = self._size is not None and not self._reached
        held = _is_kept(_size(old), self._size) if is_sized else _holds(old)
        if isinstance(held, bool):
            return held
        self._held = held if isinstance(self._held, bool) else self._held & held
        return True

    def _after(self, parameter: Tensor) -> None:
        """It has: a gradient that was merely asked for does not come here."""
        self._reached = True
        self.passes += 1
        try:  # a guard would cost many times what it guards
            self._left = None if parameter.grad is None else _own_sight(parameter.grad)
        except Exception:
            self._left = None  # as if it had been replaced


class MicroBatches:
    """Learns how many micro-batches an update adds up, where passes and losses tell the same.

    Several backward passes may be those of several losses of one batch: only as many losses,
    each logged, make them micro-batches.
    """

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=ALIKE)
        self.learnt = 0

    def add(self, passes: int, losses: int) -> int | None:
        """Takes an update; the number where it is news."""
        self._last.append(passes if passes == losses else 0)
        number = self._last[0]
        same = len(self._last) == ALIKE and len(set(self._last)) == 1
        if not same or number == self.learnt or number < (1 if self.learnt else 2):
            return None
        self.learnt = number
        return number


def _weakly(method: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """The method as a hook that does not keep its object: torch holds hooks where no collector of
    garbage sees them, and the object holds the tensor that they hang on."""
    known = WeakMethod(method)

    def call(tensor: Tensor) -> None:
        if (alive := known()) is not None:
            alive(tensor)

    return untraced(call)


def _own_sight(gradient: Tensor) -> Sight:
    """Part of a buffer, as in replicas, it counts the writes to all of that: it is known by its
    place, too, since a new one may come to stand where an old one was freed."""
    return (id(gradient), -gradient.data_ptr()) if gradient._is_view() else sight_of(gradient)


def _is_whole(parameter: Tensor) -> bool:
    return parameter.is_leaf and not hasattr(parameter, "to_local") and parameter.numel() > 0


def _can_tell(parameter: Tensor) -> bool:
    grad = parameter.grad
    if grad is None or grad.layout is not STRIDED or not parameter.requires_grad:
        return False
    held = _holds(grad)
    return held if isinstance(held, bool) else True


def _holds(gradient: Tensor) -> bool | Tensor:
    """Whether any element is not 0: setting them to zero through `.data` counts as no write."""
    if gradient.layout is not STRIDED:
        return False
    with torch.no_grad():
        found = gradient.detach().any()
    return bool(found) if is_host(found.device) else found


def _size(gradient: Tensor | None) -> float | Tensor | None:
    """The sum of its absolute values, which underflows no sooner than they do."""
    if gradient is None or gradient.layout is not STRIDED:
        return None
    with torch.no_grad():
        wide = torch.float32 if gradient.dtype in HALF else None
        size = torch.linalg.vector_norm(gradient.detach(), 1, dtype=wide)
    return float(size) if is_host(size.device) else size


def _is_kept(size: float | Tensor | None, left: float | Tensor | None) -> bool | Tensor:
    """Whether these are one size, and not 0; NaN is as large as NaN."""
    if size is None or left is None:
        return False
    if isinstance(size, Tensor) and isinstance(left, Tensor):
        return ((size == left) & (size != 0)) | (size.isnan() & left.isnan())
    return (size == left != 0) or (size != size and left != left)


def _number(held: bool | Tensor) -> float | Tensor:
    return float(held) if isinstance(held, bool) else held.double()
