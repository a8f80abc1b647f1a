"""Bounded memory of one channel: nothing that matters is lost however long the run.

One NaN or one outlier among a million rows is there at the end, with its step. What is kept is a
function of the order of the rows alone, so that a run recorded live and read again is the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64] | NDArray[np.float32]
Rows = tuple[IntArray, NDArray[np.float64]]
"""Steps and values, [T] each."""

NO_STEP = -1
"""Stands where no step is meant: nothing bad, nothing finite."""

_BLOCK = 4096  # rows taken one by one wait until a block of them is worth an array operation
_CACHED = 65_536  # rows that stay in the cache while they are looked at several times
_NARROW = 64  # rows of a bucket up to which it is looked at place by place


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

    def moved(self, by: int) -> "Series":
        """The same rows, `by` steps later."""
        if not by:
            return self
        places = {name: getattr(self, name) for name in _PLACES}
        return replace(
            self, **{n: np.where(at == NO_STEP, at, at + by) for n, at in places.items()}
        )

    def thinned(self, rows: int) -> "Series":
        """At most `rows` buckets of neighbours, which keep extremes and what is not finite.

        Step axis only; a series of tensors is returned as it is.
        """
        width = -(-len(self.steps) // max(rows, 1))
        if self.values.ndim != 1 or width <= 1:
            return self
        columns = (getattr(self, name) for name in _Buckets.__slots__)
        return _Buckets(*columns).merged(width).series()


_PLACES = ("steps", "starts", "high_step", "first_bad", "last_bad")


class StepStore:
    """Rows of one step channel: all of them up to `capacity`, then buckets of doubling width."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = max(capacity - capacity % 2, 2)
        self._width = 1
        self._parts: list[_Buckets] = []  # in order; all buckets but the very last are full
        self._waiting: list[tuple[int, float]] = []
        self._rows = 0  # those waiting left out
        self.last_step = NO_STEP
        """Step of the newest row."""

    @property
    def rows(self) -> int:
        """Recorded rows, thinned ones included."""
        return self._rows + len(self._waiting)

    @property
    def first_step(self) -> int:
        """Step of the oldest row, `NO_STEP` before the first."""
        self._drain()
        return int(self._parts[0].starts[0]) if self._rows else NO_STEP

    def append(self, step: int, value: float) -> None:
        """Adds one row."""
        self._waiting.append((step, value))
        self.last_step = step
        if len(self._waiting) == _BLOCK:
            self._drain()

    def extend(self, steps: IntArray, values: NDArray[np.float64]) -> None:
        """Adds rows in order; the same rows in other blocks leave the same store."""
        self.extend_by([(steps, values)])

    def extend_by(self, blocks: Sequence[Rows]) -> None:
        """The same of blocks that follow one another, none of them empty. Keeps the arrays."""
        self._drain()
        self._take(blocks)
        self.last_step = int(blocks[-1][0][-1])

    def cut(self, step: int) -> None:
        """Drops the rows from `step` on; of a bucket that lies astride it, those before too."""
        buckets = self._join()
        kept = buckets.part(slice(0, int(np.searchsorted(buckets.steps, step))))
        self._parts = [kept] if kept.steps.size else []
        self._rows = int(kept.count.sum())
        self.last_step = int(kept.steps[-1]) if kept.steps.size else NO_STEP

    def copy(self) -> "StepStore":
        """Another store of the same rows; it takes further ones by itself."""
        self._drain()
        other = StepStore(self._capacity)
        other._width, other._parts, other._rows = self._width, [*self._parts], self._rows
        other.last_step = self.last_step
        return other

    def series(self) -> Series:
        """A snapshot."""
        return self._join().series()

    def _drain(self) -> None:
        if self._waiting:
            steps, values = zip(*self._waiting, strict=True)
            self._waiting.clear()
            self._take([(np.array(steps, np.int64), np.array(values, np.float64))])

    def _take(self, blocks: Sequence[Rows]) -> None:
        total, width = self._rows + sum(len(steps) for steps, _ in blocks), self._width
        while -(-total // width) > self._capacity:
            width *= 2
        if width > self._width:
            self._parts = [_joined(self._parts).merged(width // self._width)]
            self._width = width
        room = -self._rows % width
        for steps, values in _aligned(blocks, room, width):
            if room:  # the last bucket is not full
                last, room = self._parts.pop(), 0
                fresh = _Buckets.of_rows(steps, values)
                filled = last.part(slice(-1, None)).followed_by(fresh).merged(1 + len(steps))
                self._parts += [last.part(slice(None, -1)), filled]
            else:
                self._parts.append(_Buckets.of_buckets(steps, values, width))
        self._parts = [part for part in self._parts if part.steps.size]
        self._rows = total
        # Parts of falling sizes: many small blocks cost little, and so does joining them.
        while len(self._parts) > 1 and self._parts[-2].steps.size <= self._parts[-1].steps.size:
            self._parts[-2:] = [_joined(self._parts[-2:])]

    def _join(self) -> "_Buckets":
        self._drain()
        joined = _joined(self._parts)
        self._parts = [joined] if joined.steps.size else []
        return joined


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
    """The columns of `Series` on the step axis. Arrays are shared and never written to."""

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
    def of_rows(cls, steps: IntArray, values: NDArray[np.float64]) -> "_Buckets":
        steps, values = np.asarray(steps, np.int64), np.asarray(values, np.float64)
        finite = np.isfinite(values)
        extreme = np.where(finite, values, np.nan) + 0.0  # -0.0 and 0.0 tie: one of them only
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

    @classmethod
    def of_buckets(cls, steps: IntArray, values: NDArray[np.float64], width: int) -> "_Buckets":
        """Rows in buckets of `width`, the last perhaps of fewer: `of_rows` merged, but faster."""
        full = len(steps) // width
        if width == 1 or full * width < len(steps):
            return cls.of_rows(steps, values).merged(width)
        table = np.asarray(values, np.float64).reshape(full, width)
        low, high, place = _extremes(table)
        if not (np.isfinite(low) & np.isfinite(high)).all():  # of NaN, both are NaN
            return cls.of_rows(steps, values).merged(width)
        nowhere = np.full(full, NO_STEP, np.int64)
        return cls(  # copies, for a view would keep all the rows
            np.asarray(steps[width - 1 :: width], np.int64).copy(),
            np.asarray(steps[::width], np.int64).copy(),
            table[:, -1].copy(),
            low + 0.0,
            high + 0.0,
            np.asarray(steps[place + np.arange(0, len(steps), width)], np.int64),
            np.zeros(full, np.int64),
            nowhere,
            nowhere,
            np.full(full, width, np.int64),
        )

    def columns(self) -> list[NDArray[np.generic]]:
        return [getattr(self, name) for name in self.__slots__]

    def part(self, rows: slice) -> "_Buckets":
        return _Buckets(*(column[rows] for column in self.columns()))  # type: ignore[arg-type]

    def followed_by(self, other: "_Buckets") -> "_Buckets":
        return _joined([self, other])

    def merged(self, width: int) -> "_Buckets":
        """Every `width` neighbours as one; the last may be of fewer."""
        if width == 1 or not self.steps.size:
            return self
        whole = self.steps.size - self.steps.size % width
        if whole and not self.bad[:whole].any():
            merged = self.part(slice(whole))._merged_finite(width)
            return merged.followed_by(self.part(slice(whole, None)).merged(width))
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

    def _merged_finite(self, width: int) -> "_Buckets":
        """The same of whole groups in which every value is finite."""
        starts = np.arange(0, self.steps.size, width)
        _, high, place = _extremes(self.high.reshape(-1, width))
        low = np.ascontiguousarray(self.low.reshape(-1, width).T).min(axis=0)
        nowhere = np.full(starts.size, NO_STEP, np.int64)
        return _Buckets(
            self.steps[width - 1 :: width].copy(),
            self.starts[::width].copy(),
            self.values[width - 1 :: width].copy(),
            low,
            high,
            self.high_step[place + starts],
            np.zeros(starts.size, np.int64),
            nowhere,
            nowhere,
            np.ascontiguousarray(self.count.reshape(-1, width).T).sum(axis=0),
        )

    def series(self) -> Series:
        return Series(*(column.view() for column in self.columns()))  # type: ignore[arg-type]


def _extremes(
    table: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Least, greatest, and the first place of the greatest, [T] each, of rows [T, width]."""
    width = table.shape[1]
    with np.errstate(invalid="ignore"):
        if width > _NARROW:
            return table.min(axis=1), table.max(axis=1), table.argmax(axis=1)
        by_place = np.ascontiguousarray(table.T)  # along short rows, numpy is slow
        low, high = by_place.min(axis=0), by_place.max(axis=0)
    ranks = np.arange(width, 0, -1, dtype=np.uint8)[:, None]
    return low, high, width - ((by_place == high) * ranks).max(axis=0).astype(np.int64)


def _aligned(blocks: Sequence[Rows], room: int, width: int) -> Iterator[Rows]:
    """The rows anew: `room` of them, then whole buckets, as many as the cache holds, and the rest.

    Rows are copied only where a bucket lies in several blocks.
    """
    most = max(_CACHED // width, 1) * width
    held: list[Rows] = []
    missing = room
    for steps, values in blocks:
        start, stop = 0, len(steps)
        if missing:
            start = min(missing, stop)
            held.append((steps[:start], values[:start]))
            missing -= start
            if not missing:
                yield _rows_of(held)
                held = []
        whole = stop - (stop - start) % width
        for at in range(start, whole, most):
            end = min(at + most, whole)
            yield steps[at:end], values[at:end]
        if whole < stop:
            held = [(steps[whole:], values[whole:])]
            missing = width - (stop - whole)
    if held:
        yield _rows_of(held)


def _rows_of(blocks: list[Rows]) -> Rows:
    if len(blocks) == 1:
        return blocks[0]
    steps, values = zip(*blocks, strict=True)
    return np.concatenate(steps), np.concatenate(values)


def _joined(parts: list[_Buckets]) -> _Buckets:
    parts = [part for part in parts if part.steps.size]
    if not parts:
        return _Buckets.of_rows(np.empty(0, np.int64), np.empty(0))
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part.columns() for part in parts), strict=True)
    return _Buckets(*(np.concatenate(column) for column in columns))
