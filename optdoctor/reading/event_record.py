"""One record of a TensorBoard event file: where its scalars stand.

A record is a length (u64), its checksum (u32), a message `Event` and the checksum of that (u32).
`Event` holds wall_time = 1, step = 2 (left out where it is 0), summary = 5, session_log = 7; a
summary holds values with tag = 1 and either simple_value = 2 (TensorFlow 1, PyTorch) or
tensor = 8 (TensorFlow 2) with metadata = 9, which names the plugin that shows it.
"""

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor.reading.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    Malformed,
    fields,
    signed,
    varint,
)

HEADER, FOOTER = 12, 4
"""Bytes before and after the message of a record."""
STARTED = 1
"""Status of a session log that begins a run, or resumes it: what stands at its step or later is
void."""
MAX_TAG = 1000
"""Bytes of a tag beyond which it is none."""

_WALL_TIME, _STEP, _SUMMARY, _SESSION_LOG = 1, 2, 5, 7
_TAG, _SIMPLE_VALUE, _TENSOR, _METADATA = 1, 2, 8, 9
_DTYPES = {  # {number in the format: numpy's name}
    1: "<f4",
    2: "<f8",
    3: "<i4",
    4: "<u1",
    5: "<i2",
    6: "<i1",
    9: "<i8",
    10: "<u1",  # bool
    14: "<V2",  # bfloat16
    17: "<u2",
    19: "<f2",
    22: "<u4",
    23: "<u8",
}
_FIXED_FIELDS = {5: ("<f4", FIXED32), 6: ("<f8", FIXED64)}  # float_val, double_val
_VARINT_FIELDS = (7, 10, 11, 13, 16, 17)  # int, int64, bool, half, uint32, uint64


class Scalar(NamedTuple):
    """A number in a record."""

    tag: str
    at: int
    """Where its bytes begin; 0 where it is not of fixed width."""
    dtype: str
    """As numpy names it; "" where it is not of fixed width."""
    value: float
    """The number."""

    @property
    def width(self) -> int:
        """Its bytes, 0 where they vary."""
        return int(self.dtype[-1]) if self.dtype else 0


class Record(NamedTuple):
    """What a record says."""

    stop: int
    """Where the next one begins."""
    step: int
    step_at: int
    """Where the step's bytes begin."""
    step_width: int
    """Its bytes, 0 where it was left out."""
    wall_at: int
    """Where the 8 bytes of the clock begin, 0 where it was left out."""
    scalars: tuple[Scalar, ...]
    starts_session: bool
    is_sound: bool
    """Whether its message could be read."""


def length_at(data: bytes, at: int) -> int:
    """Bytes of the whole record at `at`, as it says itself; 12 bytes must be there."""
    return int(struct.unpack_from("<Q", data, at)[0]) + HEADER + FOOTER


def record_at(data: bytes, at: int, plugins: dict[str, str]) -> Record:
    """The record at `at`, which must be there in full.

    `plugins` is {tag: plugin}: only the first value of a tag need say it, so it is kept here.
    """
    stop = at + length_at(data, at)
    step = step_at = step_width = wall_at = 0
    scalars: list[Scalar] = []
    starts_session = False
    try:
        for number, wire, start, end in fields(data, at + HEADER, stop - FOOTER):
            if number == _WALL_TIME and wire == FIXED64:
                wall_at = start
            elif number == _STEP and wire == VARINT:
                step, step_at = signed(varint(data, start, end)[0]), start
                step_width = end - start
            elif number == _SUMMARY and wire == BYTES:
                scalars += _scalars(data, start, end, plugins)
            elif number == _SESSION_LOG and wire == BYTES:
                starts_session = any(
                    inner == 1 and kind == VARINT and data[a] == STARTED
                    for inner, kind, a, _ in fields(data, start, end)
                )
    except Malformed:
        return Record(stop, 0, 0, 0, 0, (), False, False)
    return Record(stop, step, step_at, step_width, wall_at, tuple(scalars), starts_session, True)


def _scalars(data: bytes, start: int, stop: int, plugins: dict[str, str]) -> list[Scalar]:
    found = []
    for number, wire, a, b in fields(data, start, stop):
        if number == 1 and wire == BYTES and (scalar := _value(data, a, b, plugins)):
            found.append(scalar)
    return found


def _value(data: bytes, start: int, stop: int, plugins: dict[str, str]) -> Scalar | None:
    tag, plugin = "", ""
    simple_at, tensor = 0, (0, 0)
    for number, wire, a, b in fields(data, start, stop):
        if number == _TAG and wire == BYTES and b - a <= MAX_TAG:
            tag = data[a:b].decode("utf-8", "replace")
        elif number == _SIMPLE_VALUE and wire == FIXED32:
            simple_at = a
        elif number == _TENSOR and wire == BYTES:
            tensor = a, b
        elif number == _METADATA and wire == BYTES:
            plugin = _plugin(data, a, b)
    if not tag:
        return None
    if simple_at:
        return Scalar(tag, simple_at, "<f4", struct.unpack_from("<f", data, simple_at)[0])
    if plugin:
        plugins.setdefault(tag, plugin)
    plugin = plugins.get(tag, "")
    if tensor[0] and plugin in ("", "scalars"):
        return _of_tensor(data, *tensor, tag, bool(plugin))
    return None


def _plugin(data: bytes, start: int, stop: int) -> str:
    for number, wire, a, b in fields(data, start, stop):
        if number == 1 and wire == BYTES:
            for inner, kind, c, d in fields(data, a, b):
                if inner == 1 and kind == BYTES:
                    return data[c : min(d, c + MAX_TAG)].decode("utf-8", "replace")
    return ""


def _of_tensor(data: bytes, start: int, stop: int, tag: str, is_scalar: bool) -> Scalar | None:
    """The one number of a tensor without dimensions, None for any other tensor."""
    dtype, at, kind, width = "", 0, "", 0
    raw: int | None = None
    for number, wire, a, b in fields(data, start, stop):
        if number == 1 and wire == VARINT:
            dtype = _DTYPES.get(varint(data, a, b)[0], "")
        elif number == 2 and wire == BYTES and any(f[0] in (2, 3) for f in fields(data, a, b)):
            return None
        elif a == b:
            continue
        elif number == 4 and wire == BYTES:
            at, kind, width = a, dtype, b - a
        elif number in _FIXED_FIELDS and wire in (BYTES, _FIXED_FIELDS[number][1]):
            at, kind, width = a, _FIXED_FIELDS[number][0], b - a
        elif number in _VARINT_FIELDS and wire in (BYTES, VARINT):
            raw = varint(data, a, b)[0]
    if not dtype:
        return None
    if raw is not None:
        return Scalar(tag, 0, "", _number(raw, dtype))
    if not at:  # a zero may be left out
        return Scalar(tag, 0, "", 0.0) if is_scalar else None
    if not kind or width != np.dtype(kind).itemsize:
        return None
    return Scalar(tag, at, kind, float(numbers(np.frombuffer(data, np.uint8, width, at), kind)[0]))


def _number(raw: int, dtype: str) -> float:
    """A number from its field of variable width: half floats lie there as their bits."""
    if dtype in ("<f2", "<V2"):
        return float(numbers(np.frombuffer(struct.pack("<H", raw & 0xFFFF), np.uint8), dtype)[0])
    return float(raw if dtype == "<u8" else signed(raw))


def numbers(raw: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """[n] numbers, as narrow as they were written, from their bytes [n * width]."""
    if dtype == "<V2":  # the upper half of a float32
        upper = np.ascontiguousarray(raw).view("<u2").astype(np.uint32) << np.uint32(16)
        return upper.view(np.float32)
    return np.ascontiguousarray(raw).view(dtype)
