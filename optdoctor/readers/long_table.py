"""Long tables: one number a row and its name beside it, as MLflow and tbparse give out series."""

from collections.abc import Iterator
from itertools import chain, islice, pairwise

from optdoctor.knowledge.log_names import FREE_NAMES, STEP_NAMES
from optdoctor.reading.log import Log, number
from optdoctor.reading.reader import Head, Rank, Reader, Source, Unreadable
from optdoctor.reading.table_header import Header, Meaning, find_header, table_lines

_KEYS = ("key", "metric", "tag", "metric_name", "metric_key", "name")
_VALUES = ("value", "metric_value")
_RUNS = ("run_id", "run_uuid", "run", "run_name", "dir_name")
_SNIFFED_ROWS = 1000


def _place(names: tuple[str, ...], known: tuple[str, ...]) -> int | None:
    plain = [name.lower() for name in names]
    return next((plain.index(name) for name in known if name in plain), None)


def _places(names: tuple[str, ...]) -> tuple[int, int, int] | None:
    """Columns of key, value and step; None where they are not all there."""
    key, value, step = (_place(names, known) for known in (_KEYS, _VALUES, STEP_NAMES))
    return None if key is None or value is None or step is None else (key, value, step)


def _header(head: Head) -> Header | None:
    return find_header(head, lambda names, _: Meaning() if _places(names) else None)


def _sniff(head: Head) -> int:
    header = _header(head)
    places = _places(header.names) if header else None
    if header is None or places is None:
        return 0
    key, value, _ = places
    lines = islice(table_lines(head.text), header.place + 1, header.place + 1 + _SNIFFED_ROWS)
    rows = [cells for line in lines if (cells := header.table.cells(line)) is not None]
    is_loss = [FREE_NAMES.get(cells[key].strip()) in ("loss", "eval_loss") for cells in rows]
    return sum(number(cells[value]) is not None for cells in rows) * any(is_loss)


def _with_ends(source: Source) -> Iterator[str]:
    """Lines with an end, but the last where it has none."""
    for line, after in pairwise(chain(source.lines(), [None])):
        if line is not None:
            yield line if after is None else f"{line}\n"


def _read(source: Source, log: Log) -> None:
    header = _header(source.head)
    places = _places(header.names) if header else None
    if header is None or places is None:
        raise Unreadable("no line in it names columns of a key, a value and a step", "name them")
    key, value, step = places
    run = _place(header.names, _RUNS)
    runs: set[str] = set()
    lines = islice(filter(str.strip, _with_ends(source)), header.place + 1, None)
    for line in lines:
        cells = header.table.cells(line.rstrip("\n"))
        is_cut = not line.endswith("\n")
        if cells is None or (found := number(cells[value])) is None:
            log.skip(first=line)
            continue
        if run is not None and len(runs) < 2:
            if is_cut and runs and cells[run] not in runs:
                log.skip(first=line)
                continue
            runs.add(cells[run])
        log.row({cells[key].strip(): found}, cells[step])
    if len(runs) > 1:
        raise Unreadable("several runs in this table", "keep the rows of one of them")
    log.count_from_one()


READER = Reader(
    name="long-table",
    sniff=_sniff,
    read=_read,
    aliases=FREE_NAMES,
    rank=Rank.TABLE,
    sample="""key,value,timestamp,step,run_id
train_loss,2.25,1700000000,10,a1
train_loss,2.125,1700000010,20,a1
val_loss,2.5,1700000010,20,a1
""",
)
