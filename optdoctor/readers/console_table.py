"""Tables on a console: a header that names a loss, then rows, as rich, tabulate and pandas print.

Columns are parted by bars of any kind or stand apart by blanks; lines of dashes and corners are no
rows. Names are understood as in prints.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from optdoctor.channels import is_channel
from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import Log, number
from optdoctor.reading.printed_names import Row, channel_of, is_loss, planned, words_of
from optdoctor.reading.reader import Head, Rank, Reader, Source
from optdoctor.reading.text_format import clean_lines, lines_of

_BAR = lazy(r"[|│┃║]")
_APART = lazy(r"\s{2,}")
_RULE = lazy(r"[\s|│┃║+:=_─-╿-]+")
_OF_TOTAL = lazy(r"(\d+(?:\.\d+)?)/\d+")
_THOUSANDS = lazy(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NAME = lazy(r"[#%]?[^\W\d][\w ./@%()#↓↑-]{0,40}")
_STEPS = frozenset({"step", "steps", "iter", "iters", "iteration", "iterations", "it", "update"})
_EPOCHS = frozenset({"epoch", "epochs", "ep"})
_MAX_COLUMNS = 100
_MAX_LINE = 2000  # characters
_SNIFFED_LINES = 20_000
_SNIFFED_ROWS = 1000
_LEAST_ROWS = 2


@dataclass(frozen=True, slots=True)
class _Header:
    names: tuple[str, ...]
    has_bars: bool
    losses: frozenset[int]
    """Places of its losses."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A row."""

    row: Row
    is_frame: bool
    """Whether it has an index before its columns, as a data frame has."""


def _sniff(head: Head) -> int:
    rows = len(_beginning(head))
    return min(rows, _SNIFFED_ROWS) if rows >= _LEAST_ROWS else 0


def _read(source: Source, log: Log) -> None:
    head = _beginning(source.head)
    plan = planned([found.row for found in head])
    gaps = _with_gaps(head)
    log.facts["loss_kind"] = plan.kind
    if plan.clock != "step":
        log.facts["step_source"] = "epochs" if plan.clock == "epoch" else "counted rows"
    log.count_from_one()
    count = 0
    for found in _found(lines_of(source)):
        if not isinstance(found, _Found):
            log.skip(first=found)
            continue
        row = found.row
        named = {} if row.epoch is None else {"epoch": row.epoch}
        for name, value in row.values.items():
            if found.is_frame and name in gaps and math.isnan(value):
                continue
            if channel := channel_of(name, plan):
                named[channel] = value
            elif not is_channel(name):
                log.drop(name)
        count += 1
        # Only where a series is the loss does the log count rows by itself.
        counted = None if plan.loss else count
        if named:
            log.row(named, {"step": row.step, "epoch": row.epoch}.get(plan.clock, counted))


def _beginning(head: Head) -> list[_Found]:
    """The rows that the beginning of a file shows."""
    found = _found(clean_lines(head.lines[:_SNIFFED_LINES]))
    return [one for one in found if isinstance(one, _Found)]


def _with_gaps(rows: Iterable[_Found]) -> frozenset[str]:
    """Columns of a data frame in which a number follows NaN: there it means that there is none.

    Rows of the training and of the evaluation stand in turn. Where numbers end in NaN, it is one.
    """
    missing: set[str] = set()
    gaps: set[str] = set()
    for found in rows:
        for name, value in found.row.values.items() if found.is_frame else ():
            if math.isnan(value):
                missing.add(name)
            elif name in missing:
                gaps.add(name)
    return frozenset(gaps)


def _found(lines: Iterable[str]) -> Iterator[_Found | str]:
    """The rows of all tables, and lines within one that are of its form and hold no numbers."""
    header: _Header | None = None
    has_rows = False
    for line in lines:
        text = line[:_MAX_LINE]
        if not text.strip() or _RULE.fullmatch(text):
            continue
        if header is not None and (row := _row(header, text)) is not None:
            has_rows = True
            yield row
        elif (new := _header(text)) is not None:
            header, has_rows = new, False
        elif header is not None and has_rows and header.has_bars and _BAR.search(text):
            yield line


def _header(line: str) -> _Header | None:
    """The header that a line is, None where it is none."""
    if "los" not in line.lower() or "\t" in line:
        return None
    has_bars = _BAR.search(line) is not None
    cells = _barred(line) if has_bars else _APART.split(line.strip(), _MAX_COLUMNS)
    if not has_bars and len(cells) < 2:
        cells = line.split()
    cells = [cell.strip("* \t") for cell in cells]
    if not 2 <= len(cells) <= _MAX_COLUMNS:
        return None
    if not all(_NAME.fullmatch(cell) or (has_bars and not cell) for cell in cells):
        return None
    if not has_bars and not _has_gaps(line) and not any(map(_is_place, cells)):
        return None  # words of a sentence stand as near
    losses = frozenset(at for at, cell in enumerate(cells) if is_loss(cell))
    return _Header(tuple(cells), has_bars, losses) if losses else None


def _row(header: _Header, line: str) -> _Found | None:
    """The row of a header that a line is, None where it is none."""
    width = len(header.names)
    if header.has_bars:
        cells = _barred(line) if _BAR.search(line) else []
    else:
        cells = line.split()
        if len(cells) not in (width, width + 1):
            cells = _APART.split(line.strip(), _MAX_COLUMNS)
    is_frame = not header.has_bars and len(cells) == width + 1
    cells = cells[1:] if is_frame else cells
    if len(cells) != width:
        return None
    numbers = [_number(cell) for cell in cells]
    if all(numbers[at] is None for at in header.losses):
        return None
    # In prose a number stands among words.
    if not header.has_bars and 2 * sum(n is not None for n in numbers) < width:
        return None
    pairs = [(name, n) for name, n in zip(header.names, numbers, strict=True) if n is not None]
    step = next((n for name, n in pairs if _is_of(name, _STEPS)), None)
    epoch = next((n for name, n in pairs if _is_of(name, _EPOCHS)), None)
    return _Found(Row({name: n for name, n in pairs if name}, step, epoch), is_frame)


def _barred(line: str) -> list[str]:
    """The cells between bars."""
    cells = [cell.strip() for cell in _BAR.split(line.strip(), _MAX_COLUMNS)]
    return cells[(not cells[0]) : len(cells) - (not cells[-1])]


def _number(cell: str) -> float | None:
    text = cell.strip("*`~ ").rstrip("%+")
    if (total := _OF_TOTAL.fullmatch(text)) is not None:
        return float(total[1])
    return number(text.replace(",", "") if _THOUSANDS.fullmatch(text) else text)


def _has_gaps(line: str) -> bool:
    return _APART.search(line.strip()) is not None


def _is_place(name: str) -> bool:
    """Whether it tells where a row stands."""
    return _is_of(name, _STEPS) or _is_of(name, _EPOCHS)


def _is_of(name: str, words: frozenset[str]) -> bool:
    own = words_of(name)
    return bool(own) and own[-1] in words and len(own) <= 2


READER = Reader(
    name="console-table",
    sniff=_sniff,
    read=_read,
    rank=Rank.TABLE,
    marks=("los", "Los", "LOS"),
    wants="header line that names a loss",
    sample="""+-------+------------+----------+-------+
| Epoch | Train Loss | Val Loss |    LR |
+-------+------------+----------+-------+
|     1 |     2.2500 |   2.3125 | 0.001 |
|     2 |     2.1250 |   2.2500 | 0.001 |
|     3 |        nan |   2.1875 | 5e-04 |
+-------+------------+----------+-------+
""",
)
