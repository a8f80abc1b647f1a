"""A table with a header: Lightning's metrics.csv, Keras' CSVLogger, and what scripts write.

Empty cells are common: Lightning writes training, evaluation and rates in rows of their own.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise

from optdoctor.knowledge.log_names import FREE_NAMES, REWARD_NAMES, STEP_NAMES
from optdoctor.log import Log, number
from optdoctor.reader import Reader, Source, Unreadable

_METRICS = frozenset({"accuracy", "acc", "val_accuracy", "val_acc", "grad_norm"}) | REWARD_NAMES
_NOT_TRAINING = frozenset({"val", "valid", "validation", "eval", "test", "dev", "scale", "scaler"})
_NO_NAME = re.compile(r"[{}\[\]='\"]|^.{80}")
_HEADER_WITHIN = 10  # lines
_LOOK_AHEAD = 5  # lines


@dataclass(frozen=True, slots=True)
class _Header:
    line: int
    delimiter: str
    names: tuple[str, ...]

    def cells(self, line: str) -> list[str] | None:
        """The cells of a row, None where it is no row of this table."""
        found = _cells(line, self.delimiter)
        return found if len(found) == len(self.names) else None

    @property
    def step_column(self) -> int | None:
        """The column that numbers the updates."""
        return next((self.names.index(name) for name in STEP_NAMES if name in self.names), None)

    @property
    def aliases(self) -> dict[str, str]:
        """What the names of this very table mean beyond the common ones."""
        rates = {name: "lr" for name in self.names if name.startswith(("lr-", "lr/"))}
        guess = None if _named("loss", self.names) else _guessed_loss(self.names)
        return {**FREE_NAMES, **rates, **({guess: "loss"} if guess else {})}


def _sniff(head: str) -> bool:
    return _find_header(head) is not None


def _read(source: Source, log: Log) -> None:
    header = _find_header(source.head)
    if header is None:
        raise Unreadable("no line in it is a header that names a loss", "name the columns")
    log.aliases = header.aliases
    step_column = header.step_column
    has_loss = "loss" in map(log.aliases.get, header.names)
    for num_rows, cells in enumerate(_rows(source, header, log), start=1):
        step: object = None
        if step_column is not None:
            step = cells[step_column]
        elif not has_loss:
            step = num_rows
        log.row(dict(zip(header.names, cells, strict=True)), step)
    if step_column is None:
        log.facts["step_source"] = "counted rows"
    # Lightning writes the number of updates before this one.
    log.count_from_one(likely={"epoch", "step"} <= set(header.names))


def _rows(source: Source, header: _Header, log: Log) -> Iterator[list[str]]:
    """The rows of the table; all other lines are counted as skipped."""
    shortest = 0
    lines = islice(source.lines(), header.line + 1, None)
    for line, after in pairwise(chain(lines, [None])):
        if line is None or not line.strip():
            continue
        cells = header.cells(line)
        if cells is None or (after is None and _is_cut(cells[-1], shortest)):
            log.skip()
            continue
        if cells[-1]:
            shortest = min(shortest or len(cells[-1]), len(cells[-1]))
        yield cells


def _is_cut(last: str, shortest: int) -> bool:
    """Whether the last cell of a file without a final line end looks torn off.

    A number that lost its exponent would read as a spike.
    """
    return 0 < len(last) < shortest - 1 or re.search(r"[-+.eE]$|[eE][-+]?\d$", last) is not None


def _find_header(head: str) -> _Header | None:
    """The first line that names columns and is followed by rows of as many cells."""
    lines = enumerate(re.split(r"[\r\n]+", head))
    filled = ((place, line) for place, line in lines if line.strip())
    first = list(islice(filled, _HEADER_WITHIN + _LOOK_AHEAD))
    for index, (place, line) in enumerate(first[:_HEADER_WITHIN]):
        candidates = [_Header(place, mark, _names(line, mark)) for mark in ",;\t"]
        header = max(candidates, key=lambda candidate: len(candidate.names))
        if not _names_a_loss(header.names):
            continue
        following = [text for _, text in first[index + 1 : index + 1 + _LOOK_AHEAD]]
        if 2 * sum(_is_row(header.cells(text)) for text in following) >= len(following):
            return header
    return None


def _is_row(cells: list[str] | None) -> bool:
    return cells is not None and any(number(cell) is not None for cell in cells)


def _names_a_loss(names: tuple[str, ...]) -> bool:
    if any(number(name) is not None or _NO_NAME.search(name) for name in names):
        return False
    if len(names) == 1:
        return _named("loss", names)
    is_known = _named("loss", names) or _named("eval_loss", names)
    return is_known or not _METRICS.isdisjoint(names) or _guessed_loss(names) is not None


def _named(channel: str, names: tuple[str, ...]) -> bool:
    return any(FREE_NAMES.get(name) == channel for name in names)


def _guessed_loss(names: tuple[str, ...]) -> str | None:
    """A column that seems to be a part of the training loss, one that says so before others."""
    words = {name: re.split(r"[^a-z0-9]+", name.lower()) for name in names if len(name) < 40}
    losses = [n for n, w in words.items() if "loss" in w and _NOT_TRAINING.isdisjoint(w)]
    return min(losses, key=lambda name: "train" not in words[name], default=None)


def _names(line: str, delimiter: str) -> tuple[str, ...]:
    """The names of a header; known ones are recognised in any case and with blanks."""
    stripped = [cell.strip().lstrip("#").strip() for cell in _cells(line, delimiter)]
    plain = [name.lower().replace(" ", "_") for name in stripped]
    known = FREE_NAMES.keys() | _METRICS
    return tuple(p if p in known else s for p, s in zip(plain, stripped, strict=True))


def _cells(line: str, delimiter: str) -> list[str]:
    if '"' not in line:
        cells = line.split(delimiter)
    else:
        try:
            cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
        except csv.Error:
            return []
    # Where semicolons part the cells, commas are decimal points.
    return [cell.replace(",", ".") for cell in cells] if delimiter == ";" else cells


READER = Reader(
    name="csv",
    sniff=_sniff,
    read=_read,
    aliases=FREE_NAMES,
    sample="""epoch,lr-AdamW,step,train_loss,val_loss
0,3e-05,0,,
0,,0,2.25,
0,,1,2.125,
0,,1,,2.25
1,,2,2.0625,
""",
)
