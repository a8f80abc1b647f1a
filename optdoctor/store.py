"""Bounded memory of one channel: nothing that matters is lost however long the run.

One NaN or one outlier among a million rows is there at the end, with its step. What is kept is a
function of the order of the rows alone, so that a run recorded live and read again is the same.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64] | NDArray[np.float32]

NO_STEP = -1
"""Stands where no step is meant: nothing bad, nothing finite."""

_BLOCK = 4096  # rows taken one by one wait until a block of them is worth an array operation


@dataclass(frozen=True, slots=True)
class Series:
    """The kept rows of one channel. Arrays are read-only.

    On the step axis each of T rows is a bucket of `count` recorded ones, and the fields below
    `values` are [T]. On the tensor axis they are [P]: a ledger over the whole run, thinned rows
    included.
    """

    steps: IntArray  # [T], the last of its bucket
    starts: IntArray  # [T], the first of its bucket
    values: FloatArray  # [T] float64, last of its bucket; or [T, P] float32, NaN = not measured
    low: FloatArray  # smallest finite value, NaN where there is none
    high: FloatArray  # largest finite value, NaN where there is none
    high_step: IntArray  # the step of `high`
    bad: IntArray  # rows that are NaN or infinite
    first_bad: IntArray  # the step of the first of them
    last_bad: IntArray  # the step of the last of them
    count: IntArray  # recorded rows

    def __post_init__(self) -> None:
        for name in self.__slots__:
            getattr(self, name).setflags(write=False)

    @property
    def rows(self) -> int:
        """Recorded rows, thinned ones included."""
        return int(self.count.sum()) if self.values.ndim == 1 else int(self.count.max(initial=0))

    @property
    def num_finite(self) -> int:
        """Recorded rows with a finite value (step axis)."""
        return self.rows - int(self.bad.sum())


class StepStore:
    """Rows of one step channel: all of them up to `capacity`, then buckets of doubling width."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = max(capacity - capacity % 2, 2)
        self._width = 1
        self._buckets = _Buckets.empty()
        self._waiting: list[tuple[int, float]] = []
        self.last_step = NO_STEP
        """Step of the newest row."""

    def append(self, step: int, value: float) -> None:
        """Adds one row."""
        self._waiting.append((step, value))
        self.last_step = step
        if len(self._waiting) == _BLOCK:
            self._drain()

    def extend(self, steps: IntArray, values: NDArray[np.float64]) -> None:
        """Adds rows in order; the same rows in other blocks leave the same store."""
        self._drain()
        self._take(steps, values)
        self.last_step = int(steps[-1])

    def series(self) -> Series:
        """A snapshot."""
        self._drain()
        return self._buckets.series()

    def _drain(self) -> None:
        if self._waiting:
            steps, values = zip(*self._waiting, strict=True)
            self._take(np.array(steps, np.int64), np.array(values, np.float64))
            self._waiting.clear()

    def _take(self, steps: IntArray, values: NDArray[np.float64]) -> None:
        start = 0
        while start < len(steps):
            buckets = self._buckets
            room = self._width - int(buckets.count[-1]) if buckets.count.size else 0
            if room == 0 and buckets.count.size == self._capacity:
                self._buckets = buckets.merged(2)
                self._width *= 2
                continue
            free = (self._capacity - buckets.count.size) * self._width
            stop = start + (room or free)
            fresh = _Buckets.of_rows(steps[start:stop], values[start:stop])
            if room:
                head = buckets.part(slice(None, -1))
                self._buckets = head.followed_by(
                    buckets.part(slice(-1, None)).followed_by(fresh).merged(1 + room)
                )
            else:
                self._buckets = buckets.followed_by(fresh.merged(self._width))
            start = stop


class TensorStore:
    """Rows of one tensor channel: a history of doubling stride, the newest rows, a ledger."""

    def __init__(self, width: int, capacity: int = 448, recent: int = 64) -> None:
        self._capacity, self._recent = max(capacity, 2), max(recent, 1)
        self._stride, self._seen = 1, 0
        self._history: list[tuple[int, NDArray[np.float32]]] = []
        self._newest: list[tuple[int, NDArray[np.float32]]] = []
        self._high = np.full(width, np.nan, np.float32)
        self._low = np.full(width, np.nan, np.float32)
        self._high_step = np.full(width, NO_STEP, np.int64)
        self._first_bad = np.full(width, NO_STEP, np.int64)
        self._last_bad = np.full(width, NO_STEP, np.int64)
        self._bad = np.zeros(width, np.int64)

    @property
    def last_step(self) -> int:
        """Step of the newest row, `NO_STEP` before the first."""
        return self._newest[-1][0] if self._newest else NO_STEP

    def widen(self, width: int) -> None:
        """Makes room for tensors that earlier rows did not have."""
        more = width - len(self._bad)
        if more <= 0:
            return
        nothing = np.full(more, np.nan, np.float32)
        nowhere = np.full(more, NO_STEP, np.int64)
        self._low, self._high = np.append(self._low, nothing), np.append(self._high, nothing)
        self._high_step = np.append(self._high_step, nowhere)
        self._first_bad = np.append(self._first_bad, nowhere)
        self._last_bad = np.append(self._last_bad, nowhere)
        self._bad = np.append(self._bad, np.zeros(more, np.int64))
        self._history = [(step, np.append(row, nothing)) for step, row in self._history]
        self._newest = [(step, np.append(row, nothing)) for step, row in self._newest]

    def append(self, step: int, row: NDArray[np.float32]) -> None:
        """Adds one sampled row [P]."""
        if self._seen % self._stride == 0:
            if len(self._history) == self._capacity:
                self._history = self._history[::2]
                self._stride *= 2
            if self._seen % self._stride == 0:
                self._history.append((step, row))
        self._seen += 1
        self._newest.append((step, row))
        if len(self._newest) > self._recent:
            del self._newest[0]
        finite = np.isfinite(row)
        higher = finite & ~(row <= self._high)
        self._high[higher], self._high_step[higher] = row[higher], step
        lower = finite & ~(row >= self._low)
        self._low[lower] = row[lower]
        if not finite.all():
            self._first_bad[~finite & (self._bad == 0)] = step
            self._last_bad[~finite] = step
            self._bad += ~finite

    def series(self) -> Series:
        """A snapshot."""
        rows = dict(self._history) | dict(self._newest)
        steps = sorted(rows)
        width = len(self._bad)
        return Series(
            steps=np.array(steps, np.int64),
            starts=np.array(steps, np.int64),
            values=np.array([rows[s] for s in steps], np.float32).reshape(len(steps), width),
            low=self._low.copy(),
            high=self._high.copy(),
            high_step=self._high_step.copy(),
            bad=self._bad.copy(),
            first_bad=self._first_bad.copy(),
            last_bad=self._last_bad.copy(),
            count=np.full(width, self._seen, np.int64),
        )


@dataclass(slots=True)
class _Buckets:
    """The columns of `Series` on the step axis, growing."""

    steps: IntArray
    starts: IntArray
    values: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    high_step: IntArray
    bad: IntArray
    first_bad: IntArray
    last_bad: IntArray
    count: IntArray

    @classmethod
    def empty(cls) -> "_Buckets":
        return cls.of_rows(np.empty(0, np.int64), np.empty(0))

    @classmethod
    def of_rows(cls, steps: IntArray, values: NDArray[np.float64]) -> "_Buckets":
        steps, values = np.asarray(steps, np.int64), np.asarray(values, np.float64)
        finite = np.isfinite(values)
        extreme = np.where(finite, values, np.nan)
        nowhere = np.full(len(steps), NO_STEP, np.int64)
        return cls(
            steps,
            steps,
            values,
            extreme,
            extreme,
            np.where(finite, steps, nowhere),
            (~finite).astype(np.int64),
            np.where(finite, nowhere, steps),
            np.where(finite, nowhere, steps),
            np.ones(len(steps), np.int64),
        )

    def columns(self) -> list[NDArray[np.generic]]:
        return [getattr(self, name) for name in self.__slots__]

    def part(self, rows: slice) -> "_Buckets":
        return _Buckets(*(column[rows] for column in self.columns()))  # type: ignore[arg-type]

    def followed_by(self, other: "_Buckets") -> "_Buckets":
        if not self.steps.size:
            return other
        pairs = zip(self.columns(), other.columns(), strict=True)
        return _Buckets(*(np.concatenate(pair) for pair in pairs))

    def merged(self, width: int) -> "_Buckets":
        """Every `width` neighbours as one; the last may be of fewer."""
        if width == 1 or not self.steps.size:
            return self
        starts = np.arange(0, self.steps.size, width)
        ends = np.append(starts[1:], self.steps.size) - 1
        high = np.fmax.reduceat(self.high, starts)
        of_row = np.repeat(high, np.diff(np.append(starts, self.steps.size)))
        never = np.iinfo(np.int64).max
        # The first row that reaches the top: equal tops must not depend on how rows came in blocks.
        high_step = np.minimum.reduceat(
            np.where(self.high == of_row, self.high_step, never), starts
        )
        first_bad = np.minimum.reduceat(np.where(self.bad > 0, self.first_bad, never), starts)
        return _Buckets(
            self.steps[ends],
            self.starts[starts],
            self.values[ends],
            np.fmin.reduceat(self.low, starts),
            high,
            np.where(high_step == never, NO_STEP, high_step),
            np.add.reduceat(self.bad, starts),
            np.where(first_bad == never, NO_STEP, first_bad),
            np.maximum.reduceat(self.last_bad, starts),
            np.add.reduceat(self.count, starts),
        )

    def series(self) -> Series:
        return Series(*(column.copy() for column in self.columns()))  # type: ignore[arg-type]
