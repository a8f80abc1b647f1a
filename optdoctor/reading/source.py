"""Where the bytes of a log come from, and their text in pieces, in constant memory."""

import copy
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from optdoctor.errors import Unreadable
from optdoctor.reading.text_blocks import blocks_of, byte_blocks_of, decode, line_views_of
from optdoctor.reading.unpack import PIECE_BYTES, form_of, stream_of, unpacked

HEAD_BYTES = 1 << 20
"""What a reader may look at before it claims a file."""
MAX_WINDOWS = 16
"""Heads' worth of a log in which a format is looked for."""
WHOLE_BYTES = 1 << 30
"""Size beyond which nothing is read into memory as a whole."""


@dataclass(frozen=True)
class Head:
    """The beginning of a source, all that a reader may look at before it claims it."""

    data: bytes
    """At most `HEAD_BYTES`."""
    name: str = ""
    """File name without its folder, "" where there is none."""

    @cached_property
    def text(self) -> str:
        """The same as text."""
        return decode(self.data)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text that are not blank."""
        return [line for line in self.text.replace("\r", "\n").split("\n") if line.strip()]


class Source:
    """The bytes of one log, unpacked where they are compressed.

    A subclass that brings them from elsewhere, as one that follows a growing file, has its own
    `pieces`: text and lines come from there.
    """

    def __init__(
        self,
        data: bytes | Callable[[], BinaryIO],
        origin: str,
        path: Path | None = None,
        name: str = "",
    ) -> None:
        self._data, self.origin, self.path = data, origin, path
        self.name = name or (path.name if path else "")
        """File name without its folder, "" where there is none."""
        self._damage: list[str] = []  # shared with what `later` returns
        self._claimed: tuple[int, Head] | None = None

    @classmethod
    def of_file(cls, path: Path) -> "Source":
        """The source that is a file; nothing is read yet."""
        return cls(lambda: path.open("rb"), str(path), path)

    def open(self) -> BinaryIO:
        """The bytes as a stream, which the caller closes."""
        raw = io.BytesIO(self._data) if isinstance(self._data, bytes) else self._data()
        return unpacked(raw, self._damage.append)

    @property
    def damage(self) -> str:
        """What is wrong with compressed data, one sentence, once it was read so far."""
        return self._damage[0] if self._damage else ""

    def pieces(self) -> Iterator[bytes]:
        """The bytes in pieces."""
        with self.open() as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    def first(self, size: int) -> bytes:
        """So many bytes from the beginning."""
        with self.open() as file:
            return file.read(size)

    def last(self, size: int) -> bytes:
        """So many bytes at the end, none where they cannot be had without reading all."""
        with self.open() as file:
            if not file.seekable():
                return b""
            end = file.seek(0, io.SEEK_END)
            file.seek(max(end - size, 0))
            return file.read(size)

    @cached_property
    def _beginning(self) -> Head:
        return Head(self.first(HEAD_BYTES), self.name)

    @property
    def head(self) -> Head:
        """The beginning, or what `later` was given."""
        return self._claimed[1] if self._claimed else self._beginning

    @property
    def has_more(self) -> bool:
        """Whether anything may stand behind the head."""
        return len(self._beginning.data) == HEAD_BYTES

    def later(self, block: int, head: Head) -> "Source":
        """This source from one of its blocks on, [0, ..), with what is seen there as its head."""
        other = copy.copy(self)
        other._claimed = block, head
        return other

    def windows(self) -> Iterator[tuple[int, Head]]:
        """(number of a block, its text as a head) behind the head, up to `MAX_WINDOWS`."""
        if not self.has_more:
            return
        blocks = blocks_of([self.first(MAX_WINDOWS * HEAD_BYTES)])
        for number, block in islice(enumerate(blocks), 1, None):
            yield number, Head(block.encode(), self.name)

    @property
    def data(self) -> bytes:
        """All bytes.

        Raises:
            Unreadable: there are more than `WHOLE_BYTES`.
        """
        if isinstance(self._data, bytes) and not form_of(self._data) and not self._claimed:
            return self._data
        parts, size = [], 0
        for piece in self.byte_blocks() if self._claimed else self.pieces():
            parts.append(piece)
            size += len(piece)
            if size > WHOLE_BYTES:
                reason = f"larger than {WHOLE_BYTES >> 30} GiB, and read as a whole in this format"
                raise Unreadable(reason, "cut the log and read its parts")
        return b"".join(parts)

    @property
    def text(self) -> str:
        """All of it as text, in whatever encoding it is in, without NUL characters.

        Raises:
            Unreadable: as `data`.
        """
        return decode(self.data)

    def blocks(self) -> Iterator[str]:
        """The text in pieces that end at a line end, or at the end of all; see `blocks_of`."""
        return islice(blocks_of(self.pieces()), self._first_block, None)

    def byte_blocks(self) -> Iterator[bytes]:
        """The same as bytes of UTF-8, in which NUL and what is no UTF-8 stand as they are."""
        return islice(byte_blocks_of(self.pieces()), self._first_block, None)

    def line_views(self) -> Iterator[memoryview]:
        """The same in larger pieces, each good until the next; see `line_views_of`."""
        return (
            map(memoryview, self.byte_blocks()) if self._claimed else line_views_of(self.pieces())
        )

    @property
    def _first_block(self) -> int:
        return self._claimed[0] if self._claimed else 0

    def lines(self) -> Iterator[str]:
        r"""Lines without their ends; a carriage return ends one too, as progress bars use it.

        As `re.split(r"[\r\n]+", text)`: no empty line but a first and a last one.
        """
        block = ""
        for number, block in enumerate(self.blocks()):
            if not number and block[0] in "\r\n":
                yield ""
            if "\r" in block:
                block = block.replace("\r", "\n")
            yield from filter(None, block.split("\n"))
        if not block or block[-1] == "\n":
            yield ""


class Piped(Source):
    """A stream that can be read only once, as standard input; what was looked at is kept."""

    def __init__(self, file: BinaryIO, origin: str, path: Path | None = None) -> None:
        super().__init__(lambda: file, origin, path)
        self._kept = b""
        self._state: dict[str, BinaryIO] = {}  # shared with what `later` returns

    def open(self) -> BinaryIO:
        """The bytes as a stream.

        Raises:
            Unreadable: for the second time.
        """
        if "given" in self._state:
            raise Unreadable("a pipe can be read only once", "write it to a file and name that")
        below = self._state["given"] = self._stream()
        kept, self._kept = self._kept, b""
        return stream_of(chain([kept], iter(lambda: below.read(PIECE_BYTES), b"")), below)

    def first(self, size: int) -> bytes:
        """So many bytes from the beginning, which are read again later."""
        if missing := max(size - len(self._kept), 0):
            self._kept += self._stream().read(missing)
        return self._kept[:size]

    def last(self, size: int) -> bytes:
        """None: the end of a pipe is not known."""
        return b""

    def _stream(self) -> BinaryIO:
        if "below" not in self._state:
            self._state["below"] = super().open()
        return self._state["below"]
