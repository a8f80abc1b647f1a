"""The last resort: what looks like a loss in a file that no other format knows.

A number behind a word such as `cost`, `error` or `perplexity`, or behind nothing but `train`, or
bare columns of numbers. What is read is a guess, and the report says so: `loss_kind` is unknown.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import Log, number
from optdoctor.reading.prose import alike, is_json
from optdoctor.reading.reader import Head, Rank, Reader, Source
from optdoctor.reading.text_format import NUMBER, PAIRS, clean_lines, lines_of, value_of

_QUANTITY = (
    r"loss|cost|nll|objective|criterion|perplexity|\bppl\b|elbo|likelihood|entropy|\bkl\b|"
    r"\b(?:mse|mae|rmse|bce|wer|cer)\b|\berr(?:or)?\b|residual|energy"
)
_TRAINING = ("train", "training")
_EVALUATION = ("val", "valid", "validation", "eval", "test")
_BARE = "|".join((*_TRAINING, *_EVALUATION))
"""Data whose loss it may be where a line says no more of it."""
_NAMES_ONE = lazy(f"(?i){_QUANTITY}|^(?:{_BARE})$")
_SPACED = lazy(
    rf"(?i)(?<![\w.])(?P<key>(?:[^\W\d]\w* )?(?:{_QUANTITY})|\b(?:{_BARE}))"
    rf"[ \t]+(?P<value>{NUMBER})"
)
_COLON = lazy(PAIRS[":"])
_LONGEST = 1000
"""Characters of a line that are looked at."""
_CELL = lazy(r"[,;\s]+")
_SNIFFED_LINES = 20_000
_LEAST_ROWS = 5
_NUM_TRIED = 10
_MOST_COLUMNS = 8


def _sniff(head: Head) -> int:
    lines = list(clean_lines(head.lines[:_SNIFFED_LINES]))
    key, rows = _key(lines)
    if key:
        return rows if rows >= _LEAST_ROWS else 0
    return 0 if len(lines) < _LEAST_ROWS or _column(lines) is None else len(lines)


def _read(source: Source, log: Log) -> None:
    lines = list(clean_lines(source.head.lines[:_SNIFFED_LINES]))
    key, _ = _key(lines)
    column = None if key else _column(lines)
    log.facts |= {"loss_kind": "unknown", "step_source": "counted rows"}
    log.spell(key or f"column {(column or 0) + 1}", "loss")
    for line in lines_of(source):
        if column is not None:
            row = {"loss": _cell(line, column)}
        else:
            values = {name: value for name, value, _ in _pairs(line)}
            row = {"loss": values.get(key)}
            if key in _TRAINING:
                row["eval_loss"] = next((values[n] for n in _EVALUATION if n in values), None)
        if row["loss"] is not None:
            log.row(row)


def _pairs(line: str) -> Iterator[tuple[str, float, str]]:
    """Each name and number of a line that may be meant, and the text before it."""
    if is_json(line):
        return
    line = line[:_LONGEST]  # what stands before each of many pairs takes the square of it
    for pair in (*_SPACED.finditer(line), *_COLON.finditer(line)):
        if _NAMES_ONE.search(pair["key"]):
            key = " ".join(pair["key"].lower().split())
            yield key, value_of(pair["value"]), line[: pair.start()]


def _key(lines: Sequence[str]) -> tuple[str, int]:
    """The name that stands in most rows of one shape, with numbers that change, and the rows.

    Most lines that hold the name have to be such rows, or it is a word of prose.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for line in lines:
        for key, value, before in _pairs(line):
            if key not in _EVALUATION:
                found.setdefault(key, []).append((repr(value), before))
    moving = {k: rows for k, rows in found.items() if len(rows) == 1 or len({*dict(rows)}) > 1}
    counts = Counter({key: alike(rows) for key, rows in moving.items()})
    plain = [line.lower() for line in lines]
    for key, rows in counts.most_common(_NUM_TRIED):
        if 2 * rows >= sum(key in line for line in plain):
            return key, rows
    return "", 0


def _column(lines: Sequence[str]) -> int | None:
    """Of bare columns of numbers the first that is no counter."""
    table = [cells for line in lines if (cells := _cells(line))]
    if len(table) < max(1, 0.9 * len(lines)):
        return None
    width = Counter(map(len, table)).most_common(1)[0][0]
    for place in range(width if width <= _MOST_COLUMNS else 0):
        column = [row[place] for row in table if len(row) == width]
        if len(set(map(repr, column))) > 1 and not _is_counter(column):
            return place
    return None


def _is_counter(column: Sequence[float]) -> bool:
    # Of infinity and NaN the remainder is NaN.
    return all(a <= b and (b - a) % 1 == 0 for a, b in pairwise(column))


def _cells(line: str) -> list[float]:
    """The numbers of a line that holds nothing else."""
    found = [number(cell) for cell in _CELL.split(line.strip()[:_LONGEST])]
    return [] if None in found else [cell for cell in found if cell is not None]


def _cell(line: str, column: int) -> float | None:
    cells = _cells(line)
    return cells[column] if column < len(cells) else None


READER = Reader(
    name="guess",
    sniff=_sniff,
    read=_read,
    rank=Rank.GUESS,
    sample="""round 1 cost 2.25
round 2 cost 2.125
round 3 cost 2.0625
round 4 cost nan
round 5 cost 2.03125
""",
)
