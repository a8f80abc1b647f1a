"""What a reader of a log format is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from optdoctor.errors import Unreadable
from optdoctor.reading.log import Log
from optdoctor.reading.source import HEAD_BYTES, Head, Source
from optdoctor.reading.text_blocks import MAX_LINE, decode

__all__ = ["HEAD_BYTES", "MAX_LINE", "Head", "Rank", "Reader", "Source", "Unreadable", "decode"]


class Rank(IntEnum):
    """How much a claim is worth: the lowest that is made decides, then the most rows."""

    BYTES = -1
    """A format that is no text, told by its first bytes; then no other reader is asked."""
    FORMAT = 0
    """The format of one tool, told by marks that no other has."""
    TABLE = 1
    """A general form with names: CSV, JSON lines, `key: value` prints."""
    GUESS = 2
    """Numbers whose meaning is guessed; the report says so."""


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """One log format."""

    name: str
    """Kebab case, as `--reader` takes it."""
    sniff: Callable[[Head], int]
    """Rows of this format that the beginning of a file shows, 0 where it is not of this format."""
    read: Callable[[Source, Log], None]
    """Fills the log; raises `Unreadable` for a file that is of the format and holds no run."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    sample: str = ""
    """A few lines in this format, which only this reader claims among those of its rank."""
    rank: Rank = Rank.FORMAT
    grows: bool = True
    """Whether a file of this format grows at its end; another is written anew as a whole."""
    wants: str = ""
    """What a file must show to be of this format, behind "no": "header line that names a loss".
    Where it is "", the first line of the sample that shows a row."""
    marks: tuple[str, ...] = ()
    """Texts of which at least one stands in all that `sniff` claims, so that without them it need
    not be asked; () where nothing can be said. Of `Rank.BYTES` they stand in the bytes."""
