"""Collects the rows of a log the same way for all formats: names, numbers, steps, repetitions."""

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from optdoctor.channels import Axis, channel, is_channel
from optdoctor.knowledge.log_names import LOSS_NAMES, REWARD_NAMES
from optdoctor.reading.columns import MAX_STEP as MAX_STEP
from optdoctor.reading.columns import AnyColumn, Block, Column, Values, within, without_repeats
from optdoctor.store import IntArray
from optdoctor.trace import Event, EventKind, Fact, Reading, Trace

MAX_METRICS = 200
"""Names outside the vocabulary that are kept as metrics."""
MAX_NAME = 100
"""Characters of a name beyond which it is none."""
MAX_NAMES = 20_000
"""Names beyond which a new one is dropped unless the format knows it."""
MAX_DECIMALS = 6
"""Decimals beyond which a number was written in full and not rounded."""
MAX_EVENTS = 10_000
"""Events of one log that are kept: one whose steps go back at every other row tells no more."""
_EXACT = 2_000_000, 16_384, 524_288
"""Newest rows that stay exact: of all series together, of one at least, of one at most."""
_WIDE = 16, 8_192
"""Series kept in full, and the buckets of the older rows of each further one."""
_TELLING = 65_536  # newest rows from which facts are told
_AT_LEAST = "the scale was at its least: the scaler ended the run"
_MAX_OVERFLOWS = 10_000  # that wait for the next row
_FEW = 32  # rows that are added sooner one by one than as columns
_SURE = 3  # rows before a fall of the epoch and rows behind it, without which it is none
_SPELLED_BY_C = re.compile(
    r"(?P<sign>[-+]?)(?:nan(?:xxx|\(\w*\))|1\.#(?:(?P<infinite>inf)|ind|[qs]nan)0*(?:e\+0+)?)", re.I
)
"""NaN and infinity as C prints them on Windows: -nan(ind), 1.#QNAN, -1.#IND, 1.#INF00; and NaN as
PaddleOCR does: nanxxx."""


def number(value: object) -> float | None:
    """The number that a log means by `value`, None where it means none."""
    if type(value) is float:
        return value
    if isinstance(value, str):
        return _spelled(value) if value and len(value) < 64 and "_" not in value else None
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _spelled(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        found = _SPELLED_BY_C.fullmatch(text.strip())
    return float(f"{found['sign']}{found['infinite'] or 'nan'}") if found else None


@dataclass
class Log:
    """Collects the rows of one log, in bounded memory.

    Steps that go back are a resume: the rows from there on belong to a branch that was left, in
    every series. Steps that go back to the first one or before it are another run: all rows so
    far are left out. Steps that go back while the epoch rises are counted within the epoch, and
    are added up. Where rows are counted, an epoch that falls tells of another run or of a resume
    (`_see_fall`). Rows of one step, as of several ranks or two loggers, are one row: the last of
    them, but a value that is not finite is not hidden by a finite one.
    """

    aliases: Mapping[str, str] = field(default_factory=dict)
    """{name in the log: channel}; "" drops it. Where a log has several names of one channel, the
    one listed first is it and the others become metrics."""
    facts: dict[str, Fact] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    lines_skipped: int = 0
    has_micro_rows: bool = False
    """Whether rows of one step are its micro-batches: their mean counts, not the last of them."""
    _columns: dict[str, Column] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)  # {name in the log: its series or ""}
    _owners: dict[str, str] = field(default_factory=dict)  # {channel: the name that fills it}
    _spelled: dict[str, str] = field(default_factory=dict)  # {name as it stands there: channel}
    _num_metrics: int = 0
    _skipped: list[tuple[int, str]] = field(default_factory=list)
    _counted: int = 0
    _counted_evaluations: int = 0
    _saw_step: bool = False
    _last_step: int = 0
    _in_epoch: tuple[int, float] = (-1, 0.0)  # newest loss row: step as logged, epoch
    _offset: int = 0
    _epochs: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=10_000))
    """(epoch, offset that held up to it) of each rise of the offset."""
    _epoch_begun: float | None = None  # of the first counted loss row,
    _newest_epochs: tuple[float, ...] = ()  # of the newest, at most `_SURE`
    _fall: tuple[int, float, int] | None = None
    """(row at which the epoch fell, the epoch before it, rows since), while in doubt."""
    _renewed: set[str] = field(default_factory=set)
    """Series whose steps fell since the newest loss row: of the new branch already."""
    _overflows: list[float] = field(default_factory=list)  # scales, until the next row is placed
    _overflows_seen: set[tuple[float | None, float]] = field(default_factory=set)
    _overflow_step: int = 0  # after it the next of them stand
    _newest_overflow: tuple[float | None, float] | None = None  # scale before and after it
    _scale_ended_run: bool = False
    _begun: bool = False  # a run of which no row has come yet
    _saw_step_before: bool = False  # in the run before it, which stays until then
    _left_runs: int = 0
    _left_rows: dict[str, int] = field(default_factory=dict)  # {"loss" or "evaluation": rows}
    _left_bad: dict[str, int] = field(default_factory=dict)  # those of them that are not finite
    _may_count_from_zero: bool = False
    _from_zero_likely: bool = False

    def row(self, values: Mapping[str, Any], step: object = None) -> bool:
        """Adds one row; False (and counted as skipped) if it holds no number that is known.

        Without `step` the row belongs to the last one logged; where none ever was, to the number
        of loss rows so far, itself included.
        """
        names, has_learned = self._names, False
        known: dict[str, float] = {}
        for raw, value in values.items():
            parsed = value if type(value) is float else number(value)
            if parsed is None:
                continue
            name = names.get(raw)
            if name is None and not has_learned:
                self._learn(raw for raw, value in values.items() if number(value) is not None)
                name, has_learned = names.get(raw), True
            if name:
                known[name] = parsed
        if not known:
            self.skip()
            return False
        self._add(known, None if step is None else number(step))
        return True

    def rows(
        self, columns: Mapping[str, AnyColumn], steps: AnyColumn | IntArray | None = None
    ) -> int:
        """Adds rows at once, [T] a column, as `row` would one by one; returns how many counted.

        A masked element is a value that its row does not have; NaN is one that it has. Arrays that
        are read-only are kept, others are copied.
        """
        sized = columns.values() if steps is None else [*columns.values(), steps]
        length = min(map(len, sized), default=0) if columns else 0
        self._learn_columns(columns, length)
        block = Block.of(columns, self._names, steps, length)
        self.lines_skipped += length - block.length
        if self._begun and block.length:
            self._leave_out()
        start = 0
        for stop in block.ends.tolist():
            while start < stop:
                if stop - start >= _FEW and self._add_block(block, start, stop):
                    break
                few = min(stop, start + _FEW)
                for known, at in block.one_by_one(start, few):
                    self._add(known, at)
                start = few
            start = stop
        return block.length

    def at(self, step: object) -> None:
        """Says at which step the rows that come without one stand from now on."""
        if (at := number(step)) is not None and 0 <= at < MAX_STEP:
            self._saw_step = True
            self._last_step = int(at) + self._offset
            self._see_later(self._last_step)

    @property
    def last_step(self) -> int:
        """The step of the newest row, 0 before the first."""
        return self._last_step if self._saw_step else self._counted

    def drop(self, name: str) -> None:
        """Says that the log has this name and that nothing becomes of it."""
        if len(self._names) < MAX_NAMES:
            self._names.setdefault(name, "")

    def spell(self, name: str, channel: str) -> None:
        """Says how the log spells a name that the reader gives as its channel; "" drops it."""
        if len(self._spelled) < MAX_NAMES and len(name) <= MAX_NAME:
            self._spelled.setdefault(name, channel)

    def begin(self) -> None:
        """Says that another run begins: the rows so far are left out once it has a row."""
        if not self.has_rows:
            return
        self._settle()
        if not self._begun:
            self._begun, self._saw_step_before = True, self._saw_step
        self._counted = self._counted_evaluations = self._last_step = 0
        self._offset = self._overflow_step = 0
        self._in_epoch = (-1, 0.0)
        self._epochs.clear()
        self._renewed.clear()
        self._epoch_begun, self._newest_epochs, self._fall = None, (), None
        self._saw_step = False

    def overflow(self, old: float | None, new: float) -> bool:
        """Adds one skipped update, with the gradient scale before and after it.

        Skipped updates stand at the steps after the newest row, one by one, but not beyond the
        row that comes next. The same scales again before that row are the same update, told by
        another process.
        """
        if (old, new) in self._overflows_seen:
            return True
        if self._begun:
            self._leave_out()
        if len(self._overflows) == _MAX_OVERFLOWS:
            self._settle()
        if not self._overflows:
            self._overflow_step = max(self._overflow_step, self.last_step)
        self._overflows.append(new if old is None else old)
        self._overflows_seen.add((old, new))
        self._newest_overflow, self._scale_ended_run = (old, new), False
        return True

    def scale_at_least(self, least: float | None = None) -> bool:
        """Adds the overflow at the least scale with which a scaler ends the run; False where
        nothing tells that scale."""
        if least is None and self._newest_overflow is not None:
            least = self._newest_overflow[1]
        if least is None:
            return False
        self.overflow(least, least)
        self._scale_ended_run = True
        return True

    def skip(self, lines: int = 1, first: str = "", at: int = 0) -> None:
        """Counts lines that held no row; `first` is the text of the first, `at` its number."""
        self.lines_skipped += lines
        if first and len(self._skipped) < 5:
            self._skipped.append((at, first[:200]))

    def event(self, step: int, kind: EventKind, text: str = "") -> None:
        """Adds an event."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(Event(step, kind, text))

    @property
    def has_rows(self) -> bool:
        """Whether any row was read."""
        return bool(self._columns or self._overflows)

    @property
    def _states_steps(self) -> bool:
        return self._saw_step_before if self._begun else self._saw_step

    @property
    def loss_interval(self) -> int | None:
        """Usual distance between two of the newest loss rows, in steps."""
        loss = self._columns.get("loss")
        return None if loss is None else _usual_distance(loss.newest(_TELLING)[0])

    def count_from_one(self, likely: bool = False) -> None:
        """Has all steps moved up by one where the log numbers its updates from 0.

        It does if it begins at 0 or logs the ends of windows: 49, 99, 149. `likely` decides where
        too few rows tell. May be said before the first row.
        """
        self._may_count_from_zero, self._from_zero_likely = True, likely

    def _shift(self) -> int:
        """What all steps have to be moved by."""
        filled = (column for column in self._columns.values() if column.rows)
        first = self._columns.get("loss") or next(filled, None)
        if not self._may_count_from_zero or first is None or not self._states_steps:
            return 0
        steps, _ = first.newest(_TELLING)
        gap = _usual_distance(steps)
        if gap is None:
            from_zero = self._from_zero_likely
        else:
            # Every second update from 1 on (1, 3, 5) looks the same in both ways of counting.
            is_end = (steps + 1) % max(gap, 1) == 0
            least = 1 if self._from_zero_likely else 2
            from_zero = gap > least and bool(is_end.mean() > 0.9)
        return int(from_zero or first.first == 0)

    def trace(self, origin: str, reader: str, why: str = "", guessed: bool = False) -> Trace:
        """The run. Facts that follow from the rows are added where the reader gave none."""
        self._settle(self._last_update())
        facts: dict[str, Fact] = {"step_source": "logged" if self._states_steps else "counted rows"}
        if loss := self._columns.get("loss"):
            facts["loss_kind"] = self._loss_kind()
            facts["log_interval"] = self.loss_interval
            facts["loss_quantum"] = _quantum(loss.newest(_TELLING)[1])
        facts |= self.facts
        shift = self._shift()
        filled = {name: column for name, column in self._columns.items() if column.rows}
        return Trace(
            facts={name: value for name, value in facts.items() if value is not None},
            series={name: filled[name].series().moved(shift) for name in sorted(filled)},
            events=tuple(sorted(self._told(shift), key=lambda event: event.step)),
            origin=origin,
            reader=reader,
            lines_skipped=self.lines_skipped,
            reading=Reading(self._names_there(), tuple(self._skipped), why, guessed),
        )

    def _names_there(self) -> dict[str, str]:
        """{name as the log spells it: what it became}."""
        spelled = set(self._spelled.values()) - {""}
        own = {name: told for name, told in self._names.items() if told not in spelled}
        return own | self._spelled

    def _told(self, shift: int) -> list[Event]:
        events = [_moved(event, shift) for event in self.events]
        if shift:
            events.append(
                Event(1, "gap", "This log counts from 0: its step N stands here as N + 1")
            )
        if self._newest_overflow is not None:
            old, new = self._newest_overflow
            said = _AT_LEAST if self._scale_ended_run else ""
            events.append(Event(self._overflow_step + shift, "step-skipped", said, old, new))
        if self._left_runs:
            first = min(
                (column.first for column in self._columns.values() if column.rows), default=0
            )
            events.append(Event(first + shift, "start", self._left_out()))
        return events

    def _left_out(self) -> str:
        runs = self._left_runs
        said = "an earlier run" if runs == 1 else f"{runs:,} earlier runs"
        told = []
        for what, rows in self._left_rows.items():
            if rows:
                bad = self._left_bad[what]
                broken = f", {bad:,} of them not finite" if bad else ""
                told.append(f"{_rows(rows, what)}{broken}")
        counts = f": {' and '.join(told)}" if told else ""
        return f"{said} in this log {'was' if runs == 1 else 'were'} left out{counts}"

    def _loss_kind(self) -> str:
        if not REWARD_NAMES.isdisjoint(self._names):
            return "reward"
        return "falling" if self._owners["loss"] in LOSS_NAMES else "unknown"

    def _learn_columns(self, columns: Mapping[str, AnyColumn], length: int) -> None:
        """Learns names in the order in which rows bring them."""
        fresh: dict[int, list[str]] = {}
        for raw, column in columns.items():
            if raw not in self._names:
                is_there = ~np.ma.getmaskarray(column[:length])
                if is_there.any():
                    fresh.setdefault(int(is_there.argmax()), []).append(raw)
        for first in sorted(fresh):
            self._learn(fresh[first])

    def _learn(self, names: Iterable[str]) -> None:
        rank = {alias: place for place, alias in enumerate(self.aliases)}
        fresh = set(names) - self._names.keys()
        for raw in sorted(fresh, key=lambda raw: (rank.get(raw.strip(), len(rank)), raw)):
            name = raw.strip()
            if name in rank or (len(self._names) < MAX_NAMES and len(raw) <= MAX_NAME):
                self._names[raw] = self._series_of(name)

    def _series_of(self, name: str) -> str:
        target = self.aliases.get(name, name)
        if not target or len(name) > MAX_NAME:
            return ""
        is_metric = target.startswith("metric:") or not is_channel(target)
        if not is_metric and channel(target).axis is not Axis.STEP:
            return ""
        if not is_metric and self._owners.setdefault(target, name) == name:
            return target
        if self._num_metrics == MAX_METRICS:
            return ""
        self._num_metrics += 1
        return f"metric:{name.removeprefix('metric:') or '?'}"

    def _column(self, name: str) -> Column:
        column = self._columns.get(name)
        if column is None:
            together, least, most = _EXACT
            in_full, buckets = _WIDE
            kept = min(max(together // (len(self._columns) + 1), least), most)
            is_full = len(self._columns) < in_full
            column = self._columns[name] = Column(kept, *([] if is_full else [buckets]))
            for other in self._columns.values():
                other.kept = kept
        return column

    def _add(self, known: Mapping[str, float], at: float | None) -> None:
        """Adds one row, {series: value}."""
        if self._begun:
            self._leave_out()
        columns = self._columns
        has_loss = "loss" in known
        self._counted += has_loss
        self._counted_evaluations += "eval_loss" in known
        where = self._place(at, known)
        if self._overflows:
            self._see_later(where)
        if has_loss or ("eval_loss" in known and "loss" not in columns):
            leader = columns.get("loss" if has_loss else "eval_loss")
            if leader is not None and where < leader.last:
                self._go_back(leader, where)
            self._renewed.clear()
        is_micro = self.has_micro_rows and at is not None
        for name, value in known.items():
            column = columns.get(name)
            if column is None:
                column = self._column(name)
            elif where < column.last:
                self._renewed.add(name)
            column.put(where, value, is_micro)
        if has_loss and not self._saw_step and math.isfinite(epoch := known.get("epoch", math.nan)):
            self._see_fall(where, epoch)

    def _place(self, at: float | None, known: Mapping[str, float]) -> int:
        if at is None or not 0 <= at < MAX_STEP:
            counted = self._counted or self._counted_evaluations
            return self._last_step if self._saw_step else max(counted, 1)
        self._saw_step = True
        step = int(at)
        if "loss" in known:
            self._see_epoch(step, known.get("epoch", self._in_epoch[1]))
        self._last_step = step + self._offset
        return self._last_step

    def _see_epoch(self, step: int, epoch: float) -> None:
        before, epoch_before = self._in_epoch
        # The same iteration of a later epoch is another one, as where each epoch has one row.
        is_later = step < before or (step == before and epoch >= epoch_before // 1 + 1)
        if epoch > epoch_before and is_later and self._offset < MAX_STEP:
            self._epochs.append((epoch_before, self._offset))
            self._offset += before + (step == 0)
        elif epoch < epoch_before:
            while self._epochs and self._epochs[-1][0] >= epoch:
                self._offset = self._epochs.pop()[1]
        self._in_epoch = step, epoch

    def _go_back(self, leader: Column, where: int) -> None:
        """Drops what belongs to a branch that was left: the losses, or evaluations, go back."""
        before, rows = leader.last, leader.rows
        is_other_run = where <= leader.first
        if is_other_run:
            self._count_left_run()
        for name, column in self._columns.items():
            if name in self._renewed:
                column.cut(where + 1)
            else:
                column.cut(0 if is_other_run else where)
        if not is_other_run and len(self.events) < MAX_EVENTS:
            said = f"{_rows(rows - leader.rows)} taken back"
            self.events.append(Event(where, "resume", said, old=before))
        self._overflows.clear()
        self._overflows_seen.clear()
        self._overflow_step, self._newest_overflow = 0, None

    def _see_fall(self, row: int, epoch: float) -> None:
        """Tells by the epochs of counted loss rows where another run begins or one goes on.

        The epoch falls where it is below that of each of the `_SURE` rows before it, and in as
        many rows behind it neither falls again nor is back where it was. Processes that print in
        turn and a line out of place are no fall. One to the first epoch or below it that is large
        begins another run, see `begins_anew`: the rows before it are left out. Else it is a
        resume, and all rows stay: nothing says which of them were repeated.
        """
        newest = self._newest_epochs
        self._newest_epochs = (*newest, epoch)[-_SURE:]
        if self._epoch_begun is None:
            self._epoch_begun = epoch
        elif epoch < newest[-1]:
            is_clear = len(newest) == _SURE and epoch < min(newest)
            is_clear = is_clear and newest[-1] > self._epoch_begun
            self._fall = (row, newest[-1], 0) if is_clear else None
        elif self._fall is not None:
            fallen, before, since = self._fall
            self._fall = (fallen, before, since + 1) if epoch < before else None
            if self._fall is not None and since + 1 == _SURE:
                self._fall = None
                self._accept_fall(fallen, newest[0], before)

    def _accept_fall(self, row: int, epoch: float, before: float) -> None:
        assert self._epoch_begun is not None
        if begins_anew(epoch, before, self._epoch_begun):
            self._begin_at(row)
            self._epoch_begun = epoch
        else:
            said = f"the epoch goes back from {before:.6g} to {epoch:.6g}: no rows taken back"
            self.event(row, "resume", said)

    def _begin_at(self, first: int) -> None:
        """Leaves out the counted rows before one of the newest, which becomes the first."""
        offset = first - 1
        kept: dict[str, tuple[IntArray, Values]] = {}
        for name, column in self._columns.items():
            steps, values = column.newest(_TELLING)
            at = int(np.searchsorted(steps, first))
            kept[name] = steps[at:] - offset, values[at:]
            column.cut(first)
        events = [replace(e, step=e.step - offset) for e in self.events if e.step >= first]
        self._count_left_run()
        self._columns.clear()
        self.events += events
        for name, (steps, values) in kept.items():
            if len(steps):
                self._column(name).extend(steps, values)
        self._counted -= offset
        self._overflow_step = max(self._overflow_step - offset, 0)

    def _leave_out(self) -> None:
        self._begun = False
        self._count_left_run()
        self._columns.clear()

    def _count_left_run(self) -> None:
        self._left_runs += 1
        for name, what in (("loss", "loss"), ("eval_loss", "evaluation")):
            if column := self._columns.get(name):
                self._left_rows[what] = self._left_rows.get(what, 0) + column.rows
                self._left_bad[what] = self._left_bad.get(what, 0) + _not_finite(column)
                break
        self.events.clear()

    def _last_update(self) -> int:
        """The last step at which an overflow can stand: the run's, where its length is known."""
        total = self.facts.get("total_steps")
        if type(total) is not int:
            return MAX_STEP * 2
        return max(total - self._shift(), self.last_step)

    def _see_later(self, where: int) -> None:
        if self._overflows and where > self._overflow_step:
            self._settle(where)

    def _settle(self, limit: int = MAX_STEP * 2) -> None:
        """Places the overflows that wait, at `limit` at most."""
        for scale in self._overflows:
            self._overflow_step = min(self._overflow_step + 1, limit)
            for name, value in (("step_skipped", 1.0), ("loss_scale", scale)):
                column = self._column(name)
                if self._overflow_step >= column.last:
                    column.put(self._overflow_step, value)
        self._overflows.clear()
        self._overflows_seen.clear()

    def _add_block(self, block: Block, start: int, stop: int) -> bool:
        """Adds rows at once if they follow what is there in every series; else False."""
        where = None if self._overflows else self._places(block, start, stop)
        if where is None:
            return False
        rises = bool((where[1:] > where[:-1]).all())
        if not rises and block.steps is not None and block.last_epoch(start, stop) is not None:
            losses = where[within(block.losses, start, stop) - start]
            if (losses[1:] == losses[:-1]).any():  # of one epoch, or of several
                return False
        found: dict[str, tuple[int, IntArray, Values]] = {}
        for name, values in block.values.items():
            rows = block.rows_of(name, start, stop)
            if rows is None:
                # Of a part too: a view of it would keep the whole.
                is_kept = stop - start == len(values) and not values.flags.writeable
                first, steps = 0, where
                values = values if is_kept else values[start:stop].copy()
            elif len(rows):
                steps = where.take(rows - start if start else rows)
                first, values = int(rows[0]), values.take(rows)
            else:
                continue
            column = self._columns.get(name)
            if column is not None and steps[0] <= column.last:
                return False
            if not rises:
                merged = without_repeats(steps, values)
                if self.has_micro_rows and len(merged[0]) < len(steps):
                    return False
                steps, values = merged
            found[name] = first, steps, values
        self._advance(block, start, stop, where)
        if "loss" in found or ("eval_loss" in found and "loss" not in self._columns):
            self._renewed.clear()
        for name in sorted(found, key=lambda name: found[name][0]):
            self._column(name).extend(*found[name][1:])
        return True

    def _places(self, block: Block, start: int, stop: int) -> IntArray | None:
        """[T]: where the rows stand, if that does not fall and lies in no other epoch."""
        if block.steps is None:
            if self._saw_step:
                return np.full(stop - start, self._last_step)
            if not self._epochs_rise(block, start, stop):
                return None
            counted = self._counted + np.cumsum(block.holds("loss", start, stop))
            others = self._counted_evaluations + np.cumsum(block.holds("eval_loss", start, stop))
            where = np.maximum(np.where(counted > 0, counted, others), 1)
            return None if (where[1:] < where[:-1]).any() else where
        where = block.logged[start:stop]
        where = where + self._offset if self._offset else where
        first = block.first_stated(start)
        if first >= stop or not self._stays_in_epoch(block, start, stop):
            return None
        if first > start:
            if not self._saw_step or self._last_step > where[first - start]:
                return None
            where = np.append(np.full(first - start, self._last_step), where[first - start :])
        return where

    def _epochs_rise(self, block: Block, start: int, stop: int) -> bool:
        """Whether the epochs of counted loss rows do not fall and no fall is in doubt."""
        rows = within(block.counted_epochs, start, stop)
        if self._fall is not None or not len(rows):
            return self._fall is None
        values = block.values["epoch"][rows]
        values = np.append(self._newest_epochs[-1:], values)
        return not (values[1:] < values[:-1]).any()

    def _stays_in_epoch(self, block: Block, start: int, stop: int) -> bool:
        """Whether no row goes back to an epoch for which steps were added up."""
        if not self._epochs or not len(epochs := within(block.epochs, start, stop)):
            return True
        values = np.append(self._in_epoch[1], block.values["epoch"][epochs])
        return not (values[1:] < values[:-1]).any()

    def _advance(self, block: Block, start: int, stop: int, where: IntArray) -> None:
        self._counted += block.count("loss", start, stop)
        self._counted_evaluations += block.count("eval_loss", start, stop)
        if block.steps is None:
            if not self._saw_step and len(rows := within(block.counted_epochs, start, stop)):
                epochs = block.values["epoch"]
                if self._epoch_begun is None:
                    self._epoch_begun = float(epochs[rows[0]])
                newest = (*self._newest_epochs, *epochs[rows[-_SURE:]].tolist())
                self._newest_epochs = newest[-_SURE:]
            return
        self._saw_step, self._last_step = True, int(where[-1])
        if len(losses := within(block.losses, start, stop)):
            epoch = block.last_epoch(start, stop)
            epoch = self._in_epoch[1] if epoch is None else epoch
            self._in_epoch = int(block.logged[losses[-1]]), epoch


def begins_anew(epoch: float, before: float, first: float) -> bool:
    """Whether an epoch that fell is of another run, and not of one that goes on.

    It is back at the run's first or below it, and fell by a whole epoch or by more than half.
    """
    return epoch <= first and (before - epoch >= 1 or epoch < before / 2)


def _moved(event: Event, shift: int) -> Event:
    """The event with the steps in its words moved too."""
    step = event.step + shift
    if event.kind != "resume" or not isinstance(event.old, int):
        return replace(event, step=step)
    text = f"steps go back from {event.old + shift} to {step}: {event.text}"
    return replace(event, step=step, text=text, old=None)


def _rows(count: int, what: str = "") -> str:
    return f"{count:,} {what}{' ' if what else ''}row{'s' * (count != 1)}"


def _not_finite(column: Column) -> int:
    """Rows of a series that are not finite."""
    _, values = column.newest(column.rows)
    if len(values) < column.rows:  # older ones are in buckets
        return int(column.series().bad.sum())
    return int((~np.isfinite(values)).sum())


def _usual_distance(steps: IntArray) -> int | None:
    gaps = np.diff(steps)
    if not gaps.size:
        return None
    return int(gaps[0]) if (gaps == gaps[0]).all() else int(np.median(gaps))


def _quantum(losses: Values) -> float | None:
    """The last decimal place of losses that a log shows rounded, None where they are in full."""
    shown = losses[np.isfinite(losses) & (losses != 0)]
    if not shown.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        for decimals in range(MAX_DECIMALS + 1):
            # The first tell of most logs that all are not so few decimals.
            for some in (shown[:1000], shown):
                if not (np.round(some, decimals) == some).all():
                    break
            else:
                return float(10.0**-decimals)
    return None
