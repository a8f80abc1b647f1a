"""The one file of a zip archive, read from its front: a cut archive and a pipe have no directory.

The format is PKWARE's APPNOTE 6.3: 4.3.7 local header, 4.3.9 descriptor, 4.3.12 directory.
"""

import io
import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from optdoctor.errors import Unreadable

INPUT_BYTES = 1 << 14
"""Read at once: what is behind the end of a member is copied for each of them."""
_DIRECTORY_BYTES = 1 << 20
_BESIDE_BYTES = 1 << 24
"""What an archive may hold, unpacked, beside its log."""
_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _HAS_DESCRIPTOR = 1, 8
_REMEDY = "unpack it and name the log"


class Packed:
    """The bytes of a compressed file, counted, and with those to be read again."""

    closed = False

    def __init__(self, file: BinaryIO, start: bytes) -> None:
        self.file, self._ahead, self.taken_bytes = file, start, len(start)

    def read(self, size: int = INPUT_BYTES) -> bytes:
        """Some bytes, none at the end."""
        if self._ahead:
            piece, self._ahead = self._ahead[:size], self._ahead[size:]
            return piece
        piece = self.file.read(size)
        self.taken_bytes += len(piece)
        return piece

    def peek(self, size: int) -> bytes:
        """So many bytes, fewer only at the end, which are still to be read."""
        while len(self._ahead) < size:
            piece = self.file.read(INPUT_BYTES)
            if not piece:
                break
            self.taken_bytes += len(piece)
            self._ahead += piece
        return self._ahead[:size]

    def take(self, size: int) -> bytes:
        """So many bytes.

        Raises:
            EOFError: fewer are left.
        """
        if len(taken := self.peek(size)) < size:
            raise EOFError
        self._ahead = self._ahead[size:]
        return taken

    def close(self) -> None:
        """Nothing: who opened the file closes it."""

    def decompressed(self, decompressor: Any, most: int) -> Iterator[bytes]:
        """What one member holds, in pieces of `most` bytes; the rest is still to be read.

        Raises:
            EOFError: the data ends before the member does.
        """
        while not decompressor.eof:
            data = self.read() if decompressor.needs_input else b""
            piece = decompressor.decompress(data, most)
            if piece:
                yield piece
            elif not data and not decompressor.eof:
                raise EOFError
        self._ahead = decompressor.unused_data + self._ahead


def unzipped(packed: Packed, new: Callable[[], Any], most: int) -> Iterator[bytes]:
    """What the only file of the archive holds; `new` makes a decompressor of raw deflate data.

    Raises:
        Unreadable: it holds no file or several, or is encrypted.
        EOFError: it is cut off.
    """
    if packed.file.seekable() and len(_listed(packed.file)) > 1:
        raise _several()
    num_files = beside_bytes = 0
    while packed.peek(4) == b"PK\3\4":
        flags, method, size, name_size, more = struct.unpack("<6xHH8xI4xHH", packed.take(30))
        name = packed.take(name_size)
        packed.take(more)
        num_files += _is_log(name)
        if num_files > 1:
            raise _several()
        for piece in _entry(packed, flags, method, size, new, most):
            if _is_log(name):
                yield piece
            else:
                beside_bytes += len(piece)
            if beside_bytes > _BESIDE_BYTES:
                raise Unreadable("a zip archive with much beside its log", _REMEDY)
        if flags & _HAS_DESCRIPTOR:
            # With or without a signature, of 32 or 64 bits: up to the next entry.
            behind = packed.peek(28)
            starts = [at for mark in (b"PK\3\4", b"PK\1\2") if (at := behind.find(mark)) >= 0]
            packed.take(min(starts, default=len(behind)))
    if not num_files:
        raise Unreadable("a zip archive without a file", _REMEDY)


def _entry(
    packed: Packed, flags: int, method: int, size: int, new: Callable[[], Any], most: int
) -> Iterator[bytes]:
    if flags & _ENCRYPTED:
        raise Unreadable("an encrypted zip archive", _REMEDY)
    if method == _DEFLATED:
        yield from packed.decompressed(new(), most)
        return
    is_sized = size < 0xFFFFFFFF and (size > 0 or not flags & _HAS_DESCRIPTOR)
    if method != _STORED or not is_sized:
        raise Unreadable("a zip archive of a rare kind", _REMEDY)
    while size:
        piece = packed.read(min(size, most))
        if not piece:
            raise EOFError
        size -= len(piece)
        yield piece


def _several() -> Unreadable:
    return Unreadable("a zip archive of several files", _REMEDY)


def _is_log(name: bytes) -> bool:
    return not name.endswith(b"/") and not name.startswith(b"__MACOSX/")


def _listed(file: BinaryIO) -> list[bytes]:
    """Names of the files in the directory at the end, none where it cannot be found."""
    place = file.tell()
    try:
        size_bytes = file.seek(0, io.SEEK_END)
        file.seek(max(size_bytes - (1 << 16) - 22, 0))
        tail = file.read()
        end = tail.rfind(b"PK\5\6")
        if end < 0 or len(tail) < end + 22:
            return []
        size, start = struct.unpack_from("<II", tail, end + 12)
        file.seek(start)
        directory = file.read(min(size, _DIRECTORY_BYTES))
    finally:
        file.seek(place)
    names, at = [], 0
    while directory[at : at + 4] == b"PK\1\2" and len(directory) >= at + 46:
        name_size, extra, comment = struct.unpack_from("<HHH", directory, at + 28)
        names.append(directory[at + 46 : at + 46 + name_size])
        at += 46 + name_size + extra + comment
    return [name for name in names if _is_log(name)]
