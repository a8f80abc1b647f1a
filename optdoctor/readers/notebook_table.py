"""The table of the Hugging Face Trainer: HTML, a notebook file, pasted text, a model card.

Its columns are Step or Epoch, Training Loss and, where it evaluates, Validation Loss and a column
a metric. "No log" stands where no training loss was logged yet; the newest stands again in each
evaluation until the next is logged.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from optdoctor.reading.huggingface_rows import Rows
from optdoctor.reading.log import Log, number
from optdoctor.reading.reader import Head, Reader, Source

_MARK = "training loss"
_MARKS = ("Training Loss", "Training loss", "training loss", "TRAINING LOSS")
_NAMES = {
    _MARK: "loss",
    "validation loss": "eval_loss",
    "learning rate": "lr",
    "epoch": "epoch",
    "step": "step",
}
_UNUSED = {"step": "", "Runtime": "", "Samples Per Second": "", "Steps Per Second": ""}
_TAG = re.compile(
    r"(?P<start><t(?:r|able)\b)|<t[hd]\b[^<>]*+>\s*+(?P<cell>[^<>]{0,200})</t[hd]>", re.I
)
_TOTAL = re.compile(r"\[\s*\d{1,15}/\s*(\d{1,15}) [^\]\r\n]{0,80}Epoch")
_BETWEEN = re.compile(r"\s*[|\t]\s*|\s{2,}")
_MAX_COLUMNS = 300


def _sniff(head: Head) -> int:
    if not any(mark in head.text for mark in _MARKS):
        return 0
    return sum(number(row.values["loss"]) is not None for row in _rows(iter(head.lines)))


def _read(source: Source, log: Log) -> None:
    rows = Rows(log)
    before, table = "", 0
    for row in _rows(source.lines()):
        if row.table != table:
            log.begin()
            before, table = "", row.table
        values = dict(row.values)
        if row.total:
            log.facts["total_steps"] = row.total
        if "eval_loss" in values and values["loss"] == before and number(before):
            del values["loss"]
        before = row.values["loss"]
        if any(number(value) is not None for name, value in values.items() if name != "step"):
            rows.add(values)


@dataclass(frozen=True)
class _Row:
    values: dict[str, str]
    table: int
    """The number of the table in which it stands, from 1."""
    total: int
    """Steps planned, 0 where not told."""


@dataclass
class _Tables:
    """Puts rows together from their cells."""

    names: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    table: int = 0
    total: int = 0

    def end(self) -> Iterator[_Row]:
        """Ends the row in hand: a row of numbers, a header, or neither."""
        cells, self.cells = self.cells, []
        names = [_NAMES.get(cell.lower(), cell) for cell in cells]
        if "loss" in names and not {"step", "epoch"}.isdisjoint(names):
            self.names = names
            self.table += 1
        elif len(cells) >= 2 and "loss" in self.names[: len(cells)]:
            values = dict(zip(self.names, cells, strict=False))
            if any(number(values.get(name)) is not None for name in ("step", "epoch")):
                yield _Row(values, self.table, self.total)
        elif cells:
            self.names = []


def _rows(lines: Iterator[str]) -> Iterator[_Row]:
    """The rows of all tables that have a training loss."""
    tables = _Tables()
    is_html = False
    for line in lines:
        if "[" in line and (found := _TOTAL.search(line)):
            tables.total = int(found[1])
        if "<t" in line.lower():
            is_html = True
            for tag in _TAG.finditer(line):
                if tag["start"]:
                    yield from tables.end()
                    if tag["start"].lower() == "<table":
                        tables.names = []
                elif len(tables.cells) < _MAX_COLUMNS:
                    tables.cells.append(html.unescape(tag["cell"]).strip())
        elif not is_html or _MARK in line.lower():
            yield from _plain_rows(tables, line)
    yield from tables.end()


def _plain_rows(tables: _Tables, line: str) -> Iterator[_Row]:
    """The row of a line of text, whose columns stand apart by tabs, bars or blanks."""
    text = line.strip().strip("|").strip()
    cells = _BETWEEN.split(text, _MAX_COLUMNS)
    if len(cells) != len(tables.names):
        cells = text.split(None, _MAX_COLUMNS) if tables.names else cells
    is_header = _MARK in (cell.lower() for cell in cells)
    is_row = len(cells) == len(tables.names) and any(number(cell) is not None for cell in cells)
    if is_header or is_row:
        tables.cells = cells
        yield from tables.end()


READER = Reader(
    name="notebook-table",
    sniff=_sniff,
    read=_read,
    aliases=_UNUSED,
    grows=False,
    marks=_MARKS,
    sample="""<div><progress value='30' max='30'></progress> [30/30 01:21, Epoch 1/1]</div>
<table border="1" class="dataframe">
 <thead>
 <tr style="text-align: left;">
 <th>Step</th>
 <th>Training Loss</th>
 <th>Validation Loss</th>
 </tr>
 </thead>
 <tbody>
 <tr>
 <td>10</td>
 <td>2.250000</td>
 <td>2.312500</td>
 </tr>
 <tr>
 <td>20</td>
 <td>2.125000</td>
 <td>2.281250</td>
 </tr>
 </tbody>
</table>
""",
)
