"""Formats of tables with a header: which names tell the format, and what they mean.

    def _claim(names: tuple[str, ...], file_name: str) -> Meaning | None:
        return Meaning({"trn": "loss"}, step="it") if {"it", "trn"} <= set(names) else None

    READER = table_reader("my-table", _claim, sample="it,trn\n1,2.5\n2,2.25\n")

One engine reads all of them. Columns follow their names: a header may come back, or come anew with
more of them.
"""

import re
from dataclasses import replace
from itertools import islice
from typing import cast

import numpy as np

from optdoctor.reading.log import Log, number
from optdoctor.reading.reader import Head, Rank, Reader, Source, Unreadable, decode
from optdoctor.reading.table_clock import TableClock, present_rows
from optdoctor.reading.table_header import (
    Claim,
    Header,
    find_header,
    names_of,
    table_lines,
    table_of,
)
from optdoctor.reading.table_header import Meaning as Meaning
from optdoctor.reading.table_rows import NO_VALUE, Block, from_bytes, from_cells, is_row

_SNIFFED_ROWS = 1000
_LARGE = 1 << 18  # bytes from which pyarrow is worth its import
_NEWEST = 1 << 15  # bytes before a last line that tell whether it is whole
_SMALL = 1 << 15  # bytes of an irregular stretch that are read row by row
_QUOTE = re.compile(b'"')


def table_reader(
    name: str, claim: Claim, sample: str, rank: Rank = Rank.FORMAT, marks: tuple[str, ...] = ()
) -> Reader:
    """The reader of the tables that `claim` takes; `marks` as `Reader` has them."""

    def sniff(head: Head) -> int:
        if marks and not any(mark in head.text for mark in marks):
            return 0
        found = find_header(head, claim)
        if found is None:
            return 0
        lines = islice(table_lines(head.text), found.place + 1, found.place + 1 + _SNIFFED_ROWS)
        return sum(is_row(found.table.cells(line)) for line in lines)

    def read(source: Source, log: Log) -> None:
        found = find_header(source.head, claim)
        if found is None:
            raise Unreadable("no line in it is a header that names a loss", "name the columns")
        if found.meaning.refusal is not None:
            raise Unreadable(*found.meaning.refusal)
        _Reading(log, claim, source.head.name, found).read(source)

    header = sample.splitlines()[0]
    wants = "header that names a loss" if rank is Rank.TABLE else f"header such as {header[:60]}"
    return Reader(name, sniff, read, sample=sample, rank=rank, marks=marks, wants=wants)


class _Reading:
    """One table on its way into a log."""

    def __init__(self, log: Log, claim: Claim, file_name: str, found: Header) -> None:
        self._log, self._claim, self._file_name = log, claim, file_name
        self._found = found
        self._clock = TableClock(log)
        self._before = b""  # the newest lines
        self._returned = False  # whether the header came back before the next row
        log.aliases = found.meaning.aliases
        log.facts.update(found.meaning.facts)

    def read(self, source: Source) -> None:
        """Reads all rows."""
        passed = self._found.place + 1
        for view in source.line_views():
            passed, start = _pass(view, passed) if passed else (0, 0)
            end = _end_of_lines(view)
            self._add(view[start:end], _has_quotes(view))
            if end > start:
                self._before = bytes(view[max(end - _NEWEST, start) : end])
            self._add_last(decode(bytes(view[max(start, end) :])))
        meaning = self._found.meaning
        if meaning.step is None:
            self._log.facts["step_source"] = "counted rows"
        if meaning.counts_updates:
            self._log.count_from_one(likely=meaning.from_zero)

    def _add(self, data: memoryview, has_quotes: bool, is_large: bool = False) -> None:
        """Adds whole lines, irregular stretches of many row by row."""
        if len(data) >= _LARGE or (is_large and len(data) >= _SMALL):
            # What stands in quotes may hold delimiters.
            block = None if has_quotes else self._from_bytes(data)
            if block is not None:
                self._add_block(block)
                return
            middle = _end_of_lines(data[: len(data) // 2])
            if middle and not self._found.table.dicts:
                for half in (data[:middle], data[middle:]):
                    self._add(half, has_quotes and _QUOTE.search(half) is not None, True)
                return
        self._add_lines(decode(bytes(data)))

    def _from_bytes(self, data: memoryview) -> Block | None:
        table = self._found.table
        block = from_bytes(table, data)
        if block is None and table.integers:  # some may be none, later in the file
            table = replace(table, integers=frozenset())
            if (block := from_bytes(table, data)) is not None:
                self._found = replace(self._found, table=table)
        return block

    def _add_lines(self, text: str) -> None:
        rows: list[list[str]] = []
        for line in table_lines(text):
            cells = self._found.table.cells(line)
            if cells is not None and is_row(cells):
                rows.append(cells)
            elif (header := self._header(line)) is not None:
                self._add_rows(rows)
                self._found, self._returned, rows = header, True, []
                self._log.aliases = header.meaning.aliases
            elif cells is not None and all(cell in NO_VALUE for cell in cells):
                continue
            elif not line.lstrip().startswith("#"):
                self._log.skip(first=line)
        self._add_rows(rows)

    def _header(self, line: str) -> Header | None:
        """A header that comes back, or comes anew with other columns."""
        old = self._found
        names = names_of(line, old.table.delimiter)
        if names == old.names:
            self._log.skip(first=line)
            return old
        if 2 * len(set(names) & set(old.names)) < len(old.names) or any(map(number, names)):
            return None
        meaning = self._claim(names, self._file_name)
        if meaning is None:
            return None
        return Header(0, names, meaning, table_of(names, old.table.delimiter, meaning, []))

    def _add_rows(self, rows: list[list[str]]) -> None:
        if rows:
            self._add_block(from_cells(self._found.table, rows))

    def _add_block(self, block: Block) -> None:
        if block.skipped:
            self._log.skip(block.skipped)
        meaning = self._found.meaning
        columns = dict(block.columns)
        step = columns.pop(meaning.step, None) if meaning.step else None
        for channel, parts in meaning.sums.items():
            if all(part in columns for part in parts):
                with np.errstate(invalid="ignore", over="ignore"):
                    columns[channel] = sum((columns[part] for part in parts[1:]), columns[parts[0]])
        if (is_row := present_rows(columns)) is not None:
            columns = {name: column[is_row] for name, column in columns.items()}
            step = step[is_row] if step is not None else None
        steps = None if step is None else np.ma.filled(step, np.nan)
        if steps is None and meaning.step is not None:
            steps = np.full(len(next(iter(columns.values()), ())), np.nan)
        losses = [] if meaning.is_row_an_epoch else self._found.losses
        epoch = self._found.epoch
        self._clock.add(columns, steps, losses, epoch, self._returned)
        self._returned = False

    def _add_last(self, line: str) -> None:
        """Adds the last line, which has no end, unless it looks torn off."""
        cells = self._found.table.cells(line)
        if not line.strip():
            return
        if cells is not None and is_row(cells):
            earlier = (self._found.table.cells(row) for row in table_lines(decode(self._before)))
            shown = [len(row[-1]) for row in earlier if row is not None and is_row(row) and row[-1]]
            if _is_cut(cells[-1], min(shown, default=0)):
                self._log.skip(first=line)
                return
        self._add_lines(line)


def _is_cut(last: str, shortest: int) -> bool:
    """Whether the last cell of a file without a final line end looks torn off.

    A number that lost its exponent would read as a spike.
    """
    return 0 < len(last) < shortest - 1 or re.search(r"[-+.eE]$|[eE][-+]?\d$", last) is not None


def _has_quotes(view: memoryview) -> bool:
    """Whether quotes stand in the beginning of a buffer; `re` would search 20 times as long."""
    buffer = cast(bytes, view.obj)
    return buffer.find(b'"', 0, len(view)) >= 0


def _end_of_lines(data: memoryview) -> int:
    """Where the last whole line ends."""
    if bytes(data[-1:]) in (b"\n", b"\r"):
        return len(data)
    held = bytes(data)
    return max(held.rfind(b"\n"), held.rfind(b"\r")) + 1


def _pass(data: memoryview, lines: int) -> tuple[int, int]:
    """How many lines that are not blank are still to pass after `data`, and where they end."""
    for found in re.finditer(rb"[^\r\n]+", data):
        lines -= bool(next(table_lines(decode(found[0])), ""))
        if not lines:
            return 0, found.end()
    return lines, len(data)
