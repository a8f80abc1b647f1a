"""The rows of one series while a log is read: the newest exact, older ones in a `StepStore`."""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from optdoctor.store import NO_STEP, IntArray, Series, StepStore

MAX_STEP = 2**53
"""Where floats stop holding every integer: no step of a run."""

_OPEN = 16_384  # rows that came one by one before a block is made of them
_FEW = 1_024  # rows of a block that are added to those that came one by one

Values: TypeAlias = NDArray[np.float64]
AnyColumn: TypeAlias = NDArray[np.float64] | np.ma.MaskedArray[Any, Any]


class Column:
    """Rows of one series, whose steps rise; a row at an earlier step drops those from there on.

    At least the newest `kept` rows are exact, so that a resume among them is cut to the row; one
    that goes back further is cut to the bucket.
    """

    __slots__ = (
        "_blocks",
        "_capacity",
        "_in_blocks",
        "_merged",
        "_steps",
        "_store",
        "_values",
        "kept",
        "last",
    )

    def __init__(self, kept: int, capacity: int = 65_536) -> None:
        self.kept = kept
        self.last = NO_STEP
        """Step of the newest row, `NO_STEP` where there is none."""
        self._capacity = capacity
        self._store: StepStore | None = None  # the oldest rows,
        self._blocks: list[tuple[IntArray, Values]] = []  # later ones as they came,
        self._steps, self._values = array("q"), array("d")  # and the newest
        self._in_blocks = 0
        self._merged = 0  # rows in the newest one; 0 where it is of a branch that was left

    def put(self, step: int, value: float, is_micro: bool = False) -> None:
        """Adds one row. Of rows of one step the last counts, or their mean if they are micro rows.

        A value that is not finite is not hidden by a finite one.
        """
        if step <= self.last:
            if step == self.last and self._can_merge():
                self._merge(value, is_micro)
                return
            self.cut(step)
        self._steps.append(step)
        self._values.append(value)
        self.last = step
        self._merged = 1
        if len(self._steps) > _OPEN:
            self._close()

    def extend(self, steps: IntArray, values: Values) -> None:
        """Adds rows, [T] each, whose steps rise from beyond the last. Keeps the arrays."""
        if len(steps) < _FEW:
            self._steps.frombytes(np.ascontiguousarray(steps).data.cast("B"))
            self._values.frombytes(np.ascontiguousarray(values).data.cast("B"))
        else:
            self._close()
            self._blocks.append((steps, values))
            self._in_blocks += len(steps)
            self._spill()
        self.last = int(steps[-1])
        self._merged = 1

    def cut(self, step: int) -> None:
        """Drops the rows from `step` on."""
        if step > self.last:
            return
        at = bisect_left(self._steps, step)
        del self._steps[at:]
        del self._values[at:]
        while not at and self._blocks:
            steps, values = self._blocks.pop()
            self._in_blocks -= len(steps)
            if at := int(np.searchsorted(steps, step)):
                self._blocks.append((steps[:at], values[:at]))
                self._in_blocks += at
        if not at and self._store is not None:
            self._store.cut(step)
        self.last = self._newest_step()
        self._merged = 0

    @property
    def rows(self) -> int:
        """Rows so far, thinned ones included."""
        older = 0 if self._store is None else self._store.rows
        return older + self._in_blocks + len(self._steps)

    @property
    def first(self) -> int:
        """Step of the oldest row, `NO_STEP` where there is none."""
        if self._store is not None and self._store.rows:
            return self._store.first_step
        if self._blocks:
            return int(self._blocks[0][0][0])
        return self._steps[0] if self._steps else NO_STEP

    def newest(self, rows: int) -> tuple[IntArray, Values]:
        """Steps and values of the newest rows that are exact, at most so many."""
        blocks, missing = [_copied(self._steps, self._values)], rows - len(self._steps)
        for steps, values in reversed(self._blocks):
            if missing > 0:
                blocks.insert(0, (steps[-missing:], values[-missing:]))
                missing -= len(steps)
        steps, values = _joined(blocks)
        return steps[-rows:], values[-rows:]

    def series(self) -> Series:
        """A snapshot."""
        store = StepStore(self._capacity) if self._store is None else self._store.copy()
        if self._in_blocks or self._steps:
            newest = [_copied(self._steps, self._values)] if self._steps else []
            store.extend_by([*self._blocks, *newest])
        return store.series()

    def _newest_step(self) -> int:
        if self._steps:
            return self._steps[-1]
        if self._blocks:
            return int(self._blocks[-1][0][-1])
        return NO_STEP if self._store is None else self._store.last_step

    def _can_merge(self) -> bool:
        """Whether the newest row is one that can be changed; makes it so if it is in a block."""
        if not self._steps and self._blocks:
            steps, values = self._blocks.pop()
            self._steps.append(int(steps[-1]))
            self._values.append(float(values[-1]))
            self._in_blocks -= len(steps)
            if len(steps) > 1:
                self._blocks.append((steps[:-1], values[:-1]))
                self._in_blocks += len(steps) - 1
        return bool(self._steps)

    def _merge(self, value: float, is_micro: bool) -> None:
        self._merged += 1
        newest = self._values[-1]
        if is_micro and self._merged > 1:
            self._values[-1] = _mean(newest, value, self._merged)
        elif self._merged == 1 or math.isfinite(newest) or not math.isfinite(value):
            self._values[-1] = value

    def _close(self) -> None:
        """Makes a block of the rows that came one by one."""
        if self._steps:
            self._blocks.append(_copied(self._steps, self._values))
            self._in_blocks += len(self._steps)
            self._steps, self._values = array("q"), array("d")
            self._spill()

    def _spill(self) -> None:
        """Moves older rows into the store, once they are as many as those that stay exact."""
        if self._in_blocks <= 2 * self.kept:
            return
        if self._store is None:
            self._store = StepStore(self._capacity)
        older: list[tuple[IntArray, Values]] = []
        while self._in_blocks - len(self._blocks[0][0]) >= self.kept:
            older.append(self._blocks.pop(0))
            self._in_blocks -= len(older[-1][0])
        if not older:
            steps, values = self._blocks[0]
            rows = self._in_blocks - self.kept
            older = [(steps[:rows], values[:rows])]
            self._blocks[0] = steps[rows:].copy(), values[rows:].copy()
            self._in_blocks = self.kept
        self._store.extend_by(older)


def _copied(steps: "array[int]", values: "array[float]") -> tuple[IntArray, Values]:
    # An array that a view looks at cannot grow.
    return np.array(steps, np.int64), np.array(values, np.float64)


def _joined(blocks: list[tuple[IntArray, Values]]) -> tuple[IntArray, Values]:
    if len(blocks) == 1:
        return blocks[0]
    steps, values = zip(*blocks, strict=True)
    return np.concatenate(steps), np.concatenate(values)


def _mean(mean: float, value: float, rows: int) -> float:
    """The mean of `rows` rows from that of all but the last, and the last. Equals stay exact."""
    moved = mean + (value / rows - mean / rows)
    return mean + value if math.isnan(moved) else moved  # where one of them is infinite or NaN


def without_repeats(steps: IntArray, values: Values) -> tuple[IntArray, Values]:
    """One row a step, [T] each in and out, as `Column.put` leaves rows whose steps do not fall."""
    is_last = np.ones(len(steps), np.bool_)
    np.not_equal(steps[1:], steps[:-1], out=is_last[:-1])
    if is_last.all():
        return steps, values
    ends = np.flatnonzero(is_last)
    if np.isfinite(values[~is_last]).all():
        return steps.take(ends), values.take(ends)
    starts = np.append(0, ends[:-1] + 1)
    places = np.where(np.isfinite(values), -1, np.arange(len(values)))
    bad = np.maximum.reduceat(places, starts)
    return steps[ends], values[np.where(bad >= 0, bad, ends)]


def plain(column: AnyColumn) -> tuple[Values, NDArray[np.bool_] | None]:
    """Values [T], and which of them are there [T], None for all."""
    values = np.asarray(np.ma.getdata(column), np.float64)
    if not isinstance(column, np.ma.MaskedArray) or not np.any(column.mask):
        return values, None
    return values, ~np.ma.getmaskarray(column)


def _steps(column: AnyColumn | IntArray) -> Values | IntArray:
    """Steps [T], NaN where a row states none; integers stay such if they cannot change any more."""
    if type(column) is np.ndarray and column.dtype == np.int64 and not column.flags.writeable:
        return column
    steps, is_stated = plain(cast(AnyColumn, column))
    return steps if is_stated is None else np.where(is_stated, steps, np.nan)


def within(rows: IntArray, start: int, stop: int) -> IntArray:
    """Those of the rows that lie in a range."""
    return rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]


@dataclass(frozen=True)
class Block:
    """Rows as whole columns. Each row and each column holds at least one value."""

    length: int
    values: Mapping[str, Values]
    """{series: [T]}."""
    places: Mapping[str, IntArray]
    """{series: the rows that hold a value of it}, where not all do."""
    steps: Values | IntArray | None
    """[T]: as logged, NaN where a row states none; None where no row does."""

    @classmethod
    def of(
        cls,
        columns: Mapping[str, AnyColumn],
        names: Mapping[str, str],
        steps: AnyColumn | IntArray | None,
        length: int,
    ) -> "Block":
        """The first `length` rows; `names` are {name in the log: series, or "" to drop it}."""
        values: dict[str, Values] = {}
        present: dict[str, NDArray[np.bool_] | None] = {}
        for raw, column in columns.items():
            if not (name := names.get(raw, "")):
                continue
            fresh, is_there = plain(column[:length])
            if name in values and is_there is not None:  # the later column of a series counts
                fresh = np.where(is_there, fresh, values[name])
                before = present[name]
                is_there = None if before is None else is_there | before
            values[name], present[name] = fresh, is_there
        stated = None if steps is None else _steps(steps[:length])
        masks = [mask for mask in present.values() if mask is not None]
        if len(masks) == len(present):
            is_row = np.logical_or.reduce([np.zeros(length, bool), *masks])
            length = int(is_row.sum())
            if length < len(is_row):
                stated = None if stated is None else stated[is_row]
                values = {name: column[is_row] for name, column in values.items()}
                present = {n: m if m is None else m[is_row] for n, m in present.items()}
        places = {n: np.flatnonzero(m) for n, m in present.items() if m is not None}
        kept = {n: v for n, v in values.items() if n not in places or places[n].size}
        return cls(length, kept, places, stated)

    @cached_property
    def stated(self) -> IntArray | None:
        """The rows whose step is a possible one, None for all."""
        steps = np.full(self.length, np.nan) if self.steps is None else self.steps
        with np.errstate(invalid="ignore"):
            if self.length and steps.min() >= 0 and steps.max() < MAX_STEP:  # false of NaN
                return None
        is_step = (steps >= 0) & (steps < MAX_STEP)
        return None if is_step.all() else np.flatnonzero(is_step)

    @cached_property
    def logged(self) -> IntArray:
        """[T]: the steps as logged; a row that states none stands at the one before, or at -1."""
        assert self.steps is not None
        if self.stated is None:
            return self.steps.astype(np.int64, copy=False)
        newest = np.full(self.length, -1)
        newest[self.stated] = self.stated
        newest = np.maximum.accumulate(newest)
        known = np.where(newest < 0, -1.0, self.steps[newest])
        return known.astype(np.int64)

    @cached_property
    def ends(self) -> IntArray:
        """Rows before which steps fall, or epochs where no row states a step; and the end."""
        if self.steps is None and len(rows := self.counted_epochs):
            epochs = self.values["epoch"][rows]
            return np.append(rows[1:][epochs[1:] < epochs[:-1]], self.length)
        if self.steps is None or not self.length:
            return np.array([self.length])
        return np.append(np.flatnonzero(self.logged[1:] < self.logged[:-1]) + 1, self.length)

    def rows_of(self, name: str, start: int, stop: int) -> IntArray | None:
        """Those of the rows that hold a value of the series, None for all."""
        places = self.places.get(name)
        return None if places is None else within(places, start, stop)

    def holds(self, name: str, start: int, stop: int) -> NDArray[np.bool_]:
        """[rows]: whether each holds a value of the series."""
        if name not in self.values:
            return np.zeros(stop - start, bool)
        rows = self.rows_of(name, start, stop)
        if rows is None:
            return np.ones(stop - start, bool)
        is_there = np.zeros(stop - start, bool)
        is_there[rows - start] = True
        return is_there

    def count(self, name: str, start: int, stop: int) -> int:
        """How many of the rows hold a value of the series."""
        if name not in self.values:
            return 0
        rows = self.rows_of(name, start, stop)
        return stop - start if rows is None else len(rows)

    def first_stated(self, start: int) -> int:
        """The first row from `start` on that states its step, the end where none does."""
        if self.stated is None:
            return start
        later = int(np.searchsorted(self.stated, start))
        return int(self.stated[later]) if later < len(self.stated) else self.length

    @cached_property
    def counted_epochs(self) -> IntArray:
        """The rows that hold a loss and a finite epoch."""
        if "loss" not in self.values or "epoch" not in self.values:
            return np.empty(0, np.int64)
        is_there = self.holds("loss", 0, self.length) & self.holds("epoch", 0, self.length)
        return np.flatnonzero(is_there & np.isfinite(self.values["epoch"]))

    @cached_property
    def losses(self) -> IntArray:
        """The rows that state a step and hold a loss."""
        if "loss" not in self.values:
            return np.empty(0, np.int64)
        losses = self.places.get("loss")
        if losses is None:
            losses = np.arange(self.length)
        if self.stated is None:
            return losses
        is_stated = np.zeros(self.length, bool)
        is_stated[self.stated] = True
        return losses[is_stated[losses]]

    @cached_property
    def epochs(self) -> IntArray:
        """Those of `losses` that hold an epoch."""
        return self.losses[self.holds("epoch", 0, self.length)[self.losses]]

    def last_epoch(self, start: int, stop: int) -> float | None:
        """The epoch of the last of `epochs` in a range, None where there is none."""
        rows = within(self.losses, start, stop)
        if not rows.size or "epoch" not in self.values:
            return None
        if not self.count("epoch", last := int(rows[-1]), last + 1):
            rows = within(self.epochs, start, stop)
            if not rows.size:
                return None
        return float(self.values["epoch"][rows[-1]])

    def one_by_one(self, start: int, stop: int) -> Iterator[tuple[dict[str, float], float | None]]:
        """Values and step of each of the rows."""
        found: list[dict[str, float]] = [{} for _ in range(start, stop)]
        for name, values in self.values.items():
            rows = self.rows_of(name, start, stop)
            for row in range(start, stop) if rows is None else rows.tolist():
                found[row - start][name] = float(values[row])
        for row, known in enumerate(found, start):
            yield known, None if self.steps is None else float(self.steps[row])
