"""The wire format of protocol buffers, as far as reading a log needs it."""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types; those of the long gone groups are none."""

_WIDTHS = {FIXED64: 8, FIXED32: 4}


class Malformed(ValueError):
    """Bytes that are no message."""


def varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """(value, position behind it) of the variable-width number at `at`, unsigned.

    Raises:
        Malformed: it does not end before `stop` or within 10 bytes.
    """
    value = 0
    for i in range(10):
        if at + i >= stop:
            raise Malformed
        byte = data[at + i]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise Malformed


def signed(value: int) -> int:
    """An int64 that was written as a variable-width number."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def fields(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, start, stop of the value) of each field of the message in `data`.

    Raises:
        Malformed: the fields do not fill it exactly.
    """
    at = start
    while at < stop:
        key, at = varint(data, at, stop)
        wire = key & 7
        if wire == BYTES:
            length, at = varint(data, at, stop)
            end = at + length
        elif wire == VARINT:
            end = varint(data, at, stop)[1]
        elif wire in _WIDTHS:
            end = at + _WIDTHS[wire]
        else:
            raise Malformed
        if end > stop:
            raise Malformed
        yield key >> 3, wire, at, end
        at = end
