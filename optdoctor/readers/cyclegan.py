"""loss_log.txt of pytorch-CycleGAN-and-pix2pix and its many forks.

Several losses pull against each other and none is the loss of the run, so all are metrics: they
neither fall nor need to. Every start of the program writes a header, a resumed one too.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from optdoctor.reading.epoch_clock import EpochClock
from optdoctor.reading.log import Log
from optdoctor.reading.reader import Head, Reader, Source
from optdoctor.reading.text_format import NUMBER, clean_lines, lines_of, value_of

_ROW = re.compile(
    r"\(epoch: (?P<epoch>\d{1,9}), iters: (?P<iters>\d{1,12}), time: (?P<time>[\d.]+)[^()]{0,80}\)"
)
_PAIR = re.compile(rf"(?P<key>[A-Za-z][\w./-]{{0,60}}): (?P<value>{NUMBER})")
_HEADER = "= Training Loss ("


@dataclass(frozen=True, slots=True)
class _Row:
    epoch: int
    iters: int
    losses: dict[str, float]


def _row(line: str) -> _Row | None:
    found = _ROW.search(line)
    if found is None:
        return None
    losses = {p["key"]: value_of(p["value"]) for p in _PAIR.finditer(line, found.end())}
    return _Row(int(found["epoch"]), int(found["iters"]), losses) if losses else None


def _rows(lines: Iterator[str] | list[str]) -> Iterator[tuple[_Row, bool]]:
    """Rows, and whether the program was started since the row before."""
    is_start = False
    for line in clean_lines(lines):
        is_start |= _HEADER in line
        if "(epoch: " in line and (row := _row(line)):
            yield row, is_start
            is_start = False


def _sniff(head: Head) -> int:
    return sum(1 for _ in _rows(head.lines))


def _read(source: Source, log: Log) -> None:
    log.facts["loss_kind"] = "adversarial"
    clock = EpochClock()
    for row, is_start in _rows(lines_of(source)):
        if is_start and row.epoch == 1:
            log.begin()
            clock = EpochClock()
        # No series of this log is a loss, whose steps alone Log adds up over epochs.
        log.row({**row.losses, "epoch": row.epoch}, clock.step(row.epoch, row.iters))


READER = Reader(
    "cyclegan",
    _sniff,
    _read,
    {"epoch": "epoch"},
    marks=("(epoch: ",),
    sample="""================ Training Loss (Fri Jan  2 03:04:05 2026) ================
(epoch: 1, iters: 100, time: 0.250, data: 0.125) D_A: 0.375 G_A: 0.500 cycle_A: 2.250 idt_A: 0.875
(epoch: 1, iters: 200, time: 0.250, data: 0.001) D_A: 0.250 G_A: 0.625 cycle_A: 1.875 idt_A: 0.750
(epoch: 2, iters: 40, time: 0.250, data: 0.001) D_A: 0.125 G_A: 0.750 cycle_A: 2.000 idt_A: 0.625
(epoch: 2, iters: 140, time: 0.250, data: 0.001) D_A: nan G_A: nan cycle_A: nan idt_A: nan
""",
)
