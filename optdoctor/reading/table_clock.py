"""Where the rows of a table stand: at the step they name, at their number, or at their epoch."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from optdoctor.reading.log import Log
from optdoctor.reading.table_rows import Column

_MAX_RETURNS = 100  # of the epoch, beyond which it numbers nothing
_MAX_EPOCHS = 1_000_000
_MIN_ROWS = 3  # between two headers, below which each write brings its own, as pandas does

Columns = dict[str, Column]


class TableClock:
    """Gives rows to a log at their place.

    Rows without a step are counted. Where their epoch goes back, training went on from an earlier
    epoch, and the count goes back as well; where it goes back to the first, another run begins.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._counted = 0
        self._since_header = 0
        self._is_stated = False  # whether steps differ from what the log would count
        self._returns = 0
        self._newest = -np.inf  # epoch
        self._before: dict[float, int] | None = {}  # {epoch: rows counted before it}; None: no use

    def add(
        self,
        columns: Columns,
        steps: NDArray[np.float64] | None,
        losses: Iterable[str],
        epoch: str | None,
        after_header: bool,
    ) -> None:
        """Adds rows, [T] a column. `steps` are those that the rows name, NaN where they do not.

        `losses` and `epoch` are names of columns; without losses each row counts. `after_header`
        says that a header came back just before the first of these rows.
        """
        if not columns or not (length := len(next(iter(columns.values())))):
            return
        where = self._log.last_step + 1
        goes_on = True
        if steps is None:
            goes_on = self._count(columns, length, list(losses), epoch)
        else:
            goes_on = not steps[0] < where
            self._log.rows(columns, steps)
        if after_header and goes_on and self._since_header >= _MIN_ROWS:
            self._log.event(where, "resume", "the header of the table comes back")
        self._since_header = length if after_header else self._since_header + length

    def _count(self, columns: Columns, length: int, losses: list[str], epoch: str | None) -> bool:
        """Adds rows that name no step; False where their epoch goes back."""
        is_counted = _any_present([columns[name] for name in losses if name in columns], length)
        if not losses:
            is_counted[:] = True
            self._is_stated = True
        start, goes_on = 0, True
        for stop, goes_back_to in self._stretches(columns.get(epoch or ""), is_counted, length):
            stretch = {name: column[start:stop] for name, column in columns.items()}
            self._count_stretch(stretch, is_counted[start:stop])
            if goes_back_to is not None:
                goes_on = False
                self._go_back(goes_back_to, keep_stated=not losses)
            start = stop
        return goes_on

    def _count_stretch(self, columns: Columns, is_counted: NDArray[np.bool_]) -> None:
        if not len(is_counted):
            return
        steps = None
        if self._is_stated:
            steps = np.maximum(self._counted + np.cumsum(is_counted), 1).astype(np.float64)
        self._counted += int(is_counted.sum())
        self._log.rows(columns, steps)

    def _stretches(
        self, epochs: Column | None, is_counted: NDArray[np.bool_], length: int
    ) -> Iterable[tuple[int, float | None]]:
        """(end of rows whose epoch does not go back, the epoch to which it then does)."""
        if epochs is None or self._before is None:
            yield length, None
            return
        at = np.flatnonzero(~np.ma.getmaskarray(epochs) & np.isfinite(np.ma.getdata(epochs)))
        known = np.ma.getdata(epochs)[at]
        if (known != np.floor(known)).any() or len(self._before) > _MAX_EPOCHS:
            self._before = None
            yield length, None
            return
        cuts = np.flatnonzero(np.diff(known, prepend=self._newest) < 0)
        before: NDArray[np.int64] = np.cumsum(is_counted) - is_counted
        begun = start = 0
        for cut in (*cuts.tolist(), len(known)):
            counted = self._counted - int(before[start])
            for epoch, first in zip(*np.unique(known[begun:cut], return_index=True), strict=True):
                self._before.setdefault(float(epoch), counted + int(before[at[begun + first]]))
            if cut > begun:
                self._newest = float(known[cut - 1])
            if cut == len(known):
                yield length, None
                return
            begun, start = cut, int(at[cut])
            yield start, float(known[cut])
            if self._before is None:
                yield length, None
                return

    def _go_back(self, epoch: float, keep_stated: bool) -> None:
        self._newest = epoch
        if self._before is None:
            return
        self._returns += 1
        if self._returns > _MAX_RETURNS:
            self._before = None
            return
        left = [rows for known, rows in self._before.items() if known >= epoch]
        self._counted = min(left, default=self._counted)
        self._before = {known: rows for known, rows in self._before.items() if known < epoch}
        if self._before:
            self._is_stated = True
            return
        self._log.begin()
        self._counted = 0
        self._is_stated = keep_stated


def _any_present(columns: Iterable[Column], length: int) -> NDArray[np.bool_]:
    """[T]: whether any of these columns holds a number."""
    present = np.zeros(length, np.bool_)
    for column in columns:
        mask = np.ma.getmask(column)
        present |= True if mask is np.ma.nomask else ~mask
    return present


def present_rows(columns: Mapping[str, Column]) -> NDArray[np.bool_] | None:
    """[T]: which rows hold any number, None where all do."""
    masks = [np.ma.getmask(column) for column in columns.values()]
    if any(mask is np.ma.nomask for mask in masks):
        return None
    is_empty = np.logical_and.reduce(masks)
    return ~is_empty if is_empty.any() else None
