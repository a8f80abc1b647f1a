"""One optimizer being watched: its hooks, its rows, its examinations."""

import math
import os
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from optdoctor.findings import Diagnosis
from optdoctor.live import clip_tap
from optdoctor.live.alarm import Alarms
from optdoctor.live.announce import announced_in
from optdoctor.live.collector import TENSOR_CHANNELS, Collector
from optdoctor.live.examiner import Examiner
from optdoctor.live.guard import Guard
from optdoctor.live.journal import Journal
from optdoctor.live.outlets import Outlets
from optdoctor.live.rows import Row, Rows, to_host
from optdoctor.live.schedule import Schedule
from optdoctor.live.sentinel import Sentinel
from optdoctor.live.tensors import (
    facts_of,
    lazy,
    main_group,
    num_trained,
    signature,
    steps_in_state,
    track,
    trained,
    weights_nonfinite,
)
from optdoctor.live.untraced import untraced
from optdoctor.optimizers import innermost, probe_of
from optdoctor.readers.run_record import FINDINGS, json_rows
from optdoctor.reading.log import MAX_METRICS
from optdoctor.rules import RULES
from optdoctor.settings import Settings
from optdoctor.sinks import Histogram, Sample, Sink, report_page
from optdoctor.trace import Event, EventKind, Fact, Trace

DRAIN = 256
"""Rows that may wait for one transfer from their device."""
MAX_EVENTS = 100
"""Events of one kind that are written down where a kind may come at every update."""
BOUNDED: frozenset[EventKind] = frozenset({"alarm", "step-skipped"})
FIRST_BAD = "first_nonfinite_step"
PROMPT = 10
"""Alarms that are examined whatever the bill."""


class Run:
    """Watches one optimizer. Nothing that fails in here reaches the training."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        out: Path | None,
        schedule: Schedule,
        sinks: list[Sink],
        settings: Settings,
        facts: Mapping[str, Fact],
        first_step: int | None,
    ) -> None:
        self.optimizer: Optimizer = innermost(optimizer)
        self._model, self._facts, self.out = model, dict(facts), out
        self._probe = probe_of(self.optimizer)
        self._schedule = schedule
        self._examiner = Examiner(settings.chosen(RULES))
        self._guard = Guard(schedule, self._fail)
        self._started = time.perf_counter()
        self._closed = self._due = self._skips = self._live = False
        self._process = os.getpid()
        self._failed: set[str] = set()
        self._outlets = Outlets(sinks, self._guard, self._failed, schedule)
        self._num_events: Counter[EventKind] = Counter()
        self._metrics: set[str] = set()
        self._full = False
        self._alarms = Alarms()
        self._waiting: list[Row] = []
        self._collector: Collector | None = None
        self._sentinel: Sentinel | None = None
        self._decided = False
        """Whether it was asked if the update being made is sampled."""
        self._sampled = 0
        """The last step that holds a sample."""
        self._rows, self._first_step = Rows(0), 1
        self.journal = Journal(out, (*TENSOR_CHANNELS, FIRST_BAD))
        self._handles: list[Any] = []
        self.counts_skips = False
        """Whether every update that a scaler skips is made known by `skip`."""
        self.keeper: Any = None
        """The doctor, who must live as long as the hooks do."""
        self._given_first = first_step
        self._lazy: list[Tensor] = []
        self._begun = False
        with self._guard("start"):
            if not lazy(model, self.optimizer):
                self._begin()
            self._handles = [
                self.optimizer.register_step_pre_hook(untraced(self._before_step)),
                self.optimizer.register_step_post_hook(untraced(self._after_step)),
            ]
            self._live = True
            clip_tap.listen(self)

    @property
    def step(self) -> int:
        """Updates attempted so far."""
        return self._rows.last

    @property
    def trace(self) -> Trace:
        """All that is known now."""
        return self.journal.trace()

    @property
    def diagnosis(self) -> Diagnosis:
        """The last one."""
        return self._examiner.diagnosis

    @property
    def cost(self) -> str:
        """The true cost, in words."""
        return self._schedule.account(self.step - self._first_step + 1, self._elapsed)

    @property
    def _idle(self) -> bool:
        """Whether nothing is watched: never begun, closed, stepped back, or in a forked child."""
        return not self._live or os.getpid() != self._process

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self._started

    def log(self, values: Mapping[str, float | Tensor]) -> None:
        """Takes values of the update being made, or of the last one where no loss is among them."""
        if self._idle:
            return
        with self._guard("log"):
            self._rows.log(self._kept(values))

    def _kept(self, values: Mapping[str, float | Tensor]) -> Mapping[str, float | Tensor]:
        """The values, without metrics beyond the number of names that a record can bear."""
        fresh = [n for n in values if n.startswith("metric:") and n not in self._metrics]
        if not fresh:
            return values
        room = MAX_METRICS - len(self._metrics)
        self._metrics.update(fresh[:room])
        if len(fresh) > room and not self._full:
            self._full = True
            self.event("gap", f"More than {MAX_METRICS} metrics: the further names are not kept")
        return {n: v for n, v in values.items() if n not in fresh[room:]}

    def refuse(self, why: str) -> None:
        """Tells, once, that something logged was left out."""
        if self._idle:
            return
        with self._guard("log"):
            raise TypeError(why)

    def log_at(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a row that the framework placed at `step`; a number given twice counts once."""
        if self._idle:
            return
        with self._guard("log"):
            self._take([(step, dict(values))])

    def skip(self) -> None:
        """Counts an update that was attempted and not made."""
        if self._idle:
            return
        with self._guard("step"):
            self._forget()
            self._take(self._rows.update({"step_skipped": 1.0}))
            self.event("step-skipped", "the update was not made")
            self._schedule.alarm()

    def before_clip(self, parameters: Iterable[Tensor]) -> None:
        """Sees gradients that are about to be clipped; those of others are none of ours."""
        if self._idle or self._sentinel is None:
            return
        with self._guard("tap"):
            positions = self._sentinel.positions(parameters)
            if not positions:
                return
            fresh = self._sentinel.look(positions)
            if self._is_due() and self._collector is not None:
                self._collector.before_clip(fresh)

    def after_clip(self, parameters: Iterable[Tensor]) -> None:
        """They were."""
        if self._idle or self._sentinel is None or not self._sentinel.tapped:
            return
        with self._guard("tap"):
            self._sentinel.clipped(self._sentinel.positions(parameters))

    def refused(self, gradients: Iterable[Tensor]) -> None:
        """A clip raised because of these: if the training ends there, their tensors are known."""
        if self._idle or self._sentinel is None:
            return
        with self._guard("tap"):
            self._sentinel.look(self._sentinel.of_gradients(gradients))

    def forget_gradients(self) -> None:
        """What was seen before a clip was scaled: the update has the norm of what it consumes."""
        if self._sentinel is not None:
            self._sentinel.forget()
        if self._collector is not None:
            self._collector.forget()

    def see_gradients(self) -> None:
        """Takes the gradients as they stand now for those before any clip, and unscaled."""
        if self._begun:
            self.before_clip(self._tracked.parameters)

    def _is_due(self) -> bool:
        """Whether the update being made is sampled; asked before its clip or its step."""
        if not self._decided:
            self._decided, self._due = True, self._schedule.due(self._elapsed)
        return self._due

    def _forget(self) -> None:
        """The update was not made: what was seen of its gradients belongs to none."""
        self._decided = False
        self.forget_gradients()

    def learn(self, facts: Mapping[str, Fact]) -> None:
        """Adds or changes facts."""
        if os.getpid() != self._process:
            return
        with self._guard("facts"):
            self.journal.learn(facts)

    def event(self, kind: EventKind, text: str) -> None:
        """Writes down an event at the last attempted update."""
        if os.getpid() == self._process:
            self._note(Event(self.step, kind, text))

    def _note(self, event: Event) -> None:
        self._num_events[event.kind] += 1
        if event.kind not in BOUNDED or self._num_events[event.kind] <= MAX_EVENTS:
            self.journal.event(event)

    def close(self) -> Diagnosis:
        """Removes the hooks, examines for the last time, tells the sinks. Twice gives the same."""
        if self._closed:
            return self.diagnosis
        self._closed, self._live = True, False
        clip_tap.leave(self)
        for handle in self._handles:
            handle.remove()
        with self._guard("step"):
            self._take(self._rows.flush(), now=True)
            self._last_look()
            self._tell_how_losses_came()
        with self._guard("examination"):
            self._examine(tell=False)
        self.journal.flush()
        self._notice_lost_record()
        with self._guard("page"):
            if self.out is not None and self._begun and self.journal.failure is None:
                report_page.write(self.out, self.diagnosis, self.trace, self.cost)
        self._outlets.close(self.diagnosis, self.trace, lambda: self.cost)
        self.journal.close()
        self._notice_lost_record()
        return self.diagnosis

    def _last_look(self) -> None:
        """Where gradients first were not finite, if no sample has told it since.

        Also those of an update that was never made: a clip that refuses them ends the training.
        """
        if self._sentinel is None:
            return
        step = self.step
        if self._sentinel.tapped:
            values = self._sentinel.commit(step + 1)
            if not all(math.isfinite(float(value)) for value in values.values()):
                step += 1
                self._take([(step, values)], now=True)
        self._sample_first_bad(step)

    def _sample_first_bad(self, step: int) -> None:
        first = self._sentinel.first() if self._sentinel is not None else None
        if first is not None and step > self._sampled:
            self._sampled = step
            self.journal.sample(step, {FIRST_BAD: first})

    def _tell_how_losses_came(self) -> None:
        self.journal.notes["log_order"] = self._rows.order
        if self._rows.num_merged and not self.counts_skips:
            count = self._rows.num_merged
            several = "1 update holds" if count == 1 else f"{count} updates hold"
            hint = "with a GradScaler pass scaler= to watch"
            self.event("gap", f"{several} several losses, averaged; {hint}")

    def _begin(self) -> None:
        self._begun = True
        first_step = self._given_first
        done = steps_in_state(self.optimizer, self._probe)
        resumed = first_step > 1 if first_step is not None else done is not None
        if first_step is None and done:
            first_step = done + 1
        tracked = track(self._model, self.optimizer, self._probe)
        facts = facts_of(self.optimizer, self._probe, tracked.tensors) | self._facts
        broken = weights_nonfinite(tracked)
        if broken or resumed:  # what an earlier process found is no longer true
            facts["weights_nonfinite"] = broken
        self.journal.open(facts, resumed, first_step)
        if first_step is None:
            first_step = self.journal.last_step + 1 if resumed else 1
        self._rows.last, self._first_step = first_step - 1, first_step
        self._retrack(first=True)
        if resumed:
            loaded = "no" if done is None else "yes"
            self.journal.learn({"resumed_from": first_step - 1, "state_loaded": loaded})
            if self.out is not None:
                self._examiner.announced = announced_in(json_rows(self.out / FINDINGS))
        kind: EventKind = "resume" if resumed else "start"
        self.journal.event(Event(first_step, kind, f"training begins at step {first_step}"))
        self._notice_lost_record()
        self._examine()

    def _retrack(self, *, first: bool = False) -> None:
        """Builds the table of tensors anew: at a start, and when parameters or dtypes changed."""
        tracked = track(self._model, self.optimizer, self._probe)
        facts = facts_of(self.optimizer, self._probe, tracked.tensors) | self._facts
        self.journal.retrack(tracked.tensors, self.step + 1)
        if not first:
            changes = [
                f"{k} {self.journal.facts.get(k)} -> {v}"
                for k, v in facts.items()
                if self.journal.facts.get(k) != v
            ]
            self.journal.event(
                Event(self.step + 1, "tensors-changed", "; ".join(changes) or "new parameters")
            )
            self.journal.learn(facts)
            self._schedule.alarm()
        self._tracked, self._main_group = tracked, main_group(tracked.tensors)
        self._lazy = lazy(self._model, self.optimizer)
        self._trained = trained(self.optimizer)
        self._signature = signature(tracked, self.optimizer, self._probe)
        self._collector = Collector(self.optimizer, self._probe, tracked)
        self._sentinel = Sentinel(tracked, self._sentinel)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._idle:
            return
        if not self._begun:
            with self._guard("start"):
                self._begin()
        with self._guard("sampling"):
            # Fused optimizers run their hooks on a skipped step too; the scaler leaves this mark.
            mark = getattr(optimizer, "found_inf", None)
            self._skips = mark is not None and float(mark) > 0
            self._due = self._is_due() and not self._skips
            if self._collector is None:
                return
            changed = num_trained(optimizer) != len(self._trained)
            changed |= bool(self._lazy) and not all(map(is_lazy, self._lazy))
            if changed or (self._due and trained(optimizer) != self._trained):
                self._retrack()
            if self._due and self._collector is not None:
                self._collector.before()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._idle:
            return
        if self._skips:
            self.skip()
            return
        values: dict[str, float | Tensor] = {}
        tensors = None
        histograms: Mapping[str, Mapping[str, Histogram]] | None = None
        self._decided = False
        with self._guard("tap"):
            if self._sentinel is not None:
                values |= self._sentinel.commit(self.step + 1)
        with self._guard("sampling"):
            if self._collector is not None:
                values["lr"] = self._collector.rate(self._main_group)
                if self._due:
                    if signature(self._tracked, optimizer, self._probe) != self._signature:
                        self._retrack()
                    if self._outlets.want_sample():
                        histograms = self._outlets.histograms(self._collector.histograms)
                    sampled, tensors = self._collector.after()
                    values |= sampled
                    first = self._sentinel.first() if self._sentinel is not None else None
                    tensors |= {} if first is None else {FIRST_BAD: first}
        with self._guard("step"):
            rows = self._rows.update(values)
            if tensors is not None:
                self._sampled = self.step
                self.journal.sample(self.step, tensors)
            self._take(rows, now=tensors is not None)
        if tensors is not None and histograms is not None:
            names = tuple(info.name for info in self._tracked.tensors)
            self._outlets.sample(Sample(self.step, names, tensors, histograms))
        paid = False
        if self._examiner.due(self.step):
            with self._guard("bill"):
                paid = self._examiner.must(self.step) or self._schedule.may_spend(self._elapsed)
        if tensors is None and not paid:
            return
        with self._guard("examination"):
            if paid or self._examiner.sees_news(self.trace):
                self._examine()

    def _take(self, rows: list[Row], *, now: bool = False) -> None:
        self._waiting += rows
        on_device = any(isinstance(v, Tensor) for _, values in rows for v in values.values())
        if on_device and not now and len(self._waiting) < DRAIN:
            return
        waiting, self._waiting = self._waiting, []
        for step, values in to_host(waiting):
            self._outlets.row(step, self.journal.row(step, values))
            for odd, value in self._alarms(values):
                self._sound(step, odd, value)
        self._notice_lost_record()

    def _sound(self, step: int, odd: str, value: float) -> None:
        fresh = self._schedule.alarm()
        if not fresh and math.isfinite(value):
            return
        self._sample_first_bad(self.step)
        self._note(Event(step, "alarm", odd))
        prompt = self._num_events["alarm"] <= PROMPT
        if not prompt and not self._schedule.may_spend(self._elapsed):
            return
        self.journal.flush()
        with self._guard("examination"):
            self._examine()
        self._examiner.alarmed(self.step)

    def _examine(self, *, tell: bool = True) -> None:
        told = self._examiner.examine(self.trace, self.step)
        self.journal.notices(told)
        if tell:
            self._outlets.tell(told)

    def _fail(self, part: str, error: Exception) -> None:
        """Steps back from the part that failed, and writes down why, once."""
        if part == "sampling":
            self._collector = None
        if part == "tap":
            self._sentinel = None
        if part in ("start", "step"):
            self._live = False  # torch is walking through the hooks: they go at close
        if part not in self._failed:
            self._failed.add(part)
            where = "".join(traceback.format_exception(error))
            self.event("doctor-failed", f"{part} failed, {type(error).__name__}: {error}\n{where}")

    def _notice_lost_record(self) -> None:
        failure = self.journal.failure
        if failure is not None and "record" not in self._failed:
            self._failed.add("record")
            self.event("doctor-failed", f"record failed, {type(failure).__name__}: {failure}")
