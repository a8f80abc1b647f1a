"""Compressed input: told by its first bytes, unpacked as a stream in bounded memory."""

import io
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, BinaryIO

from optdoctor.errors import Unreadable
from optdoctor.reading.unzip import Packed, unzipped

SIGNATURE_BYTES = 10
PIECE_BYTES = 1 << 20
"""What is unpacked, or read, at once."""
BOMB_BYTES = 32 << 20
BOMB_RATIO = 200
"""Unpacked bytes for each packed one, beyond the first `BOMB_BYTES`, that make an archive a bomb.

Measured: console logs and progress bars shrink 5 to 35 times, a row after 20 times the same warning
100 (lz4) to 380 times (bzip2), zeros 240 (lz4), 1,030 (gzip) to 650,000 times (bzip2). One line
repeated shrinks as zeros do: only its size, not its kind, tells it from a bomb.
"""
XZ_MEMORY = 256 << 20
"""What a dictionary of xz may take; `xz -9` takes 65 MB."""
_ARROW_BYTES = 1 << 17
_SIGNATURE = re.compile(
    rb"(?P<gzip>\x1f\x8b\x08)|(?P<bzip2>BZh[1-9](?:1AY&SY|\x17rE8P\x90))|(?P<xz>\xfd7zXZ\x00)"
    rb"|(?P<zstd>\x28\xb5\x2f\xfd)|(?P<lz4>\x04\x22\x4d\x18)|(?P<zip>PK\x03\x04|PK\x05\x06)"
)


def form_of(start: bytes) -> str:
    """How data that starts so is compressed, "" where it is not."""
    found = _SIGNATURE.match(start)
    return (found.lastgroup or "") if found else ""


def unpacked(file: BinaryIO, tell: Callable[[str], None]) -> BinaryIO:
    """What a file holds from where it stands: itself where it is not compressed.

    `tell` is given one sentence where the data ends early or is damaged; what stands before that
    is read.

    Raises:
        Unreadable: now or while reading: nothing can be unpacked, it holds several files, or it
            is a bomb.
    """
    start = file.read(SIGNATURE_BYTES)
    form = form_of(start)
    if form:
        packed = Packed(file, start)
        return stream_of(_watched(_pieces(form, packed), packed, form, tell), file)
    if file.seekable():
        file.seek(-len(start), io.SEEK_CUR)
        return file
    return stream_of(chain([start], iter(lambda: file.read(PIECE_BYTES), b"")), file)


def stream_of(pieces: Iterator[bytes], below: BinaryIO | None = None) -> BinaryIO:
    """A binary stream of pieces; closing it closes `below`."""
    return io.BufferedReader(_Stream(pieces, below), PIECE_BYTES)


class _Stream(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes], below: BinaryIO | None) -> None:
        self._pieces, self._below, self._rest = pieces, below, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def close(self) -> None:
        if self._below is not None:
            self._below.close()
        super().close()


def _pieces(form: str, packed: Packed) -> Iterator[bytes]:
    if form == "zip":
        return unzipped(packed, lambda: _Inflate(-zlib.MAX_WBITS), PIECE_BYTES)
    if form in ("zstd", "lz4"):
        return _by_arrow(packed, form)
    return _members(packed, form, _decompressor(form))


def _decompressor(form: str) -> Callable[[], Any]:
    if form == "gzip":
        return lambda: _Inflate(16 + zlib.MAX_WBITS)
    if form == "bzip2":
        import bz2

        return bz2.BZ2Decompressor
    import lzma

    return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)


class _Inflate:
    """zlib's decompressor as those of bz2 and lzma are."""

    def __init__(self, window_bits: int) -> None:
        self._inner = zlib.decompressobj(window_bits)

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, most)

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


def _members(packed: Packed, form: str, new: Callable[[], Any]) -> Iterator[bytes]:
    """What the members of a file hold, one behind the other; what is none ends it."""
    while True:
        yield from packed.decompressed(new(), PIECE_BYTES)
        start = packed.peek(SIGNATURE_BYTES)
        while start and not start.strip(b"\0"):  # padding
            packed.take(len(start))
            start = packed.peek(SIGNATURE_BYTES)
        packed.take(len(start) - len(start.lstrip(b"\0")))
        if form_of(packed.peek(SIGNATURE_BYTES)) != form:
            return


def _by_arrow(packed: Packed, form: str) -> Iterator[bytes]:
    import pyarrow

    stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(packed, mode="r"), form)
    while True:
        buffer = bytearray(_ARROW_BYTES)
        try:
            size = stream.readinto(buffer)
        except OSError:
            # It does not say how much it had filled before; a log does not end in zeros.
            if filled := bytes(buffer).rstrip(b"\0"):
                yield filled
            raise
        if not size:
            return
        yield bytes(memoryview(buffer)[:size])


def _watched(
    pieces: Iterator[bytes], packed: Packed, form: str, tell: Callable[[str], None]
) -> Iterator[bytes]:
    """The pieces, up to where they are damaged or their size is out of all proportion."""
    unpacked_bytes = 0
    try:
        for piece in pieces:
            unpacked_bytes += len(piece)
            if unpacked_bytes > max(BOMB_BYTES, BOMB_RATIO * packed.taken_bytes):
                reason = f"its {form} data grows more than {BOMB_RATIO}-fold when unpacked"
                raise Unreadable(reason, "unpack it yourself if you trust it")
            yield piece
    except Exception as error:
        if not _is_damage(error):
            raise
        if not unpacked_bytes:
            raise Unreadable(
                f"its {form} data is cut off or damaged", "name a whole file"
            ) from error
        tell(f"its {form} data is cut off or damaged; the rows before that are read")


def _is_damage(error: Exception) -> bool:
    if isinstance(error, EOFError | zlib.error):
        return True
    # bz2 and pyarrow say it with an OSError that has no number; one of the disk has one.
    is_word = isinstance(error, OSError) and error.errno is None
    return is_word or type(error).__name__ == "LZMAError"
