"""Bytes of unknown encoding as text, in blocks of whole lines and constant memory."""

import codecs
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import AnyStr

from optdoctor.reading.unpack import PIECE_BYTES

MAX_LINE = 1 << 20
"""Characters of a line behind which the rest of it is dropped: it is no row of a log."""
_WIDE = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
"""{byte order mark: encoding}."""
_LEAST = 1 << 16  # bytes of a buffer
_LINE_END = re.compile(rb"[\r\n]")


def decode(data: bytes) -> str:
    """Text from bytes of unknown encoding; a byte that is none is replaced, never an error."""
    decoder, start = _decoder(data)
    return decoder.decode(start, True).replace("\x00", "")


def blocks_of(pieces: Iterable[bytes], longest: int = MAX_LINE) -> Iterator[str]:
    """The text of bytes, as `decode`, in pieces that end at a line end, or at the end of all.

    CR LF is never parted. A line of more than `longest` characters is cut there. Holds less than
    three times as many.
    """
    texts = _sliced(_texts(_sliced(pieces, longest)), longest)
    return _whole_lines(texts, longest, "\r", "\n", re.compile(r"[\r\n]"))


def byte_blocks_of(pieces: Iterable[bytes], longest: int = MAX_LINE) -> Iterator[bytes]:
    """The same as bytes of UTF-8, in which NUL and what is no UTF-8 stand as they are."""
    parts = _sliced(pieces, longest)
    start = _start(parts)
    if start[:2] in _WIDE:
        yield from (block.encode() for block in blocks_of(chain([start], parts), longest))
        return
    rest = chain([start.removeprefix(codecs.BOM_UTF8)], parts)
    yield from _whole_lines(rest, longest, b"\r", b"\n", _LINE_END)


def line_views_of(
    pieces: Iterable[bytes], size: int = 8 << 20, longest: int = MAX_LINE
) -> Iterator[memoryview]:
    """As `byte_blocks_of`, in views of one buffer of `size` bytes: each is good until the next.

    What parses bytes by itself does so at less cost in large blocks. After a piece of less than
    `PIECE_BYTES`, of which a growing source has no more by now, no whole line is held back. A line
    is cut at `longest` only where it does not fit into the buffer, which is larger by two at least.
    """
    parts = iter(pieces)
    start = _start(parts)
    if start[:2] in _WIDE:
        yield from (memoryview(b) for b in byte_blocks_of(chain([start], parts), longest))
        return
    # It grows to its size, for to fill all of it with zeros would take longer than a small log.
    buffer = bytearray(min(max(2 * len(start), _LEAST), size))
    view = memoryview(buffer)
    held, is_cut = 0, False
    for part in chain([start.removeprefix(codecs.BOM_UTF8)], parts):
        piece = memoryview(part)
        while piece:
            if is_cut:
                found = _LINE_END.search(piece)
                piece, is_cut = piece[found.start() if found else len(piece) :], not found
            taken = piece[: len(buffer) - held]
            view[held : held + len(taken)] = taken
            held, piece = held + len(taken), piece[len(taken) :]
            is_full = held == len(buffer)
            if not is_full and (piece or len(part) >= PIECE_BYTES):
                continue
            if cut := _last_line_end(buffer, held):
                yield view[:cut]
            rest = view[cut:held]
            if is_full and len(buffer) < size:
                buffer = bytearray(min(2 * len(buffer), size))
                view = memoryview(buffer)
            elif is_full and not cut:
                is_cut = not buffer.endswith(b"\r")
                buffer[longest] = buffer[-1]
                rest = view[: longest + (not is_cut)]
            held = len(rest)
            view[:held] = rest
    if held:
        yield view[:held]


def _last_line_end(buffer: bytearray, stop: int) -> int:
    """Where the last whole line before `stop` ends; a CR there may have an LF behind it."""
    line_feed = buffer.rfind(b"\n", 0, stop)
    return max(line_feed, buffer.rfind(b"\r", line_feed + 1, stop - 1)) + 1


def _whole_lines(
    texts: Iterator[AnyStr],
    longest: int,
    carriage_return: AnyStr,
    line_feed: AnyStr,
    line_end: re.Pattern[AnyStr],
) -> Iterator[AnyStr]:
    """Texts of at most `longest` characters, joined and cut anew; a line of more is cut."""
    nothing = carriage_return[:0]
    held = nothing  # the beginning of the line that the next text goes on with
    waiting = nothing  # a carriage return that a line feed may follow
    for text in texts:
        text = waiting + text
        waiting = text[-1:] if text.endswith(carriage_return) else nothing
        if waiting:
            text = text[:-1]
        if len(held) + len(text) > longest:
            found = line_end.search(text)
            end = found.start() if found else len(text)
            if end > (room := longest - len(held)):
                text = text[:room] + text[end:]
        cut = max(text.rfind(line_feed), text.rfind(carriage_return)) + 1
        if cut:
            yield held + text[:cut]
            held = text[cut:]
        else:
            held += text
    if held or waiting:
        yield held + waiting


def _texts(parts: Iterator[bytes]) -> Iterator[str]:
    decoder, start = _decoder(_start(parts))
    for part in chain([start], parts):
        yield decoder.decode(part).replace("\x00", "")
    yield decoder.decode(b"", True).replace("\x00", "")


def _decoder(start: bytes) -> tuple[codecs.IncrementalDecoder, bytes]:
    """The decoder for data that starts so, and the start without its byte order mark."""
    if start[:2] in _WIDE:
        return codecs.getincrementaldecoder(_WIDE[start[:2]])("replace"), start[2:]
    return codecs.getincrementaldecoder("utf-8")("replace"), start.removeprefix(codecs.BOM_UTF8)


def _start(parts: Iterator[bytes]) -> bytes:
    """As many of the parts as show how they are encoded, joined."""
    start = b""
    while len(start) < len(codecs.BOM_UTF8) and (part := next(parts, b"")):
        start += part
    return start


def _sliced(texts: Iterable[AnyStr], longest: int) -> Iterator[AnyStr]:
    return (text[at : at + longest] for text in texts for at in range(0, len(text), longest))
