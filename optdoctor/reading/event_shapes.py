"""Event files whose tags come at different intervals: records of one shape are taken at once.

Where records begin is found for a whole stretch: where a clock seems to stand behind a length, and
the chain of lengths leads there. They are sorted by the length of what follows the step, and by a
hash of it without its numbers; of each kind one is parsed, and all are compared with it byte by
byte. What is not of that form is parsed by itself.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor.reading.event_points import Bytes, Numbers, Piece, clear_numbers, column
from optdoctor.reading.event_record import FOOTER, HEADER, Record
from optdoctor.store import IntArray

_LONGEST = 1 << 12  # bytes of a summary beyond which it is parsed by itself
_FEW = 8  # records that are quicker parsed
_LAYOUTS = 4  # places of the numbers in summaries of one length that are tried
_WALL_KEY, _STEP_KEY, _SUMMARY_KEY = 0x09, 0x10, 0x2A
_CLOCK_BYTES = 9
_MIX = np.uint64(0x9E3779B97F4A7C15)

Words = NDArray[np.uint64]


class _Likely(NamedTuple):
    """Where records of a summary seem to be, [n] each."""

    starts: IntArray
    stops: IntArray
    steps: IntArray
    summaries: IntArray
    """Where the field of the summary begins."""

    def part(self, which: IntArray | NDArray[np.bool_]) -> "_Likely":
        return _Likely(*(column[which] for column in self))


def take_shapes(piece: Piece, start: int, limit: int) -> int:
    """Takes the records that begin before `limit`; returns where they end.

    It ends early behind the beginning of a session, and at a record that is not there in full.
    """
    found = _Found(piece)
    likely = _likely(piece, start, limit)
    # Those that are not followed by the next likely one.
    breaks = np.flatnonzero(likely.starts[1:] != likely.stops[:-1])
    breaks = np.append(breaks, len(likely.starts) - 1)
    chosen = []
    at = start
    session: int | None = None
    while at < limit and session is None:
        i = int(np.searchsorted(likely.starts, at))
        if i < len(likely.starts) and likely.starts[i] == at:
            last = int(breaks[np.searchsorted(breaks, i)])
            chosen.append(np.arange(i, last + 1))
            at = int(likely.stops[last])
            continue
        record = piece.record(at)
        if record is None:
            break
        found.add(record, at)
        session = record.step if record.starts_session else None
        at = record.stop
    if chosen:
        _sort(piece, likely.part(np.concatenate(chosen)), found)
    found.hand_over()
    if session is not None:
        piece.points.begin_session(session)
    return at


def _likely(piece: Piece, start: int, limit: int) -> _Likely:
    """What looks like a record that begins with its clock, as all writers write them.

    Only those that are there in full, and shorter than 64 KiB.
    """
    data = piece.bytes
    at = np.flatnonzero(data[start + HEADER : limit + HEADER] == _WALL_KEY) + start
    high = data[at + 2] | data[at + 3]
    for i in range(4, 8):
        high |= data[at + i]
    lengths = data[at].astype(np.int64) | data[at + 1].astype(np.int64) << 8
    stops = at + lengths + HEADER + FOOTER
    keep = (high == 0) & (lengths > _CLOCK_BYTES) & (stops <= piece.limit)
    at, stops = at[keep], stops[keep]
    steps, summaries = _steps(data, at + HEADER + _CLOCK_BYTES)
    found = _Likely(at, stops, steps, summaries)
    return found.part((data[summaries] == _SUMMARY_KEY) & (summaries < stops - FOOTER))


def _steps(data: Bytes, at: IntArray) -> tuple[IntArray, IntArray]:
    """The steps [n] that may stand at `at` [n], and where what follows them begins [n]."""
    steps = np.zeros(len(at), np.int64)
    live = np.flatnonzero(data[at] == _STEP_KEY)
    at = at.copy()
    at[live] += 1
    for shift in range(0, 70, 7):
        if not live.size:
            break
        byte = data[at[live]]
        steps[live] |= (byte & 127).astype(np.int64) << shift
        at[live] += 1
        live = live[byte > 127]
    at[live] = len(data) - 1  # a number that does not end: nothing stands there
    return steps, at


def _sort(piece: Piece, records: _Likely, found: "_Found") -> None:
    """Finds the points of these records."""
    lengths = records.stops - FOOTER - records.summaries
    order = np.argsort(lengths, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        if len(group) <= _FEW or lengths[group[0]] > _LONGEST:
            _singly(piece, records.starts[group], found)
        else:
            _alike(piece, records.part(group), int(lengths[group[0]]), found)


def _singly(piece: Piece, starts: IntArray, found: "_Found") -> None:
    for start in starts.tolist():
        if (record := piece.record(start)) is not None:
            found.add(record, start)


def _alike(piece: Piece, records: _Likely, length: int, found: "_Found") -> None:
    """Finds the points of records whose summaries are of one length."""
    width = -(-length // 8) * 8
    rows = np.lib.stride_tricks.sliding_window_view(piece.bytes, width)[records.summaries]
    words = rows.view(np.uint64)
    left = np.arange(len(rows))
    for _ in range(_LAYOUTS):
        mask = _mask(piece, records, int(left[0]), length, width)[0]
        later = []
        for group in _groups(words[left], mask):
            group = left[group]
            if len(group) <= _FEW:
                _singly(piece, records.starts[group], found)
                continue
            own, record = _mask(piece, records, int(group[0]), length, width)
            if (own != mask).any():
                later.append(group)
                continue
            same = _equal(words[group], mask)
            if record.step != records.steps[group[0]]:  # stated once more behind the summary
                same[:] = False
            _singly(piece, records.starts[group[~same]], found)
            group = group[same]
            found.add_alike(record, records.part(group), rows[group])
        if not later:
            return
        left = np.sort(np.concatenate(later))
    _singly(piece, records.starts[left], found)


def _mask(
    piece: Piece, records: _Likely, which: int, length: int, width: int
) -> tuple[Words, Record]:
    """[words]: the bits of a summary that give it its meaning; and its record."""
    record = piece.record(int(records.starts[which]))
    assert record is not None  # only those that are there in full are likely
    mask = np.zeros(width, np.uint8)
    mask[:length] = 255
    clear_numbers(mask, record, int(records.summaries[which]))
    return mask.view(np.uint64), record


def _groups(words: Words, mask: Words) -> list[IntArray]:
    """Rows [n, words] that are of one hash under the mask, as places in the order of writing."""
    mixed = words[:, 0] & mask[0]
    for i in range(1, words.shape[1]):
        mixed *= _MIX
        mixed ^= words[:, i] & mask[i]
        mixed ^= mixed >> np.uint64(29)
    if (mixed == mixed[0]).all():
        return [np.arange(len(mixed))]
    order = np.argsort(mixed, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(mixed[order])) + 1)


def _equal(words: Words, mask: Words) -> NDArray[np.bool_]:
    """[n]: which rows [n, words] equal the first under the mask."""
    same = np.ones(len(words), bool)
    for i in range(words.shape[1]):
        same &= (words[:, i] ^ words[0, i]) & mask[i] == 0
    return same


class _Found:
    """Points of a stretch, out of order until they are handed over."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._parts: dict[str, list[tuple[IntArray, IntArray, Numbers]]] = {}

    def add(self, record: Record, start: int) -> None:
        """Adds the points of one record."""
        self._piece.points.num_unreadable += not record.is_sound
        for scalar in record.scalars:
            row = np.array([start]), np.array([record.step]), np.array([scalar.value])
            self._parts.setdefault(scalar.tag, []).append(row)

    def add_alike(self, record: Record, records: _Likely, rows: Bytes) -> None:
        """Adds the points of records [n] like `record`, the first; `rows` [n, ..] are summaries."""
        if not len(rows):
            return
        self._piece.points.num_unreadable += 0 if record.is_sound else len(rows)
        for scalar in record.scalars:
            values = column(rows, scalar, int(records.summaries[0]))
            part = records.starts, records.steps, values
            self._parts.setdefault(scalar.tag, []).append(part)

    def hand_over(self) -> None:
        """Adds all of them in the order of writing."""
        for tag, parts in self._parts.items():
            starts, steps, values = map(np.concatenate, zip(*parts, strict=True))
            if len(parts) > 1:
                order = np.argsort(starts, kind="stable")
                steps, values = steps[order], values[order]
            self._piece.points.add(tag, steps, values)
