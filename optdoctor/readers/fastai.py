"""fastai's table: one row an epoch, columns parted by blanks, a new header for each fit.

Its training loss is a decaying mean of the epoch. Others name their columns so as well: the header
of fastai begins its line and ends in the time, or names a `trn_loss` as old versions do.
"""

from optdoctor.knowledge.log_names import FREE_NAMES
from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import Log, number
from optdoctor.reading.reader import Head, Reader, Source

_HEADER = lazy(r"epoch(?: {5,}|\t)train_loss[ \t][^|]{0,1000}[ \t]time\s*$|epoch +trn_loss\b")
_LOSSES = {"train_loss": "loss", "trn_loss": "loss"}


def _sniff(head: Head) -> int:
    header: list[str] = []
    rows = 0
    for line in head.lines:
        header = _header(line) or header
        rows += bool(_row(header, line))
    return rows


def _read(source: Source, log: Log) -> None:
    log.facts |= {"loss_kind": "falling", "loss_form": "running mean", "step_source": "epochs"}
    header: list[str] = []
    for line in source.lines():
        if found := _header(line):
            header = found
        elif row := _row(header, line):
            log.row(row)


def _header(line: str) -> list[str]:
    return line.split() if _HEADER.match(line) else []


def _row(header: list[str], line: str) -> dict[str, float]:
    """{column: number} of a line with as many cells as the header, an epoch first."""
    cells = line.split()
    if not header or len(cells) != len(header) or not cells[0].isdecimal():
        return {}
    pairs = zip(header, map(number, cells), strict=True)
    row = {name: value for name, value in pairs if value is not None}
    return row if header[1] in row else {}


READER = Reader(
    name="fastai",
    sniff=_sniff,
    read=_read,
    aliases={**_LOSSES, **FREE_NAMES},
    marks=tuple(_LOSSES),
    sample="""epoch     train_loss  valid_loss  accuracy  time
0         2.250000    1.750000    0.500000  01:30
1         1.250000    1.500000    0.625000  01:30
2         nan         nan         0.125000  01:30
""",
)
