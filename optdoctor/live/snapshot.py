"""Weights from before a step, within a number of bytes: a part of the tensors at each sample.

What fits is kept whole at every sample. Of the rest one part after another takes its turn, and a
tensor that is larger than all room keeps the same rows every time, or elements where one row is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from optdoctor.live.units import Unit, plain

LEAST_BYTES = 64 << 20
SHARE = 8
"""An eighth of the parameters, where that is more than the least."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One unit, or the rows or elements of a big tensor that its turn keeps."""

    unit: Unit
    stride: int = 1
    """Every so many rows; 1: all."""
    of_elements: bool = False
    """Whether it is every so many elements."""

    @property
    def num_elements(self) -> int:
        """Of what is kept."""
        rows = self.unit.num_elements if self.of_elements else self.unit.rows
        of_row = self.unit.num_elements // rows
        return len(self.unit.positions) * -(-rows // self.stride) * of_row

    @property
    def num_bytes(self) -> int:
        """Of what is kept."""
        return self.num_elements * self.unit.dtype.itemsize

    def of(self, tensor: Tensor) -> Tensor:
        """What it keeps of a tensor."""
        if self.stride == 1:
            return tensor
        return (tensor.reshape(-1) if self.of_elements else tensor)[:: self.stride]


class Snapshot:
    """Copies of weights of the sample being made. `room_bytes` None: of all weights."""

    def __init__(self, units: Sequence[Unit], room_bytes: int | None = LEAST_BYTES) -> None:
        total = sum(unit.num_bytes for unit in units)
        if room_bytes is not None and room_bytes == LEAST_BYTES:
            room_bytes = max(LEAST_BYTES, total // SHARE)
        self.turns = _turns([u for u in units if u.trainable], room_bytes)
        self.rows_only = {
            p for t in self.turns for piece in t if piece.stride > 1 for p in piece.unit.positions
        }
        """Positions of tensors whose update is that of some of their rows or elements."""
        self._turn = -1
        self._room: dict[torch.device, Tensor] = {}
        self._kept: dict[tuple[int, ...], Tensor] = {}
        self._pieces: dict[tuple[int, ...], Piece] = {}

    @property
    def num_bytes(self) -> int:
        """What the copies take at most."""
        return max((sum(piece.num_bytes for piece in turn) for turn in self.turns), default=0)

    def take(self, parameters: Sequence[Tensor]) -> None:
        """Copies the weights whose turn it is, to the same place every time."""
        self.drop()
        if not self.turns:
            return
        self._turn = (self._turn + 1) % len(self.turns)
        used: dict[torch.device, int] = {}
        for piece in self.turns[self._turn]:
            unit = piece.unit
            key = unit.positions
            self._pieces[key] = piece
            start = used.get(unit.device, 0)
            used[unit.device] = start + piece.num_bytes
            place = self._place(unit.device)[start : start + piece.num_bytes].view(unit.dtype)
            kept = place[: piece.num_elements]
            if len(key) > 1:
                self._kept[key] = unit.matrix([parameters[i] for i in key], kept)
                continue
            here = piece.of(plain(parameters[key[0]]))
            kept = kept.view(here.shape).copy_(here)
            self._kept[key] = kept.view(1, -1) if unit.stacked else kept

    def of(self, unit: Unit) -> Tensor | None:
        """[S, K] of a stacked unit, or what is kept of a big tensor; None: not its turn."""
        return self._kept.get(unit.positions)

    def now(self, unit: Unit, tensor: Tensor) -> Tensor:
        """Of a big tensor, the rows or elements of which copies are kept."""
        return self._pieces[unit.positions].of(tensor)

    def drop(self) -> None:
        """Forgets the copies; their place stays."""
        self._kept, self._pieces = {}, {}

    def _place(self, device: torch.device) -> Tensor:
        """Bytes for any turn."""
        if device not in self._room:
            most = max(
                sum(p.num_bytes for p in turn if p.unit.device == device) for turn in self.turns
            )
            self._room[device] = torch.empty(most, dtype=torch.uint8, device=device)
        return self._room[device]


def _piece(unit: Unit, room_bytes: int) -> Piece:
    """All of a unit, or as many evenly spaced rows of a big tensor as fit; of one whose rows are
    larger than the room, elements, one at least."""
    if unit.stacked:
        return Piece(unit)
    of_row = unit.num_bytes // unit.rows
    if of_row <= room_bytes:
        return Piece(unit, -(-unit.rows // (room_bytes // of_row)))
    fitting = max(1, room_bytes // unit.dtype.itemsize)
    # Odd: lengths of inner dimensions are even, and every column is to be met.
    return Piece(unit, -(-unit.num_elements // fitting) | 1, of_elements=True)


def _turns(units: Sequence[Unit], room_bytes: int | None) -> list[list[Piece]]:
    """Parts of about equal size, none above the room; stacks, being small, first."""
    if room_bytes is None:
        room_bytes = sum(unit.num_bytes for unit in units)
    pieces = [_piece(unit, room_bytes) for unit in units]
    turns: list[list[Piece]] = []
    free: list[int] = []
    for piece in sorted(pieces, key=lambda piece: -piece.num_bytes):
        for i, room in enumerate(free):
            if piece.num_bytes <= room:
                turns[i].append(piece)
                free[i] -= piece.num_bytes
                break
        else:
            turns.append([piece])
            free.append(room_bytes - piece.num_bytes)
    # Wide ones first, so that each begins where its dtype may.
    return [sorted(turn, key=lambda piece: -piece.unit.dtype.itemsize) for turn in turns]
