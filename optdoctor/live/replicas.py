"""Whether copies of the same weights, one in each process, still are the same to the bit.

No collective is called: a process without a doctor, or at another update, would never answer it.
Each process leaves a few numbers in the store that its process group was made with, and the first
of them reads what all others have left. What is not there yet is not waited for.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from optdoctor.live.copies import Copies, copies_of
from optdoctor.live.tensors import Tracked
from optdoctor.live.units import STACKED, plain
from optdoctor.trace import Fact

DIFFER, UNWRAPPED, DISTANCE = "replicas_differ", "unwrapped_differ", "replica_distance"
BY_TENSOR = "tensor_replica_distance"

LEADING = 3
"""Bits of the number of an update, beside zeros, at which weights are compared: all numbers to 8,
then 4 to each doubling. Processes agree on them without a word."""
WAITING = 4
"""Comparisons that may wait for other processes; a further one takes the place of the oldest."""
MOST_READ = 8
"""Processes of which it is told how far they are apart; of the others only that they are."""
HEAD = struct.Struct("<QQQ?8s8s")
"""Generation, update, signature, whether the wrapper leaves gradients as they are, digest of the
weights in wrappers and of those beside."""
DETAIL = struct.Struct("<QQ")

_generations: dict[int, int] = {}
"""By place: how many runs have taken it. Processes that watch the same runs number them alike; once
they have not, nothing is compared any more."""
_taken: set[int] = set()


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the copies of one update were."""

    step: int
    values: Mapping[str, float]
    """Step channels."""
    facts: Mapping[str, Fact]
    apart: NDArray[np.float32] | None
    """[P] `tensor_replica_distance`; None where all copies are the same."""


@dataclass(slots=True)
class _Print:
    """Of the weights after one update: sums of their bits, and some elements."""

    update: int
    step: int
    slot: int
    unreduced: bool
    copies: Copies
    numbers: Tensor
    """[N + N * k] float64: sums of bits, in the place of numbers, and elements; on their way."""
    order: list[int]
    """[N] whose they are."""
    event: Any = None
    sums: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    some: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def arrived(self, *, wait: bool = False) -> bool:
        """Whether the numbers are there; they are then in `sums` [N] and `some` [N, k]."""
        if self.event is not None:
            if wait:
                self.event.synchronize()
            elif not self.event.query():
                return False
        n, numbers, back = len(self.order), self.numbers.numpy(), np.argsort(self.order)
        self.sums = numbers[:n].view(np.uint64)[back]
        self.some = numbers[n:].reshape(n, -1).astype(np.float32)[back]
        return True

    def digests(self) -> tuple[bytes, bytes]:
        """Of the weights in wrappers, and of those beside."""
        parts = np.split(self.sums, [self.copies.num_wrapped])
        return tuple(blake2b(p.tobytes(), digest_size=8).digest() for p in parts)  # type: ignore[return-value]


class Replicas:
    """Of one run. `at_work` is asked once after each of its updates."""

    def __init__(self, told: Fact = None) -> None:
        """`told` is the fact `replicated`."""
        self._told = told
        self._local = False
        """Whether a wrapper was ever within `no_sync` at an update that was compared."""
        self._tracked: Tracked | None = None
        self._copies: Copies | None = None
        self._asked = False
        self._place: int | None = None
        self._generation = 0
        self._update = self._turn = self._num_turns = 0
        self._next = 1
        """The update after which there is something to do: a turn, or what was not there yet."""
        self._flying: list[_Print] = []
        self._pending: list[_Print] = []

    def of(self, model: nn.Module, tracked: Tracked) -> None:
        """Takes a new table of tensors."""
        self._model, self._tracked, self._asked = model, tracked, False
        self._flying, self._pending = [], []

    def at_work(self) -> bool:
        """Whether there is something to do after this update."""
        self._update += 1
        return self._update >= self._next

    def look(self, step: int) -> list[Comparison]:
        """Reads the weights if it is their turn; what is known by now of earlier ones."""
        if is_turn(self._update):
            self._turn = self._update
            self._num_turns += 1
            self._read(step)
        told = self._told_by_now()
        self._next = turn_after(self._update)
        if self._flying or self._pending:  # ever later, as a process may not be watched
            self._next = min(self._next, self._update + max(self._update - self._turn, 1))
        return told

    def close(self) -> list[Comparison]:
        """The last that is known. Only the first process asks: a store may be gone by now."""
        told: list[Comparison] = []
        if self._copies is not None and self._copies.leads:
            told = self._told_by_now(wait=True)
        self._flying, self._pending = [], []
        _taken.discard(-1 if self._place is None else self._place)
        return told

    def _read(self, step: int) -> None:
        """Begins the print of the weights as they are."""
        if not self._asked and self._tracked is not None:
            self._asked = True
            self._copies = copies_of(self._model, self._tracked, self._told)
        if self._copies is None or self._tracked is None or store() is None:
            return
        if self._place is None:
            self._place = next(i for i in count() if i not in _taken)
            _taken.add(self._place)
            self._generation = _generations[self._place] = _generations.get(self._place, 0) + 1
        parameters = [self._tracked.parameters[i] for i in self._copies.positions]
        packed, order = _packed(parameters, self._copies.num_samples)
        one = _Print(
            update=self._update,
            step=step,
            slot=self._num_turns % WAITING,
            unreduced=self._copies.unreduced(),
            copies=self._copies,
            numbers=packed.to("cpu", non_blocking=True),
            order=order,
        )
        if packed.device.type == "cuda":
            one.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            one.event.record(torch.cuda.current_stream(packed.device))
        self._flying = [*self._flying, one][-WAITING:]

    def _told_by_now(self, *, wait: bool = False) -> list[Comparison]:
        shelf = store()
        if shelf is None:
            return []
        while self._flying and self._flying[0].arrived(wait=wait):
            one = self._flying.pop(0)
            if one.copies.leads:
                self._pending = [*self._pending, one][-WAITING:]
            else:
                self._leave(shelf, one)
        told = []
        for one in list(self._pending):
            heads = self._heads(shelf, one)
            if heads is None:
                continue
            self._pending = [other for other in self._pending if other.update > one.update]
            if heads and (comparison := self._compared(shelf, one, heads)) is not None:
                told.append(comparison)
        return told

    def _key(self, one: _Print, rank: int, what: str) -> str:
        """Written over by later updates: few keys, none of which is ever taken away."""
        return f"optdoctor/replicas/{self._place}/{one.slot}/{rank}/{what}"

    def _leave(self, shelf: Any, one: _Print) -> None:
        """Details first: whoever finds the head finds them too."""
        hashes = _short(one.sums).tobytes()
        detail = DETAIL.pack(self._generation, one.update) + hashes
        shelf.set(self._key(one, one.copies.rank, "detail"), detail + one.some.tobytes())
        at = self._generation, one.update
        head = HEAD.pack(*at, one.copies.signature, one.unreduced, *one.digests())
        shelf.set(self._key(one, one.copies.rank, "head"), head)

    def _heads(self, shelf: Any, one: _Print) -> list[tuple[Any, ...]] | None:
        """Of all other processes; None if one has yet to come, none if one has gone on."""
        keys = [self._key(one, rank, "head") for rank in one.copies.others]
        if not shelf.check(keys):  # what is there can be read without waiting
            return None
        heads = [HEAD.unpack(head) for head in shelf.multi_get(keys)]
        at = self._generation, one.update
        if any(head[:2] > at for head in heads):
            return []
        return heads if all(head[:2] == at for head in heads) else None

    def _compared(
        self, shelf: Any, one: _Print, heads: Sequence[tuple[Any, ...]]
    ) -> Comparison | None:
        """None where the processes do not hold the same tensors, so that nothing can be said."""
        copies = one.copies
        if any(head[2] != copies.signature for head in heads):
            return None
        wrapped, beside = one.digests()
        pairs = list(zip(copies.others, heads, strict=True))
        apart = [rank for rank, head in pairs if head[4] != wrapped]
        further = [rank for rank, head in pairs if head[5] != beside]
        values: dict[str, float] = {}
        if copies.num_wrapped:
            values[DIFFER] = float(len(apart))
        if copies.num_wrapped < len(copies.positions):
            values[UNWRAPPED] = float(len(further))
        self._local |= one.unreduced or any(head[3] for head in heads)
        facts: dict[str, Fact] = {"replicated": "local" if self._local else copies.why}
        odd = sorted({*apart, *further})
        if not odd:
            return Comparison(one.step, values, facts, None)
        facts["replicas_apart"] = _names(odd)
        distances = [
            found
            for rank in odd[:MOST_READ]
            if (found := self._distances(shelf, one, rank)) is not None
        ]
        row = np.full(copies.num_tensors, np.nan, np.float32)
        if distances:
            row[list(copies.positions)] = np.max([each for each, _ in distances], axis=0)
            whole = max(whole for _, whole in distances)
            if apart and np.isfinite(whole):
                values[DISTANCE] = whole
        return Comparison(one.step, values, facts, row if distances else None)

    def _distances(
        self, shelf: Any, one: _Print, rank: int
    ) -> tuple[NDArray[np.float32], float] | None:
        """([N] distance of each tensor, that of all in wrappers); None if they are gone."""
        key, sizes = self._key(one, rank, "detail"), one.copies.sizes
        detail = shelf.get(key) if shelf.check([key]) else b""
        n, k = len(sizes), one.copies.num_samples
        if len(detail) != DETAIL.size + 4 * n * (1 + k):
            return None
        if DETAIL.unpack_from(detail) != (self._generation, one.update):
            return None
        theirs = np.frombuffer(detail, "<u4", n, DETAIL.size)
        there = np.frombuffer(detail, "<f4", n * k, DETAIL.size + 4 * n).reshape(n, k)
        mine = one.some.astype(np.float64)
        means = np.minimum(sizes, k)
        with np.errstate(all="ignore"):
            change = np.square(there - mine).sum(1) / means
            square = np.square(mine).sum(1) / means
            each = np.sqrt(change / square).astype(np.float32)
            inside = slice(0, one.copies.num_wrapped)
            weighed = [(part * sizes)[inside].sum() for part in (change, square)]
            whole = float(np.sqrt(weighed[0] / weighed[1]))
        differ = theirs != _short(one.sums)
        least = np.finfo(np.float32).tiny  # they differ, if not in what was taken
        each = np.where(each > 0, each, least)
        return np.where(differ, each, np.float32(0)), whole


def is_turn(update: int) -> bool:
    """Whether weights are compared after the update of this number."""
    return turn_after(update - 1) == update


def turn_after(update: int) -> int:
    """The first of them that comes after it."""
    zeros = max(update.bit_length() - LEADING, 0)
    return ((update >> zeros) + 1) << zeros


def store() -> Any:
    """The store that the default process group was made with; None where there is none.

    Torch has no public way to it; `_get_default_store` was tried in 2.13. A backend may do
    without one, as mpi does. Asked for anew each time: to hold it would keep its port in use.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    found = getattr(distributed.distributed_c10d, "_get_default_store", None)
    return None if found is None else found()


@torch.no_grad()
def _packed(tensors: Sequence[Tensor], num_samples: int) -> tuple[Tensor, list[int]]:
    """[N + N * k] float64 on their device: sums of bits as they are, then elements; and whose.

    Small tensors of one shape are stacked, so that a handful of operations reads all of them.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    whole = [plain(tensor).detach() for tensor in tensors]
    for i, tensor in enumerate(whole):
        mark = i if tensor.numel() > STACKED else -1
        alike.setdefault((tensor.shape, tensor.dtype, mark), []).append(i)
    sums, some = [], []
    for several in alike.values():
        if len(several) == 1:
            matrix = whole[several[0]].reshape(1, -1)
            sums.append(sum_of_bits(matrix[0]).reshape(1))
        else:
            matrix = torch.stack([whole[i] for i in several]).reshape(len(several), -1)
            sums.append(sums_of_bits(matrix))
        taken = matrix[:, :: max(matrix.shape[1] // num_samples, 1)][:, :num_samples].double()
        some.append(nn.functional.pad(taken, (0, num_samples - taken.shape[1])).reshape(-1))
    order = [i for several in alike.values() for i in several]
    return torch.cat([torch.cat(sums).view(torch.float64), *some]), order


def sums_of_bits(matrix: Tensor) -> Tensor:
    """[S]: of each row of [S, K] the int64 sum, modulo 2^64, of its bytes read 8 by 8.

    Integers add up to the same in any order, and reading so wide costs what a norm does.
    """
    if missing := -matrix.shape[1] % (8 // matrix.element_size()):
        matrix = torch.cat([matrix, matrix.new_zeros(len(matrix), missing)], 1)
    return matrix.view(torch.int64).sum(1)


def sum_of_bits(flat: Tensor) -> Tensor:
    """[]: the same of one tensor [K], without a copy of it where it lies well."""
    width = 8 // flat.element_size()
    whole = flat.numel() // width * width
    head, tail = flat[:whole], flat[whole:]
    if head.storage_offset() % width:
        head = head.clone()
    total = head.view(torch.int64).sum()
    return total + sums_of_bits(tail.reshape(1, -1))[0] if tail.numel() else total


def _short(sums: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """[n]: 4 bytes of each that depend on all 8."""
    mixed = sums ^ (sums >> np.uint64(32))
    return ((mixed * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)).astype("<u4")


def _names(ranks: Sequence[int]) -> str:
    """ "1, 3 and 5 more"."""
    shown = ", ".join(map(str, ranks[:MOST_READ]))
    return f"{shown} and {len(ranks) - MOST_READ} more" if len(ranks) > MOST_READ else shown
