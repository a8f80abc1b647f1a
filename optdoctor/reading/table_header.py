"""The header of a table: which line it is, and what its columns mean."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from optdoctor.knowledge.log_names import FREE_NAMES
from optdoctor.reading.reader import MAX_LINE, Head
from optdoctor.reading.table_rows import NO_VALUE, Table, are_integers, cells_of, is_row
from optdoctor.trace import Fact

KNOWN_METRICS = frozenset({"accuracy", "acc", "val_accuracy", "val_acc"})
"""Names of metrics that are recognised in any case."""
_HEADER_WITHIN = 10  # lines
_LOOK_AHEAD = 5  # lines
_SAMPLE_ROWS = 200  # that tell text from numbers


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the columns of one table mean."""

    aliases: Mapping[str, str] = field(default_factory=lambda: FREE_NAMES)
    """{name: channel}, as a reader has them."""
    step: str | None = None
    """The column that numbers the rows."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """{column: the name that it goes by from here on}."""
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """{channel: the columns whose sum it is}; each of them is a metric too."""
    dicts: frozenset[str] = frozenset()
    """Columns that hold a Python dict as text: its numbers go by `<column>/<key>`."""
    is_row_an_epoch: bool = False
    """Whether each row is an epoch of its own, with or without a loss."""
    counts_updates: bool = True
    """Whether steps number updates, and not for instance the steps of an environment."""
    from_zero: bool = False
    """Whether the first update is likely to be number 0, where too few rows tell."""
    refusal: tuple[str, str] | None = None
    """Why no single run is in the table, and what to do."""


Claim = Callable[[tuple[str, ...], str], Meaning | None]
"""From the names of a header and that of the file; None where the format is another."""


@dataclass(frozen=True, slots=True)
class Header:
    """A header."""

    place: int
    """Lines before it that are not blank."""
    names: tuple[str, ...]
    meaning: Meaning
    table: Table

    def named(self, channel: str) -> list[str]:
        """The columns of a channel."""
        found = [n for n in self.table.wanted if self.meaning.aliases.get(n, n) == channel]
        return [channel] if channel in self.meaning.sums else found

    @property
    def losses(self) -> list[str]:
        """The columns that are the training loss."""
        return self.named("loss")

    @property
    def epoch(self) -> str | None:
        """The column of the epoch."""
        return next(iter(self.named("epoch")), None)


def find_header(head: Head, claim: Claim) -> Header | None:
    """The first line that names columns and is followed by rows of as many cells."""
    first = list(islice(table_lines(head.text), _HEADER_WITHIN + _SAMPLE_ROWS))
    for place, line in enumerate(first[:_HEADER_WITHIN]):
        delimiter = max(",;\t", key=lambda mark: len(cells_of(line, mark)))
        names = names_of(line, delimiter)
        meaning = claim(names, head.name)
        if meaning is None:
            continue
        following = [cells_of(text, delimiter) for text in first[place + 1 :]]
        rows = [cells for cells in following if len(cells) == len(names)]
        is_fit = [len(cells) == len(names) and is_row(cells) for cells in following]
        others = range(1, min(len(is_fit), _LOOK_AHEAD))
        # What follows another header says nothing of this one.
        ends = (at for at in others if claim(names_of(first[place + 1 + at], delimiter), head.name))
        near = is_fit[: next(ends, _LOOK_AHEAD)]
        if 2 * sum(near) >= len(near):
            return Header(place, names, meaning, table_of(names, delimiter, meaning, rows))
    return None


def table_lines(text: str) -> Iterator[str]:
    """Lines that are not blank, without their ends."""
    for found in re.finditer(r"[^\r\n]+", text):
        if not found[0].isspace():
            yield found[0][:MAX_LINE]


def names_of(line: str, delimiter: str) -> tuple[str, ...]:
    """The names of a header; known ones are recognised in any case and with blanks."""
    stripped = [cell.strip().lstrip("#").strip() for cell in cells_of(line, delimiter)]
    plain = [name.lower().replace(" ", "_") for name in stripped]
    known = FREE_NAMES.keys() | KNOWN_METRICS
    return tuple(p if p in known else s for p, s in zip(plain, stripped, strict=True))


def table_of(
    names: tuple[str, ...], delimiter: str, meaning: Meaning, rows: list[list[str]]
) -> Table:
    places = {meaning.names.get(name, name): at for at, name in enumerate(names)}
    wanted, integers = {}, set()
    for name, at in places.items():
        channel = meaning.aliases.get(name, name)
        texts = [row[at] for row in rows if row[at] not in NO_VALUE]
        is_text = bool(texts) and not is_row(texts) and name not in meaning.aliases
        if name == meaning.step or (channel and not is_text and name not in meaning.dicts):
            wanted[name] = at
            if are_integers(texts):
                integers.add(name)
    dicts = {name: at for name, at in places.items() if name in meaning.dicts}
    return Table(delimiter, len(names), wanted, dicts, frozenset(integers), meaning.step)
