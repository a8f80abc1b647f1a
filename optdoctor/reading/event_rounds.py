"""Event files whose writer repeats itself: the same tags in the same order at every step.

One round of records is parsed. Those after it that equal it in all but steps, numbers, clocks and
checksums are taken at once.
"""

import numpy as np

from optdoctor.reading.event_points import Bytes, Numbers, Piece, clear_numbers, column
from optdoctor.reading.event_record import FOOTER, HEADER, Record
from optdoctor.store import IntArray

_MOST_RECORDS = 1024
_WORTH = 16  # rounds that repay having learned one
_FIRST_ROWS, _MOST_BYTES = 16, 1 << 18  # that are compared at once


def take_rounds(piece: Piece, start: int) -> int:
    """Takes rounds from `start` on; returns where they end, `start` where there are too few."""
    rest, records = _next_round(piece, start)
    if not records:
        return start
    begin = rest[-1].stop
    size = records[-1].stop - begin
    most = (piece.limit - begin) // size
    if most < _WORTH:
        return start
    rows = piece.bytes[begin : begin + most * size].reshape(most, size)
    num_rows = _equal_rows(rows, _mask_of(records, begin))
    if num_rows < _WORTH:
        return start
    _add(piece, rest, start, piece.bytes[start:begin].reshape(1, -1))
    _add(piece, records, begin, rows[:num_rows])
    return begin + num_rows * size


def _next_round(piece: Piece, start: int) -> tuple[list[Record], list[Record]]:
    """The records left of this step, and all of the next; [] where they are not all scalars."""
    steps: list[list[Record]] = []
    at = start
    for _ in range(_MOST_RECORDS):
        record = piece.record(at)
        if record is None or not record.scalars or record.starts_session:
            break
        if not steps or record.step != steps[-1][-1].step:
            if len(steps) == 2:
                return steps[0], steps[1]
            steps.append([])
        steps[-1].append(record)
        at = record.stop
    return [], []


def _add(piece: Piece, records: list[Record], begin: int, rows: Bytes) -> None:
    """Adds the points of rows [n, size] of the shape of these records, which begin there."""
    columns: dict[str, list[tuple[IntArray, Numbers]]] = {}
    for record in records:
        at = record.step_at - begin
        steps = _steps(rows[:, at : at + record.step_width]) if record.step_width else None
        for scalar in record.scalars:
            values = column(rows, scalar, begin)
            known = np.zeros(len(rows), np.int64) if steps is None else steps
            columns.setdefault(scalar.tag, []).append((known, values))
    for tag, parts in columns.items():
        # A tag that comes twice in a round takes turns.
        steps, values = (np.stack(part, axis=1).ravel() for part in zip(*parts, strict=True))
        piece.points.add(tag, steps, values)


def _mask_of(records: list[Record], begin: int) -> Bytes:
    """[size]: the bits of a round that begins there that give it its meaning."""
    mask = np.full(records[-1].stop - begin, 255, np.uint8)
    start = 0
    for record in records:
        stop = record.stop - begin
        mask[start + 8 : start + HEADER] = mask[stop - FOOTER : stop] = 0
        if record.wall_at:
            mask[record.wall_at - begin : record.wall_at - begin + 8] = 0
        if record.step_width:
            at = record.step_at - begin
            mask[at : at + record.step_width] = 128  # how wide it is must not change
        clear_numbers(mask, record, begin)
        start = stop
    return mask


def _equal_rows(rows: Bytes, mask: Bytes) -> int:
    """How many rows [n, size] from the first on equal it under the mask."""
    size = rows.shape[1]
    wanted = rows[0] & mask
    done, num_rows = 0, _FIRST_ROWS
    while done < len(rows):
        part = rows[done : done + num_rows] & mask
        part ^= wanted
        if part.any():
            return done + int(part.any(axis=1).argmax())
        done += len(part)
        num_rows = max(min(num_rows * 4, _MOST_BYTES // size), _FIRST_ROWS)
    return done


def _steps(columns: Bytes) -> IntArray:
    """[n] from numbers of variable width [n, width]."""
    steps = np.zeros(len(columns), np.int64)
    for i in range(columns.shape[1]):
        steps |= (columns[:, i] & 127).astype(np.int64) << min(7 * i, 63)
    return steps
