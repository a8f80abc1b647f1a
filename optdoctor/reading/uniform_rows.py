"""Stretches of rows that differ in their numbers only, turned into columns at once.

Most of a long log is one row printed over and over. The text between its numbers is learned from
one row; a stretch of such rows is found by one expression, rewritten as a table and parsed whole.
What does not fit is left to the reader, so the slow way decides what a row means.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import number as to_number

MIN_ROWS = 8
"""Rows in a stretch below which it is not worth the trouble."""
_SMALL = 1 << 17
"""Characters of a stretch below which importing a parser takes longer than it saves."""
_MOST_NAMES = 500
"""Names of a row beyond which its expression takes too long to make: of 12,000 it takes 5 s."""
_CELL = "\x1f"
_TEXT = r"[^'\"\\{}\r\n\x1f]*+"  # what may vary between quotes and is no number
JSON_NUMBER = r"(?>-?+(?>0|[1-9][0-9]*+)(?>\.[0-9]++)?+(?>[eE][-+]?+[0-9]++)?+|NaN|-?+Infinity)"
JSON_PAIR = lazy(
    rf'"(?P<key>[^"\\]+)"\s*:\s*(?:"?(?P<value>{JSON_NUMBER})(?="?\s*[,}}])|"(?P<text>[^"]*)")'
)
"""A name and a number, quoted or not, or a text; see `learn`."""


@dataclass(frozen=True)
class UniformRows:
    """Rows of one shape."""

    names: tuple[str, ...]
    """Names of what varies, in order."""
    is_number: tuple[bool, ...]
    """Which of them are numbers; the others are passed over."""
    separators: tuple[str, ...]
    """Text before the first of them, between them, and behind the last up to the next row."""
    number: str
    """The expression that a number matches, without a group."""

    @cached_property
    def stretches(self) -> re.Pattern[str]:
        """Finds at least `MIN_ROWS` rows in a row."""
        slots = [self.number if numeric else _TEXT for numeric in self.is_number]
        row = re.escape(self.separators[0])
        row += "".join(
            slot + re.escape(after) for slot, after in zip(slots, self.separators[1:], strict=True)
        )
        return re.compile(f"{row}(?:{row}){{{MIN_ROWS - 1},}}+")

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """(start, stop) of each stretch."""
        return (found.span() for found in self.stretches.finditer(text))

    def columns(self, stretch: str) -> dict[str, NDArray[np.float64]] | None:
        """{name: its numbers, [rows]} of text that `stretches` matched; None where one is none."""
        first, *inner, last = self.separators
        table = stretch.removeprefix(first).removesuffix(last).replace(last + first, "\n")
        for separator in inner:
            table = table.replace(separator, _CELL)
        try:
            cells = _parsed(table, self.is_number)
        except ValueError:
            return None
        return {name: cells[i] for i, name in enumerate(self.names) if self.is_number[i]}


def learn(row: str, end: str, pairs: re.Pattern[str], number: str) -> UniformRows | None:
    """The shape of a row, None where it holds no number or one in a spelling of its own.

    Args:
        row: One whole row.
        end: What stands between it and the next.
        pairs: Finds a `key` and, beside it, its value: a number as `value` or a text as `text`.
        number: The expression that a number matches, without a group.
    """
    names: list[str] = []
    is_number: list[bool] = []
    separators: list[str] = []
    at = 0
    for pair in pairs.finditer(row):
        group = "value" if pair["value"] is not None else "text"
        if pair[group] is None:
            continue  # a constant, such as null
        if group == "text" and to_number(pair[group]) is not None:
            return None  # a number in another spelling
        separators.append(row[at : pair.start(group)])
        names.append(pair["key"])
        is_number.append(group == "value")
        at = pair.end(group)
        if len(names) > _MOST_NAMES:
            return None
    separators.append(row[at:] + end)
    if not any(is_number) or len(set(names)) < len(names) or _CELL in row + end:
        return None
    return UniformRows(tuple(names), tuple(is_number), tuple(separators), number)


def _parsed(table: str, is_number: tuple[bool, ...]) -> Mapping[int, NDArray[np.float64]]:
    """{place in the row: its numbers}; raises ValueError."""
    places = [place for place, numeric in enumerate(is_number) if numeric]
    if len(table) < _SMALL:
        rows = [line.split(_CELL) for line in table.split("\n")]
        return {place: np.array([float(row[place]) for row in rows]) for place in places}
    import pyarrow
    from pyarrow import csv

    read = csv.read_csv(
        pyarrow.py_buffer(table.encode()),
        csv.ReadOptions(
            column_names=[str(place) for place in range(len(is_number))],
            use_threads=False,
            block_size=max(len(table), 1 << 20) + 1,
        ),
        csv.ParseOptions(delimiter=_CELL, quote_char=False),
        csv.ConvertOptions(
            column_types={str(place): pyarrow.float64() for place in places},
            include_columns=[str(place) for place in places],
            null_values=[],
        ),
    )
    return {place: read.column(str(place)).to_numpy() for place in places}
