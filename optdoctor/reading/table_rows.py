"""Rows of a table as columns of numbers, by pyarrow where they are regular, else cell by cell.

Both ways give the same numbers: what pyarrow does not take in one go is read by the other.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import number

Column = NDArray[np.float64] | np.ma.MaskedArray[Any, Any]
"""[T]; a masked element is a cell without a number."""
NO_VALUE = ("", "NA", "N/A", "None", "none", "null", "NULL", "n/a", "-", "--")
"""Cells that say that there is no value. NaN in words is a value."""
_INTEGER = lazy(r"-?\d{1,15}")
_THOUSANDS = lazy(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_IN_DICT = lazy(r"['\"](\w{1,60})['\"]:\s*([-+.\w]{1,40})(?=\s*[,}])")


@dataclass(frozen=True, slots=True)
class Table:
    """Where the numbers of a table stand."""

    delimiter: str
    width: int
    """Cells of a row."""
    wanted: Mapping[str, int]
    """{name: its column}."""
    dicts: Mapping[str, int] = field(default_factory=dict)
    """{name: column that holds a Python dict as text}."""
    integers: frozenset[str] = frozenset()
    """Names under which the first rows hold integers only."""
    step: str | None = None
    """The name that numbers the rows."""

    def cells(self, line: str) -> list[str] | None:
        """The cells of a row, None where it is no row of this table."""
        found = cells_of(line, self.delimiter)
        return found if len(found) == self.width else None


@dataclass(frozen=True, slots=True)
class Block:
    """Rows in a row."""

    columns: Mapping[str, Column]
    """{name: its numbers [T]}; a name without any is left out."""
    length: int
    skipped: int = 0
    """Rows that hold text where numbers should be, and no number."""


def cells_of(line: str, delimiter: str) -> list[str]:
    """The cells of a line, none where its quotes do not fit."""
    if '"' not in line:
        cells = line.split(delimiter)
    else:
        try:
            cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
        except csv.Error:
            return []
    if "," not in line or (delimiter == "," and '"' not in line):
        return cells
    if delimiter == ";":  # commas are decimal points
        return [cell.replace(",", ".") for cell in cells]
    return [_without_thousands(cell) for cell in cells]


def _without_thousands(cell: str) -> str:
    """A cell without the commas that part the thousands of its number."""
    is_one = "," in cell and _THOUSANDS.fullmatch(cell.strip())
    return cell.replace(",", "") if is_one else cell


def is_row(cells: Sequence[str] | None) -> bool:
    """Whether any of these is a number."""
    return cells is not None and any(number(cell) is not None for cell in cells)


def are_integers(texts: Sequence[str]) -> bool:
    """Whether there are cells with a value, and all of them hold integers."""
    return any(text not in NO_VALUE for text in texts) and all(
        _INTEGER.fullmatch(text) for text in texts if text not in NO_VALUE
    )


def from_cells(table: Table, rows: Sequence[Sequence[str]]) -> Block:
    """The numbers of rows of the table's width."""
    texts = {name: [row[at] for row in rows] for name, at in table.wanted.items()}
    numbers = {name: [number(text) for text in column] for name, column in texts.items()}
    for name, at in table.dicts.items():
        _add_dicts(numbers, name, [row[at] for row in rows])
    skipped = sum(
        all(column[i] is None for column in numbers.values())
        and any(column[i] not in NO_VALUE for column in texts.values())
        for i in range(len(rows))
    )
    columns = {name: _column(found) for name, found in numbers.items()}
    filled = {name: column for name, column in columns.items() if np.ma.count(column)}
    return Block(filled, len(rows), skipped)


def _add_dicts(numbers: dict[str, list[float | None]], name: str, texts: list[str]) -> None:
    for i, text in enumerate(texts):
        for key, written in _IN_DICT.findall(text):
            if (value := number(written)) is not None:
                numbers.setdefault(f"{name}/{key}", [None] * len(texts))[i] = value


def _column(numbers: list[float | None]) -> Column:
    values = np.array([np.nan if found is None else found for found in numbers], np.float64)
    mask = np.array([found is None for found in numbers], np.bool_)
    return np.ma.MaskedArray(values, mask) if mask.any() else values


def from_bytes(table: Table, data: bytes | memoryview) -> Block | None:
    """The numbers of whole lines of bytes, None where any of them is irregular."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if table.dicts or not table.wanted:
        return None
    if table.delimiter == ";":
        data = bytes(data).replace(b",", b".")
    reading = arrow_csv.ReadOptions(
        use_threads=False,
        block_size=len(data) + 1,
        column_names=[str(at) for at in range(table.width)],
    )
    parsing = arrow_csv.ParseOptions(delimiter=table.delimiter, quote_char=False)
    types = {
        str(at): pa.int64() if name in table.integers else pa.float64()
        for name, at in table.wanted.items()
    }
    converting = arrow_csv.ConvertOptions(
        check_utf8=False, column_types=types, include_columns=list(types), null_values=NO_VALUE
    )
    try:
        found = arrow_csv.read_csv(
            pa.BufferReader(pa.py_buffer(data)), reading, parsing, converting
        )
    except pa.ArrowInvalid:
        return None
    columns = {
        name: _from_arrow(found.column(str(at)), name == table.step)
        for name, at in table.wanted.items()
    }
    filled = {name: column for name, column in columns.items() if column is not None}
    return Block(filled, found.num_rows)


def _from_arrow(chunked: Any, is_step: bool) -> Column | None:
    """A column of int64 or float64 as float64, read-only; None where all is null.

    Numbers are not copied where that can be; integers stay such where they are steps of all rows.
    """
    if chunked.null_count == len(chunked):
        return None
    array = chunked.combine_chunks() if chunked.num_chunks > 1 else chunked.chunk(0)
    validity, buffer = array.buffers()
    dtype = np.dtype("int64" if str(array.type) == "int64" else "float64")
    length, start = len(array), array.offset
    values = np.frombuffer(buffer, dtype, length, start * dtype.itemsize)
    if not is_step or array.null_count:
        values = values.astype(np.float64, copy=False)
    values.flags.writeable = False
    if not array.null_count:
        return values
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    return np.ma.MaskedArray(values, bits[start : start + length] == 0)
