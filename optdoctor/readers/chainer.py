"""Chainer's PrintReport: a table of fixed columns, in which a value that is not there is blank."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from optdoctor.reading.log import Log, number
from optdoctor.reading.reader import Head, Reader, Source

_ESCAPE = re.compile(r"\x1b\[[0-9;]{0,12}[A-Za-z]")
_CLOCKS = ("elapsed_time", "iters/sec")


@dataclass(frozen=True, slots=True)
class _Table:
    names: tuple[str, ...]
    starts: tuple[int, ...]

    def row(self, line: str) -> dict[str, float] | None:
        """{name: number} of a row of this table, None where it is none."""
        ends = [*self.starts[1:], len(line)]
        cells = [line[start:end].strip() for start, end in zip(self.starts, ends, strict=True)]
        numbers = {name: number(cell) for name, cell in zip(self.names, cells, strict=True) if cell}
        found = {name: value for name, value in numbers.items() if value is not None}
        is_row = {self.names[0], "main/loss"} <= found.keys()
        return found if is_row and not line[: self.starts[0]].strip() else None


def _header(line: str) -> _Table | None:
    words = list(re.finditer(r"\S{1,100}", line))
    names = tuple(word[0] for word in words)
    if "main/loss" not in names or names[0] not in ("epoch", "iteration"):
        return None
    return _Table(names, tuple(word.start() for word in words))


def _rows(lines: Iterator[str] | list[str]) -> Iterator[dict[str, float]]:
    table = None
    for raw in lines:
        line = _ESCAPE.sub("", raw)
        if "main/loss" in line:
            table = _header(line) or table
        elif table is not None and (row := table.row(line)):
            yield row


def _sniff(head: Head) -> int:
    return sum(1 for _ in _rows(head.lines))


def _read(source: Source, log: Log) -> None:
    log.facts |= {"loss_kind": "falling", "loss_form": "mean"}
    for row in _rows(source.lines()):
        step = row.pop("iteration", None)
        log.row(row, row.get("epoch") if step is None else step)
    log.facts["loss_window"] = log.loss_interval


READER = Reader(
    "chainer",
    _sniff,
    _read,
    {"main/loss": "loss", "validation/main/loss": "eval_loss", "lr": "lr", "epoch": "epoch"}
    | dict.fromkeys(_CLOCKS, ""),
    marks=("main/loss",),
    sample="""epoch       iteration   main/loss   validation/main/loss  elapsed_time
1           50          2.25                              1.25
1           100         1.875       1.9375                2.5
2           150         1.625                             3.75
2           200         nan         nan                   5
""",
)
