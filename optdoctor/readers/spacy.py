"""The table of `spacy train`, versions 2 and 3: one row an evaluation.

A loss is the sum over the updates since the row before, so it need not fall smoothly. The first row
of version 3, number 0, holds one update and is no loss of the run. What tok2vec and transformer
show is the sum of squared gradients that reached them, and no part of the objective.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from optdoctor.reading.log import Log, number
from optdoctor.reading.reader import Head, Reader, Source
from optdoctor.reading.text_format import clean_lines

_HEADER = re.compile(r"(?<!\S)(?:E[ \t]{1,12}#|Itn)[ \t]{1,12}(?=\S)")
_SHARED = ("tok2vec", "trans", "transformer", "tok2...")


@dataclass(frozen=True, slots=True)
class _Table:
    names: tuple[str, ...]
    num_before: int  # words in front of the table, as of a logger's clock

    @property
    def is_loss(self) -> tuple[bool, ...]:
        """[column]: whether its sum is part of the objective."""
        losses = [_is_loss(name) for name in self.names]
        tasks = [
            is_loss and not _task(name).startswith(_SHARED)
            for name, is_loss in zip(self.names, losses, strict=True)
        ]
        return tuple(tasks if any(tasks) else losses)

    @property
    def num_leading(self) -> int:
        """Columns in front of the losses: epoch and step, or the iteration."""
        return 2 if self.names[0] == "E" else 1

    def values(self, line: str) -> list[float] | None:
        """The cells of a row; of one that is cut, all but the last."""
        words = line.split()[self.num_before :]
        cells = [value for word in words[: len(self.names)] if (value := number(word)) is not None]
        if len(cells) != len(words) or not cells:
            return None
        if len(cells) < len(self.names):
            cells.pop()
        losses = [place for place, is_loss in enumerate(self.is_loss) if is_loss]
        return cells if len(cells) > losses[-1] else None


def _is_loss(name: str) -> bool:
    return name.upper().startswith("LOSS ") or name.endswith(" Loss")


def _task(name: str) -> str:
    return name.lower().removeprefix("loss ")


def _header(line: str) -> _Table | None:
    found = _HEADER.search(line)
    if found is None:
        return None
    head = found[0].split()
    names = (*head, *re.split(r"[ \t]{2,}", line[found.end() :].strip()))
    if not any(map(_is_loss, names)):
        return None
    return _Table(names, len(line[: found.start()].split()))


def _rows(lines: Iterator[str] | list[str]) -> Iterator[tuple[_Table, list[float]]]:
    table = None
    for line in clean_lines(lines):
        if "oss" in line or "OSS" in line:
            table = _header(line) or table
        elif table is not None and (values := table.values(line)) is not None:
            yield table, values


def _sniff(head: Head) -> int:
    return sum(1 for _ in _rows(head.lines))


def _read(source: Source, log: Log) -> None:
    log.facts |= {"loss_kind": "falling", "loss_form": "sum"}
    for table, values in _rows(source.lines()):
        row = dict(zip(table.names, values, strict=False))
        step = row.pop("#" if table.num_leading == 2 else "Itn")
        if step or table.num_leading == 1:
            losses = zip(values, table.is_loss, strict=False)
            row["loss"] = sum(value for value, is_loss in losses if is_loss)
        log.row(row, step)


READER = Reader(
    "spacy",
    _sniff,
    _read,
    {"loss": "loss", "E": "epoch"},
    marks=("E ", "E\t", "Itn"),
    sample="""E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  ENTS_P  ENTS_R  SCORE
---  ------  ------------  --------  ------  ------  ------  ------
  0       0          0.00     50.25    0.00    0.00    0.00    0.00
  1     100         12.50   2250.75   41.25   45.50   37.75    0.41
  2     200         36.25   1125.50   55.50   60.25   51.50    0.56
  4     300         24.75    875.25   61.75   64.00   59.75    0.62
""",
)
