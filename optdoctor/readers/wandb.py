"""The file of a wandb run, `run-<id>.wandb`, as it stands on disk: offline, or not yet uploaded.

It is a log of the form of LevelDB's: a header, then blocks of 32 KiB with records that may go on
from block to block. Each record is a protocol buffer, of which only those of the history count. A
value is JSON text, or since wandb 0.31 typed. wandb itself is not needed.
"""

import json
import struct
from array import array
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from optdoctor.knowledge.log_names import STEP_NAMES
from optdoctor.reading.curve_names import OWN, Floats, Meaning, fill, meaning_of
from optdoctor.reading.log import Log, number
from optdoctor.reading.protobuf import BYTES, FIXED64, VARINT, Malformed, fields, signed, varint
from optdoctor.reading.reader import Head, Rank, Reader, Source
from optdoctor.store import IntArray

MAGIC = b":W&B"
MAX_RECORD = 1 << 26
"""Bytes of a record beyond which it is dropped."""
MAX_NAMES = 10_000
MAX_KEY = 1000
"""Bytes of a name beyond which it is none."""
MAX_JSON = 1 << 16
"""Bytes of a value beyond which it is no number and no few of them."""

_BLOCK, _FILE_HEADER, _RECORD_HEADER = 1 << 15, 7, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY = 2  # field of a record
_ITEM, _STEP = 1, 2  # fields of the history
_KEY, _NESTED_KEY, _INTEGER, _NUMBER, _JSON, _VALUE_JSON = 1, 2, 5, 6, 8, 16  # of an item
_CLOCKS = ("train/global_step", "trainer/global_step", "global_step")


def _sniff(head: Head) -> int:
    """Rows at the beginning, about: each says its step."""
    return max(head.data.count(b"_step"), 1) if head.data.startswith(MAGIC) else 0


def _read(source: Source, log: Log) -> None:
    history = _History()
    with source.open() as file:
        for record in _records(file, log):
            try:
                history.add(record)
            except Malformed:
                log.skip()
    history.fill(log)
    log.count_from_one()


def _records(file: BinaryIO, log: Log) -> Iterator[bytes]:
    """Whole records; what is torn is counted and left out."""
    parts: list[bytes] = []
    size = 0
    at = _FILE_HEADER
    for block in _blocks(file):
        while at + _RECORD_HEADER <= len(block):
            length, kind = struct.unpack_from("<HB", block, at + 4)
            start, at = at + _RECORD_HEADER, at + _RECORD_HEADER + length
            if kind == 0 and length == 0:  # filled up with zeros
                break
            if at > len(block) or not _FULL <= kind <= _LAST:
                log.skip()
                parts, size = [], 0
                break
            if kind in (_FULL, _FIRST):
                parts, size = [], 0
            elif not parts:
                continue  # its beginning was lost
            size += length
            if size > MAX_RECORD:
                parts = []
                continue
            parts.append(block[start:at])
            if kind in (_FULL, _LAST):
                yield b"".join(parts)
                parts, size = [], 0
        at = 0
    if parts:
        log.skip()


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """The file in blocks of equal size, the last as long as it is."""
    block = b""
    while fresh := file.read(_BLOCK - len(block)):
        block += fresh
        if len(block) == _BLOCK:
            yield block
            block = b""
    if block:
        yield block


class _History:
    """The rows of a run: of each name the numbers and in which rows they are."""

    def __init__(self) -> None:
        self._num_rows = 0
        self._columns: dict[str, tuple[array[int], array[float]]] = {}

    def add(self, record: bytes) -> None:
        """Adds the row of a record, if it is one.

        Raises:
            Malformed: it is no record.
        """
        for field, wire, start, stop in fields(record, 0, len(record)):
            if field == _HISTORY and wire == BYTES:
                self._row(record, start, stop)

    def _row(self, data: bytes, start: int, stop: int) -> None:
        found: list[tuple[str, float]] = []
        media: list[str] = []  # what a histogram or an image is made of lies below its name
        for field, wire, a, b in fields(data, start, stop):
            if field == _ITEM and wire == BYTES:
                name, numbers = _item(data, a, b)
                found += numbers
                if name.endswith("/_type"):
                    media.append(name.removesuffix("_type"))
            elif field == _STEP and wire == BYTES:
                for inner, kind, c, d in fields(data, a, b):
                    if inner == 1 and kind == VARINT:
                        found.append(("", float(signed(varint(data, c, d)[0]))))
        for name, value in found:
            if not media or not name.startswith(tuple(media)):
                self._put(name, value)
        self._num_rows += 1

    def _put(self, name: str, value: float) -> None:
        column = self._columns.get(name)
        if column is None:
            if len(self._columns) >= MAX_NAMES:
                return
            column = self._columns[name] = array("q"), array("d")
        column[0].append(self._num_rows)
        column[1].append(value)

    def fill(self, log: Log) -> None:
        """Adds all rows to a log."""
        own_clock = f"{OWN}step"
        known = {*STEP_NAMES, *_CLOCKS, own_clock}
        sizes = {
            name: len(rows)
            for name, (rows, _) in self._columns.items()
            if name not in known and not name.startswith("_") and name
        }
        meaning = meaning_of(sizes)
        rows, steps = self._clock(meaning)

        def take(name: str) -> tuple[IntArray, Floats]:
            places, values = self._columns.pop(name)
            before = np.searchsorted(rows, np.frombuffer(places, np.int64), "right") - 1
            # A row that does not tell the time stands where the last one did that told it.
            return steps[np.maximum(before, 0)], np.frombuffer(values, np.float64)

        fill(log, meaning, take)

    def _clock(self, meaning: Meaning) -> tuple[IntArray, IntArray]:
        """(row [n], step [n]) of the clock that counts the updates of this run."""
        loss = meaning.loss
        asked = self._rows(loss) if loss else np.arange(self._num_rows)
        names = (f"{OWN}step",) if loss and loss.startswith(OWN) else ()
        for name in (*names, *_CLOCKS, *STEP_NAMES, "_step", ""):
            rows, steps = self._rows(name), self._steps(name)
            covers = len(asked) > 0 and np.isin(asked, rows).mean() > 0.5
            # A "step" that begins again in each epoch is no clock; a global one is even so.
            rises = name in _CLOCKS or not (np.diff(steps) < 0).any()
            if covers and rises:
                return rows, steps
        return np.arange(self._num_rows), np.arange(1, self._num_rows + 1)

    def _rows(self, name: str) -> IntArray:
        return np.array(self._columns.get(name, ((), ()))[0], np.int64)

    def _steps(self, name: str) -> IntArray:
        steps = np.array(self._columns.get(name, ((), ()))[1], np.float64)
        return np.where(np.abs(steps) < 2**62, steps, -1).astype(np.int64)


def _item(data: bytes, start: int, stop: int) -> tuple[str, list[tuple[str, float]]]:
    """The name of an item of the history, and (name, number) of each number in it."""
    names: list[str] = []
    value: float | None = None
    text = b""
    for field, wire, a, b in fields(data, start, stop):
        if field in (_KEY, _NESTED_KEY) and wire == BYTES and b > a:
            names.append(data[a : min(b, a + MAX_KEY)].decode("utf-8", "replace"))
        elif field == _NUMBER and wire == FIXED64:
            value = struct.unpack_from("<d", data, a)[0]
        elif field == _INTEGER and wire == VARINT:
            raw = varint(data, a, b)[0]
            value = float(raw >> 1 ^ -(raw & 1))
        elif field in (_JSON, _VALUE_JSON) and wire == BYTES and b - a <= MAX_JSON:
            text = data[a:b]
    name = "/".join(names)
    if value is None and text.startswith(b"{"):
        try:
            return name, list(numbers_of(json.loads(text), name))
        except (ValueError, RecursionError):
            return name, []
    if value is None:
        value = number(text.decode("utf-8", "replace").strip('"'))
    return name, [] if value is None else [(name, value)]


def numbers_of(value: object, name: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    """("train/loss", number) of each number in a nested dict; media are passed over."""
    if isinstance(value, dict):
        if "_type" in value or depth > 8:
            return
        for key, inner in value.items():
            yield from numbers_of(inner, f"{name}/{key}" if name else str(key), depth + 1)
    elif (found := number(value)) is not None:
        yield name, found


READER = Reader("wandb", _sniff, _read, rank=Rank.BYTES, grows=False, marks=(MAGIC.decode(),))
