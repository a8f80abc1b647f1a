"""What a reader of a log format is, and the bytes that it is given."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optdoctor.errors import Told
from optdoctor.log import Log

HEAD_BYTES = 1 << 20
"""What a reader may look at before it claims a file."""
MAX_LINE = 1 << 20
"""Characters of a line beyond which it is no row of a log."""


class Unreadable(Told):
    """A path that holds no run."""


@dataclass(frozen=True)
class Source:
    """The bytes of one log."""

    data: bytes
    origin: str
    path: Path | None = None

    @property
    def head(self) -> str:
        """The beginning as text."""
        return decode(self.data[:HEAD_BYTES])

    @property
    def text(self) -> str:
        """All of it as text, in whatever encoding it is in, without NUL characters."""
        return decode(self.data)

    def lines(self) -> Iterator[str]:
        """Lines without their ends; a carriage return ends one too, as progress bars use it."""
        for line in re.split(r"[\r\n]+", self.text):
            yield line[:MAX_LINE]


def decode(data: bytes) -> str:
    """Text from bytes of unknown encoding; a byte that is none is replaced, never an error."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        text = data.decode("utf-16", "replace")
    else:
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    return text.replace("\x00", "")


@dataclass(frozen=True, slots=True)
class Reader:
    """One log format."""

    name: str
    """Kebab case, as `--reader` takes it."""
    sniff: Callable[[str], bool]
    """Whether the beginning of a file (text, at most `HEAD_BYTES`) is of this format."""
    read: Callable[[Source, Log], None]
    """Fills the log; raises `Unreadable` for a file that is of the format and holds no run."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    sample: str = ""
    """A few lines in this format, which only this reader claims."""
