"""Every scalar point of a TensorBoard event file, in pieces of constant size.

Checksums are not looked at. A length that the file does not hold ends the reading.
"""

from typing import BinaryIO

from optdoctor.reading.event_points import Piece, Points
from optdoctor.reading.event_record import HEADER, length_at
from optdoctor.reading.event_rounds import take_rounds
from optdoctor.reading.event_shapes import take_shapes

PIECE = 1 << 20
MAX_RECORD = 1 << 26
"""Bytes of a record beyond which it is passed over unread: a graph or images, never scalars."""

_FIRST_SPAN = 1 << 16


def read_file(file: BinaryIO, points: Points) -> None:
    """Adds all points of one file."""
    held = b""
    span = _FIRST_SPAN
    while fresh := file.read(max(PIECE, _missing(held))):
        held += fresh
        done, span = _take(Piece(held, points), span)
        held = held[done:]
        if len(held) >= HEADER and (length := length_at(held, 0)) > MAX_RECORD:
            held = _after(file, held, length)
    points.num_unreadable += bool(held)


def _take(piece: Piece, span: int) -> tuple[int, int]:
    """Takes all whole records; returns where the first that is not begins, and a new span.

    Where rounds are not found, so many bytes go by before they are looked for again.
    """
    at = 0
    while at < piece.limit:
        after = take_rounds(piece, at)
        if after > at:
            span = _FIRST_SPAN
        else:
            after = take_shapes(piece, at, min(at + span, piece.limit))
            span = min(2 * span, PIECE)
            if after == at:
                break
        at = after
    return at, span


def _missing(held: bytes) -> int:
    """Bytes that the record at the beginning lacks, but no more than the file has shown to hold."""
    if len(held) < HEADER:
        return 0
    return min(length_at(held, 0) - len(held), 2 * len(held))


def _after(file: BinaryIO, held: bytes, length: int) -> bytes:
    """Passes over a record of which `held` is the beginning; not b"" where it does not end."""
    left = length - len(held)
    while left > 0:
        passed = len(file.read(min(left, PIECE)))
        if not passed:
            return held
        left -= passed
    return b""
