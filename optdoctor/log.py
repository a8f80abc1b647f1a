"""Collects the rows of a log the same way for all formats: names, numbers, steps, repetitions."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optdoctor.channels import Axis, channel, is_channel
from optdoctor.knowledge.log_names import LOSS_NAMES, REWARD_NAMES
from optdoctor.store import IntArray
from optdoctor.trace import Event, EventKind, Fact, Recorder, Trace

MAX_METRICS = 200
"""Names outside the vocabulary that are kept as metrics."""
MAX_NAME = 100
"""Characters of a name beyond which it is none."""
MAX_STEP = 2**53
"""Where floats stop holding every integer: no step of a run."""
MAX_DECIMALS = 6
"""Decimals beyond which a number was written in full and not rounded."""
_SPELLED_BY_C = re.compile(
    r"(?P<sign>[-+]?)(?:nan\(\w*\)|1\.#(?:(?P<infinite>inf)|ind|[qs]nan)0*(?:e\+0+)?)", re.I
)
"""NaN and infinity as C prints them on Windows: -nan(ind), 1.#QNAN, -1.#IND, 1.#INF00."""


def number(value: object) -> float | None:
    """The number that a log means by `value`, None where it means none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str) and value and len(value) < 64 and "_" not in value:
        try:
            return float(value)
        except ValueError:
            spelled = _SPELLED_BY_C.fullmatch(value.strip())
        if spelled is not None:
            return float(f"{spelled['sign']}{spelled['infinite'] or 'nan'}")
    return None


@dataclass
class Log:
    """Collects the rows of one log.

    Steps that go back are a resume: the rows from there on belong to a branch that was left. Steps
    that go back while the epoch rises are counted within the epoch, and are added up. Rows of one
    step, as of several ranks, are one row: their mean, NaN if any of them is.
    """

    aliases: Mapping[str, str] = field(default_factory=dict)
    """{name in the log: channel}; "" drops it. Where a log has several names of one channel, the
    one listed first is it and the others become metrics."""
    facts: dict[str, Fact] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    lines_skipped: int = 0
    _rows: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)  # {name in the log: its series or ""}
    _merged: dict[str, int] = field(default_factory=dict)  # {series: rows in its newest one}
    _owners: dict[str, str] = field(default_factory=dict)  # {channel: the name that fills it}
    _num_metrics: int = 0
    _counted: int = 0
    _counted_evaluations: int = 0
    _saw_step: bool = False
    _last_step: int = 0
    _in_epoch: tuple[int, float] = (0, 0.0)  # newest loss row: step as logged, epoch
    _offset: int = 0

    def row(self, values: Mapping[str, Any], step: object = None) -> bool:
        """Adds one row; False (and counted as skipped) if it holds no number that is known.

        Without `step` the row belongs to the last one logged; where none ever was, to the number
        of loss rows so far, itself included.
        """
        numbers = {raw: parsed for raw, v in values.items() if (parsed := number(v)) is not None}
        if not self._names.keys() >= numbers.keys():
            self._learn(numbers)
        known = {name: value for raw, value in numbers.items() if (name := self._names[raw])}
        if not known:
            self.skip()
            return False
        self._counted += "loss" in known
        self._counted_evaluations += "eval_loss" in known
        at = number(step)
        where = self._place(at, known)
        if "loss" in known:
            self._see_resume(where)
        is_stated = at is not None
        for name, value in known.items():
            self._put(name, where, value, is_stated)
        return True

    def skip(self, lines: int = 1) -> None:
        """Counts lines that held no row."""
        self.lines_skipped += lines

    def event(self, step: int, kind: EventKind, text: str = "") -> None:
        """Adds an event."""
        self.events.append(Event(step, kind, text))

    @property
    def has_rows(self) -> bool:
        """Whether any row was read."""
        return bool(self._rows)

    @property
    def loss_interval(self) -> int | None:
        """Usual distance between two loss rows, in steps."""
        return _usual_distance(np.array(self._rows.get("loss", ([], []))[0], np.int64))

    def count_from_one(self, likely: bool = False) -> None:
        """Moves all steps up by one where the log numbers its updates from 0.

        It does if it begins at 0 or logs the ends of windows: 49, 99, 149. `likely` decides where
        too few rows tell.
        """
        first = self._rows.get("loss") or next(iter(self._rows.values()), None)
        if first is None or not self._saw_step:
            return
        steps = np.array(first[0], np.int64)
        gap = _usual_distance(steps)
        if gap is None:
            from_zero = likely
        else:
            # Every second update from 1 on (1, 3, 5) looks the same in both ways of counting.
            is_end = (steps + 1) % max(gap, 1) == 0
            from_zero = gap > (1 if likely else 2) and bool(is_end.mean() > 0.9)
        if not from_zero and steps[0] != 0:
            return
        for kept, _ in self._rows.values():
            kept[:] = [step + 1 for step in kept]
        self.events[:] = [replace(event, step=event.step + 1) for event in self.events]
        self.event(1, "gap", "This log counts from 0: its step N stands here as N + 1")

    def trace(self, origin: str, reader: str) -> Trace:
        """The run. Facts that follow from the rows are added where the reader gave none."""
        recorder = Recorder()
        for name, (steps, values) in self._rows.items():
            recorder.extend(name, np.array(steps, np.int64), np.array(values, np.float64))
        self.facts.setdefault("step_source", "logged" if self._saw_step else "counted rows")
        if "loss" in self._rows:
            self.facts.setdefault("loss_kind", self._loss_kind())
            self.facts.setdefault("log_interval", self.loss_interval)
            self.facts.setdefault("loss_quantum", _quantum(np.array(self._rows["loss"][1])))
        facts = {name: value for name, value in self.facts.items() if value is not None}
        return recorder.trace(
            facts, self.events, origin=origin, reader=reader, lines_skipped=self.lines_skipped
        )

    def _loss_kind(self) -> str:
        if not REWARD_NAMES.isdisjoint(self._names):
            return "reward"
        return "falling" if self._owners["loss"] in LOSS_NAMES else "unknown"

    def _learn(self, names: Iterable[str]) -> None:
        rank = {alias: place for place, alias in enumerate(self.aliases)}
        fresh = set(names) - self._names.keys()
        for raw in sorted(fresh, key=lambda raw: (rank.get(raw.strip(), len(rank)), raw)):
            self._names[raw] = self._series_of(raw.strip())

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

    def _place(self, at: float | None, known: Mapping[str, float]) -> int:
        if at is None or not 0 <= at < MAX_STEP:
            counted = self._counted or self._counted_evaluations
            return self._last_step if self._saw_step else max(counted, 1)
        self._saw_step = True
        step = int(at)
        if "loss" in known:
            before, epoch_before = self._in_epoch
            epoch = known.get("epoch", epoch_before)
            if step < before and epoch > epoch_before:
                self._offset += before + (step == 0)
            self._in_epoch = step, epoch
        self._last_step = step + self._offset
        return self._last_step

    def _see_resume(self, step: int) -> None:
        steps = self._rows["loss"][0] if "loss" in self._rows else None
        if steps and step < steps[-1]:
            self.event(step, "resume", f"steps go back from {steps[-1]} to {step}")
            self._merged.clear()  # no row merges with one of the branch that was left

    def _put(self, name: str, step: int, value: float, merges: bool) -> None:
        steps, values = self._rows.setdefault(name, ([], []))
        if steps and step <= steps[-1]:
            rows = self._merged.get(name, 0) + 1
            if merges and rows > 1 and step == steps[-1]:
                values[-1] = _mean(values[-1], value, rows)
                self._merged[name] = rows
                return
            while steps and steps[-1] >= step:
                steps.pop()
                values.pop()
        steps.append(step)
        values.append(value)
        self._merged[name] = 1


def _mean(mean: float, value: float, rows: int) -> float:
    """The mean of `rows` rows from that of all but the last, and the last. Equals stay exact."""
    moved = mean + (value / rows - mean / rows)
    return mean + value if math.isnan(moved) else moved  # where one of them is infinite or NaN


def _usual_distance(steps: IntArray) -> int | None:
    gaps = np.diff(steps)
    return int(np.median(gaps)) if gaps.size else None


def _quantum(losses: NDArray[np.float64]) -> float | None:
    """The last decimal place of losses that a log shows rounded, None where they are in full."""
    shown = losses[np.isfinite(losses) & (losses != 0)]
    if not shown.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        for decimals in range(MAX_DECIMALS + 1):
            if (np.round(shown, decimals) == shown).all():
                return float(10.0**-decimals)
    return None
