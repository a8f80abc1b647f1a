"""Tensors that no update will move as things stand: nobody's, another model's, or all frozen.

Whether that is a fault shows while training: where no gradient comes nothing is lost, where one
comes to what is frozen or another model's, it is trained in a way of its own, and what somebody
writes to again and again is trained elsewhere. No number of a device is read to tell.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from optdoctor.live.holders import held_by_any
from optdoctor.live.sentinel import Sight, sight_of
from optdoctor.live.tensors import Tracked
from optdoctor.trace import TensorInfo

MOVES = 2
"""Looks between which a tensor was written to, from which it is trained elsewhere: weights that
are loaded once are written to as well."""

AGAIN = 64
"""Steps until all optimizers alive are asked again, then twice as many: a fused one counts no
writes. It takes a look at every object, 0.3 s in a large process."""

News = dict[int, dict[str, Any]]
"""{position of a tensor: fields of its TensorInfo}."""


@dataclass(slots=True)
class _Known:
    """What was seen of one tensor."""

    left: Sight | None
    """The gradient that lay there before, as of an earlier training: it tells of no pass."""
    writes: int
    reached: bool = False
    moves: int = 0

    @property
    def lost(self) -> bool:
        """Whether gradients come to it, and nobody moves it."""
        return self.reached and self.moves < MOVES


@dataclass(slots=True)
class _Memory:
    """What outlives a table of tensors."""

    asked: bool = False
    again: int = AGAIN
    known: dict[int, _Known] = field(default_factory=dict)
    """By the tensor's identity."""


class Strays:
    """Asks of each whether a gradient was seen, and whether others move it."""

    def __init__(self, tracked: Tracked, earlier: "Strays | None" = None) -> None:
        all_frozen = not any(t.in_optimizer and t.trainable for t in tracked.tensors)
        pairs = enumerate(zip(tracked.parameters, tracked.tensors, strict=True))
        self._strays = [(i, p, t) for i, (p, t) in pairs if _is_stray(t, all_frozen)]
        self._memory: _Memory = _Memory() if earlier is None else earlier._memory
        for _, parameter, _ in self._strays:
            self._meet(parameter, parameter.grad if earlier is None else None)
        for parameter, info in zip(tracked.parameters, tracked.tensors, strict=True):
            if info.held_elsewhere:  # also once that optimizer is gone
                self._meet(parameter, None).moves = MOVES
        self._told: News = {}

    def _meet(self, parameter: Tensor, left: Tensor | None) -> _Known:
        known = _Known(None if left is None else sight_of(left), sight_of(parameter)[1])
        return self._memory.known.setdefault(id(parameter), known)

    def look(self, step: int) -> News:
        """What is news of them, now that the update of this step has its gradients."""
        for _, parameter, _ in self._strays:
            known, writes = self._memory.known[id(parameter)], sight_of(parameter)[1]
            known.moves += self._memory.asked and known.writes != writes
            known.writes = writes
            if not known.reached and (grad := parameter.grad) is not None:
                known.reached = sight_of(grad) != known.left
        self._memory.asked = True
        if step >= self._memory.again:
            self._memory.again = 2 * step
            self._ask_all()
        return self.known()

    def _ask_all(self) -> None:
        """Looks for the holders of what is trained by nobody as far as is known."""
        several = ((id(p), info) for _, p, info in self._strays)
        known = self._memory.known
        wanted = {k for k, info in several if known[k].lost and not info.in_optimizer}
        for key in held_by_any(wanted) if wanted else ():
            known[key].moves = MOVES

    def known(self) -> News:
        """The news of this table; none before the first look."""
        news: News = {}
        for i, parameter, info in self._strays if self._memory.asked else ():
            known = self._memory.known[id(parameter)]
            fields: dict[str, Any] = {"reached": "yes" if known.reached else "no"}
            if known.moves >= MOVES and not info.in_optimizer:
                fields["held_elsewhere"] = True
            if self._told.get(i) != fields:
                news[i] = self._told[i] = fields
        return news


def _is_stray(tensor: TensorInfo, all_frozen: bool) -> bool:
    """Its setup lets no update move it, or moves what is not the model's."""
    if tensor.in_optimizer:
        return all_frozen or not tensor.in_model
    return tensor.trainable and not tensor.held_elsewhere
