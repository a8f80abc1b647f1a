"""The scalar points of TensorBoard event files, and a piece of such a file that gives them."""

from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor.reading.event_record import HEADER, Record, Scalar, length_at, numbers, record_at
from optdoctor.store import IntArray

PADDING = bytes(64)
"""Stands behind the bytes of a piece, so that what is looked at in vain is there."""

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Numbers = NDArray[Any]
"""Of the type in which they were written: a point in full takes twice as much memory."""

_NEVER = 2**62


class _Part(NamedTuple):
    session: int
    """How many sessions had begun."""
    steps: NDArray[Any]
    values: Numbers


class Points:
    """All points of some event files that make one run, by tag."""

    def __init__(self) -> None:
        self._parts: dict[str, list[_Part]] = {}
        self._sessions: list[int] = []  # the step at which each began
        self.plugins: dict[str, str] = {}
        """{tag: plugin}, see `record_at`."""
        self.num_unreadable = 0
        """Records that could not be read, and files that broke off within one."""

    @property
    def sizes(self) -> dict[str, int]:
        """{tag: points}."""
        return {tag: sum(len(p.steps) for p in parts) for tag, parts in self._parts.items()}

    def add(self, tag: str, steps: IntArray, values: Numbers) -> None:
        """Adds points [n] in the order of writing."""
        narrow = steps.astype(np.int32)
        kept: NDArray[Any] = narrow if (narrow == steps).all() else steps
        self._parts.setdefault(tag, []).append(_Part(len(self._sessions), kept, values))

    def begin_session(self, step: int) -> None:
        """Says that the run goes on from `step`: what was written for it or later is void."""
        self._sessions.append(step)

    def take(self, tag: str) -> tuple[IntArray, Floats, int | None]:
        """Steps [n] and values [n] of a tag in the order of writing; they are forgotten here.

        Void ones are left out. The last is the step at which the run went on after the last of
        them, None where there was none.
        """
        parts = self._parts.pop(tag)
        # What is written before several sessions must stand before the first step of each.
        limits = list(accumulate([_NEVER, *reversed(self._sessions)], min))[::-1]
        steps = np.concatenate([part.steps for part in parts], dtype=np.int64)
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            values = np.concatenate([part.values for part in parts], dtype=np.float64)
        lengths = [len(part.steps) for part in parts]
        limit_of = np.repeat([limits[part.session] for part in parts], lengths)
        keep = steps < limit_of
        if keep.all():
            return steps, values, None
        return steps[keep], values[keep], int(limit_of[~keep][-1])


class Piece:
    """Bytes of an event file that begin with a record, and where its points go."""

    def __init__(self, data: bytes, points: Points) -> None:
        self.data, self.points = data + PADDING, points
        self.bytes: Bytes = np.frombuffer(self.data, np.uint8)
        self.limit = len(data)
        """Where the padding begins."""

    def record(self, at: int) -> Record | None:
        """The record at `at`, None where it is not there in full."""
        if at + HEADER > self.limit or at + length_at(self.data, at) > self.limit:
            return None
        return record_at(self.data, at, self.points.plugins)


def column(rows: Bytes, scalar: Scalar, origin: int) -> Numbers:
    """[n] numbers of rows [n, size] that are all like the one in which `scalar` was found.

    `origin` is where that one begins.
    """
    if not scalar.dtype:
        return np.full(len(rows), scalar.value)
    at = scalar.at - origin
    return numbers(np.ascontiguousarray(rows[:, at : at + scalar.width]).reshape(-1), scalar.dtype)


def clear_numbers(mask: Bytes, record: Record, origin: int) -> None:
    """Clears the bytes of its numbers from a mask of bytes that begins at `origin`."""
    for scalar in record.scalars:
        at = scalar.at - origin
        if scalar.dtype:
            mask[at : at + scalar.width] = 0
