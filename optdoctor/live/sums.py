"""Exact statistics of whole tensors: sums of squares and extremes, without a look at any number.

Only operations that are cheap on a host are used: norms of short stretches, products, sums, amin,
amax. All of them let what is not finite through, so that its presence is free; the count is taken
with care, of the tensors that showed it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from optdoctor.live.room import Room, written
from optdoctor.live.units import CHUNK, HALF, chunks
from optdoctor.optimizers.elements import wide

LEAST_SQUARE = 1e-32
"""Mean square below which squares of elements may lie outside of float32 (normal from 1.2e-38)."""
MEANS = ("effective_lr", "moment_ratio", "update_realized")
"""Of these, and of sums of squares, NaN means not measured: what came out as NaN is infinite."""

SHORT, LEAST_SHORT = 256, 32
"""Elements of a stretch whose norm is one operation that is read only, a third of the cost of a
product and its sum; of more float32 loses digits where all are alike."""

ON_DEVICE = 1 << 22
"""Elements that are taken at once on a device where all are looked at with care: float32 still
counts so many, and what that takes of its memory is not noticed."""

Column = dict[str, Tensor]
"""{statistic: [n]} of n rows of a matrix, or [1] of one tensor."""


def rows(matrix: Tensor, *, extremes: bool) -> Column:
    """Of each row of [S, K]: squares, and if asked for low and high; NaN where an element is."""
    if matrix.dtype in HALF:
        matrix = matrix.float()
    length = math.gcd(matrix.shape[1], SHORT)
    if length < LEAST_SHORT:
        squares = (matrix * matrix).sum(1)
    else:
        norms = torch.linalg.vector_norm(matrix.view(-1, length), dim=1)
        squares = norms.mul_(norms).view(len(matrix), -1).sum(1)
    column = {"squares": squares}
    if extremes:
        column |= {"low": matrix.amin(1), "high": matrix.amax(1)}
    return column


def pieces(flat: Tensor, room: Room, *, extremes: bool) -> Column:
    """The same of a big tensor [K], chunk by chunk."""
    several = chunks(flat)
    scratch = _scratch(several[0], room)
    squares, lows, highs = [], [], []
    for chunk in several:
        if extremes:
            low, high = torch.aminmax(chunk)
            lows.append(low)
            highs.append(high)
        squares.append(_square(chunk, scratch[: chunk.numel()]))
    column = {"squares": _total(squares)}
    if extremes:
        column |= {
            "low": torch.stack(lows).amin(0, keepdim=True),
            "high": torch.stack(highs).amax(0, keepdim=True),
        }
    return column


def changes(new: Tensor, old: Tensor, room: Room) -> Column:
    """Squares of each row of new - old, [S, K] both, in float32 at least."""
    new, old = wide(new), wide(old)
    return rows(torch.sub(new, old, out=written(new, room)), extremes=False)


def differences(new: Tensor, old: Tensor, room: Room) -> Column:
    """Squares of new - old, [K] both, chunk by chunk; in float32 at least."""
    several = chunks(new)
    scratch = _scratch(several[0], room)
    squares = []
    for after, before in zip(several, chunks(old), strict=True):
        part = scratch[: after.numel()]
        if after.dtype in HALF:
            part.copy_(after).sub_(before)
        else:
            torch.sub(after, before, out=part)
        squares.append(part.mul_(part).sum())
    return {"squares": _total(squares)}


def _total(sums: list[Tensor]) -> Tensor:
    """[1]"""
    return torch.stack(sums).sum(0, keepdim=True, dtype=torch.float64)


def _square(chunk: Tensor, part: Tensor) -> Tensor:
    """The sum of squares. Not as a product with itself: where all elements are alike, that adds
    them up one by one, and float32 loses 1e-4."""
    if chunk.dtype in HALF:
        part.copy_(chunk)
        return part.mul_(part).sum()
    return torch.mul(chunk, chunk, out=part).sum()


def _scratch(chunk: Tensor, room: Room) -> Tensor:
    return written(chunk, room, torch.float32 if chunk.dtype in HALF else chunk.dtype)


def bounded(tensor: Tensor) -> Sequence[Tensor]:
    """A tensor [..., K] in pieces [..., k], for what needs memory of their size."""
    return tensor.split(CHUNK if tensor.device.type == "cpu" else ON_DEVICE, -1)  # type: ignore[no-untyped-call, no-any-return]


def careful(tensor: Tensor, old: Tensor | None = None) -> Column:
    """[1] each, in float64 over finite elements: squares, low, high, and how many are not finite;
    of the tensor, or of what it is more than an old one, in float32 at least.

    `low` is inf and `high` -inf where none is finite. Dear: a dozen passes.
    """
    several = bounded(tensor.reshape(-1))
    olds = [None] * len(several) if old is None else bounded(old.reshape(-1))
    kept = several[0].clone() if old is None else wide(several[0]).clone()
    more, exact = torch.empty_like(kept), kept.double()
    hits = torch.empty_like(kept, dtype=torch.float32)
    squares, lows, highs, bad = [], [], [], []
    for chunk, before in zip(several, olds, strict=True):
        n = chunk.numel()
        if before is not None:
            chunk = more[:n].copy_(chunk).sub_(before)
        finite = torch.nan_to_num(chunk, 0, 0, 0, out=kept[:n])
        bad.append(torch.ne(chunk, finite, out=hits[:n]).sum())
        double = exact[:n].copy_(finite)
        squares.append(double.mul_(double).sum())
        inf = torch.inf
        lows.append(torch.nan_to_num(chunk, inf, inf, inf, out=finite).amin())
        highs.append(torch.nan_to_num(chunk, -inf, -inf, -inf, out=finite).amax())
    return {
        "squares": _total(squares),
        "low": torch.stack(lows).amin(0, keepdim=True),
        "high": torch.stack(highs).amax(0, keepdim=True),
        "bad": _total(bad),
    }


def suspects(
    rows: Mapping[str, NDArray[np.float64]], of: str, num_elements: NDArray[np.float64]
) -> list[int]:
    """Positions whose sum of squares needs care: it is not finite, or so small that float32 may
    have lost parts of it. A tensor whose extremes are 0 is nothing but 0."""
    squares = rows.get(f"{of} squares")
    if squares is None:
        return []
    odd = (squares < LEAST_SQUARE * num_elements) | (squares == np.inf)
    if (high := rows.get(f"{of} high")) is not None:
        odd &= ~((high == 0) & (rows[f"{of} low"] == 0))
    return [int(i) for i in np.flatnonzero(odd)]


Entries = dict[str, list[tuple[NDArray[np.int64], Tensor]]]
"""{statistic: [([n] positions of the tensors, [n])]}"""


@dataclass(slots=True)
class Sheet:
    """Numbers of one sample on their way to the host: where they lie, whose they are."""

    entries: dict[torch.device, Entries] = field(default_factory=dict)

    def put(self, name: str, positions: NDArray[np.int64], values: Tensor) -> None:
        """[n] numbers; that of a position that comes again is the last."""
        entries = self.entries.setdefault(values.device, {})
        entries.setdefault(name, []).append((positions, values))

    def put_all(self, of: str, positions: NDArray[np.int64], column: Mapping[str, Tensor]) -> None:
        """A column, its statistics named "<of> <statistic>"."""
        for name, values in column.items():
            self.put(f"{of} {name}", positions, values)

    def put_plain(self, positions: NDArray[np.int64], column: Mapping[str, Tensor]) -> None:
        """A column whose statistics are channels."""
        for name, values in column.items():
            self.put(name, positions, values)

    def devices(self) -> Iterable[torch.device]:
        """Where numbers lie."""
        return self.entries.keys()

    def packed(self, device: torch.device) -> Tensor:
        """[N] float64: all numbers of one device in one tensor there; a count is exact to 2^24."""
        several = self.entries[device].values()
        return torch.cat([values for entries in several for _, values in entries]).double()

    def unpacked(
        self,
        packed: Mapping[torch.device, NDArray[np.float64]],
        num_tensors: int,
        over: Mapping[str, NDArray[np.float64]] | None = None,
    ) -> dict[str, NDArray[np.float64]]:
        """{statistic: [P]}, laid over another table; NaN where nothing was measured."""
        found = {name: row.copy() for name, row in (over or {}).items()}
        for device, numbers in packed.items():
            start = 0
            for name, entries in self.entries[device].items():
                positions = np.concatenate([some for some, _ in entries])
                values = numbers[start : start + len(positions)]
                start += len(positions)
                if name.endswith(" squares") or name in MEANS:
                    values = np.where(np.isnan(values), np.inf, values)
                found.setdefault(name, np.full(num_tensors, np.nan))[positions] = values
        return found
