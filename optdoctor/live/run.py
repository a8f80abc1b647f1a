"""One optimizer being watched: its hooks, its rows, its examinations."""

import math
import operator
import os
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from optdoctor.findings import Diagnosis
from optdoctor.live import attention_tap, clip_tap
from optdoctor.live.alarm import LOST
from optdoctor.live.announce import announced_in
from optdoctor.live.autocast import KeptCasts
from optdoctor.live.batches import Batches
from optdoctor.live.changes import Changes
from optdoctor.live.collector import TENSOR_CHANNELS, Collector, Reading
from optdoctor.live.examiner import Examiner
from optdoctor.live.guard import Guard
from optdoctor.live.hooks import Hooks
from optdoctor.live.incoming import SKIPPED, Incoming, Odd
from optdoctor.live.journal import Journal
from optdoctor.live.outlets import Outlets
from optdoctor.live.replicas import BY_TENSOR, Comparison, Replicas
from optdoctor.live.rest import Rest
from optdoctor.live.rows import Row, Rows
from optdoctor.live.schedule import Schedule
from optdoctor.live.sentinel import FirstBad, Sentinel, is_host
from optdoctor.live.setup import SlowNorms, setup_facts
from optdoctor.live.snapshot import LEAST_BYTES
from optdoctor.live.strays import Strays
from optdoctor.live.tensors import (
    Tracked,
    facts_of,
    is_sharded,
    lazy,
    main_group,
    moment_facts,
    steps_in_state,
    track,
    weights_nonfinite,
)
from optdoctor.live.ties import tie_facts
from optdoctor.live.treating import Treating
from optdoctor.live.witness import MicroBatches, Witness
from optdoctor.optimizers import innermost, keeps_rule, number_of, probe_of
from optdoctor.optimizers.untraced import num_steps_at_work
from optdoctor.readers.run_record import FINDINGS, json_rows
from optdoctor.reading.log import MAX_METRICS
from optdoctor.rules import RULES
from optdoctor.settings import Settings
from optdoctor.sinks import Histogram, Sample, Sink, report_page
from optdoctor.trace import Event, EventKind, Fact, Trace
from optdoctor.treatments.left_out import is_left_out

MAX_EVENTS = 100
"""Events of one kind that are written down where a kind may come at every update."""
BOUNDED: frozenset[EventKind] = frozenset({"alarm", "step-skipped", "treatment"})
FIRST_BAD = "first_nonfinite_step"
LOSS_ONLY = frozenset({"loss"})
NOT_MADE = "the update was not made"
PROMPT = 10
"""Alarms that are examined whatever the bill."""

UNKNOWN = (
    "the optimizer {} is not known to optdoctor: its updates are measured from the weights, its"
    " moments are not read, gradients and rates are those that its step leaves behind"
)
OWN_STEP = (
    "{} has a step of its own: its moments are read as those of {}, gradients and rates are those"
    " that it leaves behind, what its updates should be is not known"
)

UNREAD = "some of what {} holds cannot be read, and what rests on it is left out: {}"
SHARDED = (
    "weights are spread over processes: what is measured of them is of the part that this process"
    " holds"
)


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
        full_updates: bool = False,
        attention: bool = False,
        batches: Batches | None = None,
        beside: Sequence[Optimizer] = (),
    ) -> None:
        self.optimizer: Optimizer = innermost(optimizer)
        self._model, self._facts, self.out = model, dict(facts), out
        self._probe, self._full_updates = probe_of(self.optimizer), full_updates
        self._beside = tuple(beside)
        """All optimizers of one doctor: others may hold what of the model this one does not."""
        self._schedule = schedule
        self._examiner = Examiner(settings.chosen(RULES), schedule.floor_s / 2)
        self._guard = Guard(schedule, self._fail)
        self._started = time.perf_counter()
        self._final_cost: str | None = None
        self._closed = self._due = self._skips = self._live = False
        self.is_paused = False
        """Whether what happens is none of the training's, and not looked at."""
        self._moments_told = False
        """Whether the facts are told that the first sample of these tensors shows."""
        self._depth = 0
        """Steps of this optimizer's classes that are at work, one within the other."""
        self._mark: Tensor | None = None
        """Above 0 if the update being made is not made; on a device, where it is not read."""
        self._process = os.getpid()
        self._failed: set[str] = set()
        self._outlets = Outlets(sinks, self._guard, self._failed, schedule)
        self._num_events: Counter[EventKind] = Counter()
        self._metrics: set[str] = set()
        self._full = False
        self._made: float | None = None
        """When the last update was made."""
        self._collector: Collector | None = None
        self._sentinel: Sentinel | None = None
        self._witness: Witness | None = None
        self._micro_batches = MicroBatches()
        self._casts = KeptCasts(model)
        self._rest: Rest | None = None
        """Of an update that is not to be made."""
        self._replicas: Replicas | None = Replicas(facts.get("replicated"))
        self._apart: NDArray[np.float32] | None = None
        """How far replicas are apart, by tensor, where that is news: it goes with a sample."""
        self._attention = attention_tap.Attention() if attention else None
        self._batches = batches
        self._changes: Changes | None = None
        self._strays: Strays | None = None
        self._slow_norms: SlowNorms | None = None
        self._settled = False
        """Whether the first update is about to be made, or was: what its setup lacks until then may
        still be given to it, and nobody is told of it."""
        self._decided = False
        """Whether it was asked if the update being made is sampled."""
        self._sampled = self._first_told = 0
        """The last step that holds a sample, and the last that tells where gradients broke."""
        self._firsts: dict[int, FirstBad] = {}
        self._histograms: dict[int, Mapping[str, Mapping[str, Histogram]]] = {}
        """Of the samples that are on their way."""
        self._rows, self._first_step = Rows(0), 1
        several = (BY_TENSOR,) if "world_size" in self._facts else ()
        self.journal = Journal(out, (*TENSOR_CHANNELS, FIRST_BAD, *several))
        self._incoming = Incoming(
            self.journal, self._outlets, self._not_made, prompt=batches is not None
        )
        self._hooks: Hooks | None = None
        self.counts_skips = False
        """Whether every update that a scaler skips is made known by `skip`."""
        self.keeper: Any = None
        """The doctor, who must live as long as the hooks do."""
        self.treating = Treating(
            self.optimizer, model, lambda: self.journal.facts, self._note_treatment, self
        )
        self._given_first = first_step
        self._begun = False
        with self._guard("start"):
            if not lazy(model, self.optimizer):
                self._begin()
            self._hooks = Hooks(self.optimizer, self._before_step, self._after_step, self._suspect)
            self._live = True
            clip_tap.listen(self)
            if self._attention is not None:
                attention_tap.listen(self)
        with self._guard("batches"):
            if self._batches is not None and self._live:
                self._batches.attach(model, self.given)

    @property
    def step(self) -> int:
        """Updates attempted so far."""
        return self._rows.last

    @property
    def trace(self) -> Trace:
        """All that is known now."""
        return self._known(None)

    def _known(self, only: frozenset[str] | None) -> Trace:
        if self._incoming.can_be_told:
            with self._guard("step"):
                self._take([], now=True)
        return self.journal.trace(only)

    @property
    def diagnosis(self) -> Diagnosis:
        """The last one; until the first update, of what is known by now."""
        if self._begun and not self._settled and not self._closed:
            with self._guard("examination"):
                self._examiner.look(self.journal.trace())
        return self._examiner.diagnosis

    @property
    def cost(self) -> str:
        """The true cost, in words."""
        if self._final_cost is not None:
            return self._final_cost
        told = self._schedule.account(self.step - self._first_step + 1, self._elapsed)
        if self._collector is None or not self._collector.snapshot_bytes:
            return told
        return f"{told}, {self._collector.snapshot_bytes / 2**20:.3g} MiB for copies of weights"

    @property
    def logging(self) -> Guard:
        """Bills and guards what takes the values of a loop."""
        return self._guard("log")

    @property
    def _idle(self) -> bool:
        """Whether nothing is watched: never begun, closed, stepped back, paused, or in a forked
        child."""
        return not self._live or self.is_paused or os.getpid() != self._process

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Looks away, as from a trial: the record goes on afterwards as if no time had passed."""
        began, billed = time.perf_counter(), (self._schedule.idle_s, self._schedule.work_s)
        witness = self._witness
        seen = {} if witness is None else dict(vars(witness))
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False
            spent_s = time.perf_counter() - began
            self._started += spent_s
            if self._made is not None:
                self._made += spent_s
            self._schedule.idle_s, self._schedule.work_s = billed
            if witness is not None:  # its hooks lie on a tensor
                vars(witness).update(seen)

    @property
    def _elapsed(self) -> float:
        return time.perf_counter() - self._started

    def log(self, values: Mapping[str, float | Tensor]) -> None:
        """Takes values of the update being made, or of the last one where no loss is among them."""
        if self._idle:
            return
        with self._guard("log"):
            self._rows.log(self._kept(values))
        if self.treating.at_work:
            with self._guard("treatments"):
                self.treating.observe(values)

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
        if self.treating.at_work:
            with self._guard("treatments"):
                self.treating.observe(values)

    def skip(self) -> None:
        """Counts an update that was attempted and not made."""
        if self._idle:
            return
        with self._guard("step"):
            self._forget()
            if self._batches is not None:
                self._batches.belong_to(self.step + 1)
            self._take(self._rows.update({SKIPPED: 1.0}))
            self.event("step-skipped", NOT_MADE)
            self._schedule.alarm()
        self._look()

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

    def attended(self, call: attention_tap.Call) -> None:
        """Sees attention of a pass that trains, where it was asked for."""
        if self._idle or not self._begun or (self._decided and not self._due):
            return
        with self._guard("attention"):
            if self._attention is not None and self._is_due():
                self._attention.add(call)

    def given(self, args: Any, kwargs: Any) -> None:
        """Sees what a pass that trains is given, where its batch may be saved."""
        if self._batches is None or self._idle:
            return
        with self._guard("batches", idle=True):
            self._batches.take(args, kwargs)

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
        if self._attention is not None:
            self._attention.taken()
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

    def _note_treatment(self, kind: EventKind, text: str, old: Fact, new: Fact) -> None:
        if os.getpid() == self._process and not self.is_paused:
            self._note(Event(self.step, kind, text, old, new))

    def _note(self, event: Event) -> None:
        self._num_events[event.kind] += 1
        if event.kind not in BOUNDED or self._num_events[event.kind] <= MAX_EVENTS:
            self.journal.event(event)

    def close(self) -> Diagnosis:
        """Removes the hooks, examines for the last time, tells the sinks. Twice gives the same."""
        if self._closed:
            return self.diagnosis
        self._final_cost = self.cost  # of the training: what follows delays nothing of it
        self._closed, self._live = True, False
        clip_tap.leave(self)
        attention_tap.leave(self)
        if self._hooks is not None:
            self._hooks.remove()
        self.treating.close()
        if self._witness is not None:
            self._witness.close()
        with self._guard("step"):
            self._take(self._rows.flush(), now=True, wait=True)
            self._tell_late_samples()
            self._last_look()
            self._last_comparison()
            self._tell_how_losses_came()
        with self._guard("examination"):
            self._examine(tell=False)
        self.journal.flush()
        self._notice_lost_record()
        with self._guard("page"):
            if self.out is not None and self._begun and self.journal.failure is None:
                report_page.write(self.out, self.diagnosis, self.trace, self.cost)
        if self._batches is not None:
            self._batches.close()
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
                self._take([(step, values)], now=True, wait=True)
        self._sample_first_bad(step)

    def _last_comparison(self) -> None:
        if self._replicas is not None:
            self._tell_replicas(self._replicas.close())
        if self._apart is not None and self.step > self._sampled:
            self.journal.sample(self.step, {BY_TENSOR: self._apart})

    def _sample_first_bad(self, step: int) -> None:
        first = self._sentinel.first() if self._sentinel is not None else None
        if first is not None and step > max(self._sampled, self._first_told):
            self._sampled = self._first_told = step
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
        tracked = track(self._model, self.optimizer, self._probe, self._beside)
        facts = setup_facts(self._model, self.optimizer, tracked) | self._facts_of(tracked)
        broken = weights_nonfinite(tracked)
        if broken or resumed:  # what an earlier process found is no longer true
            facts["weights_nonfinite"] = broken
        self.journal.open(facts, resumed, first_step)
        if first_step is None:
            first_step = self.journal.last_step + 1 if resumed else 1
        self._rows.last, self._first_step = first_step - 1, first_step
        self._retrack(tracked, quietly=True)
        if resumed:
            loaded = "no" if done is None else "yes"
            self.journal.learn({"resumed_from": first_step - 1, "state_loaded": loaded})
            if self.out is not None:
                self._examiner.announced = announced_in(json_rows(self.out / FINDINGS))
        kind: EventKind = "resume" if resumed else "start"
        self.journal.event(Event(first_step, kind, f"training begins at step {first_step}"))
        if not self._probe.matches:
            name = type(self.optimizer).__name__
            self.journal.event(Event(first_step, "gap", UNKNOWN.format(name)))
        elif not keeps_rule(self.optimizer):
            name = type(self.optimizer).__name__
            self.journal.event(Event(first_step, "gap", OWN_STEP.format(name, self._probe.family)))
        if any(map(is_sharded, tracked.parameters)):
            self.journal.event(Event(first_step, "gap", SHARDED))
        self._notice_lost_record()
        self._slow_norms = SlowNorms(self._model)

    def _look_again(self) -> None:
        """What was given to the model or the optimizer since watching began was never missing."""
        tracked = track(self._model, self.optimizer, self._probe, self._beside)
        same = all(map(operator.is_, tracked.parameters, self._tracked.parameters))
        if not same or tracked.tensors != self._tracked.tensors:
            self._retrack(tracked, quietly=True)
        if self.journal.facts.get("weights_nonfinite"):
            self.journal.learn({"weights_nonfinite": weights_nonfinite(tracked)})

    def _settle(self) -> None:
        """The gradients of the first update are there: all that is known of the setup holds."""
        self._settled = True
        if self._strays is not None:
            self.journal.amend(self._strays.look(self.step))
        if self._slow_norms is not None:
            self.journal.learn(self._slow_norms.facts() | self._facts)
            self._slow_norms = None
        with self._guard("examination"):
            self._examine()

    def _look_at_strays(self) -> None:
        """Gradients that came to where none had come, and weights that others began to move."""
        if self._strays is not None and (news := self._strays.look(self.step)):
            self.journal.amend(news)
            self._examiner.alarmed(self.step)

    def _tell_late_samples(self) -> None:
        """Those on their way: none follows that could bring them, or it is of other tensors."""
        readings: list[Reading] = []
        with self._guard("sampling"):
            if self._collector is not None:
                readings = self._collector.flush()
        self._tell_samples(readings)

    def _facts_of(self, tracked: Tracked) -> dict[str, Fact]:
        known = facts_of(self.optimizer, self._probe, tracked.tensors) | tie_facts(self._model)
        return known | self._facts

    def _retrack(self, tracked: Tracked | None = None, *, quietly: bool = False) -> None:
        """Builds the table of tensors anew: at a start, and when parameters or dtypes changed."""
        self._tell_late_samples()
        if tracked is None:
            tracked = track(self._model, self.optimizer, self._probe, self._beside)
        facts = self._facts_of(tracked)
        room_bytes = None if self._full_updates else LEAST_BYTES
        collector = Collector(self.optimizer, self._probe, tracked, room_bytes)
        tensors = tuple(
            replace(info, update_sampled=i in collector.rows_only)
            for i, info in enumerate(tracked.tensors)
        )
        self.journal.retrack(tensors, self.step + 1)
        if quietly:
            self.journal.learn(facts)
        else:
            changes = [
                f"{k} {self.journal.facts.get(k)} -> {v}"
                for k, v in facts.items()
                if self.journal.facts.get(k) != v
            ]
            self.journal.event(
                Event(self.step + 1, "tensors-changed", "; ".join(changes) or "new parameters")
            )
            self.journal.learn(facts)
            self._schedule.changed()
        self._moments_told = False
        self._tracked, self._main_group = tracked, main_group(tracked.tensors)
        self._changes = Changes(self._model, self.optimizer, self._probe, tracked, self._changes)
        self._collector = collector
        self._sentinel = Sentinel(tracked, self._sentinel)
        self._strays = Strays(tracked, self._strays)
        self.journal.amend(self._strays.known())
        if self._witness is not None:
            self._witness.close()
        self._witness = Witness(tracked, self._guard)
        self._apart = None
        if self._replicas is not None:
            self._replicas.of(self._model, tracked)

    def _suspect(self, optimizer: Optimizer) -> None:
        if self._changes is not None:
            self._changes.suspected = True

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._idle or self._is_within(optimizer):
            return
        if not self._begun:
            with self._guard("start"):
                self._begin()
        elif not self._settled:
            with self._guard("setup"):
                self._look_again()
        if self._live and not self._settled and self._has_gradients():
            with self._guard("setup"):
                self._settle()
        if self._casts.wanted and self._collector is not None:
            with self._guard("autocast"):
                for parameter in self._tracked.parameters[:1]:
                    self.journal.learn(self._casts.news(parameter.device))
        with self._guard("sampling"):
            self._skips = self._is_skipped(optimizer)
            self._rest = Rest(self._tracked.parameters) if self._skips else None
            if self._collector is not None and self._changes and self._changes.seen(optimizer):
                self._retrack()
            if self._sentinel is not None and not self._sentinel.confirm():
                self.forget_gradients()
            self._due = self._is_due() and not self._skips
            if self._due and self._collector is not None:
                if self._changes and self._changes.seen_closely(optimizer):
                    self._retrack()
                self._collector.before()

    def _has_gradients(self) -> bool:
        """Whether the update has its gradients: a step with a closure makes them itself."""
        return any(p.grad is not None for p in self._tracked.parameters)

    def _is_within(self, optimizer: Optimizer) -> bool:
        """Whether this is the step of a base class, called by the step that is being watched.

        Torch calls the hooks for both where it has wrapped both. A step that raised never came to
        its end, so that only the stack knows.
        """
        self._depth = num_steps_at_work(optimizer) if self._depth else 1
        return self._depth > 1

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        ended, self._depth = self._depth == 1, max(self._depth - 1, 0)
        if self._idle or not ended:
            return
        if self._skips and not (self._rest and self._rest.broken()):
            self.skip()
            self._compare_replicas()
            return
        self._decided, sampled = False, False
        if not self._settled:
            with self._guard("setup"):
                self._settle()
        elif self._due:
            with self._guard("setup"):
                self._look_at_strays()
        with self._guard("step"):
            if self._changes and self._changes.regrouped(optimizer):
                self._due = False  # within the step: the next one builds the table anew
            values, step = self._seen(optimizer), self.step + 1
            readings = self._measured(step) if self._due else []
            if self._mark is None:
                for reading in readings:
                    values |= reading.values if reading.step == step else {}
            if self._batches is not None:
                self._batches.belong_to(step)
            odd = self._incoming.add(self._rows.update(values), now=self._due)
            self._notice_lost_record()
            sampled = self._tell_samples(readings)
            self._sound_all(odd)
            how = self._changes.seen_in_state(optimizer) if readings and self._changes else ""
            if how:
                self._retrack(quietly=how == "new")
            if readings and not self._moments_told:
                self._moments_told = True
                told = moment_facts(self.optimizer, self._probe, self._tracked)
                self.journal.learn(told | self._facts)
            if self._batches is not None:
                self._batches.release(self._incoming.known)
        self._compare_replicas()
        self._look(sampled=sampled)
        if self.treating.is_due(self.step):
            with self._guard("treatments"):
                self.treating.guard(self._known(LOSS_ONLY), self.step)

    def _look(self, *, sampled: bool = False) -> None:
        """Lets all rules look if it is time and there is room, or if a new sample is worth it."""
        paid = False
        if self._examiner.due(self.step):
            with self._guard("bill"):
                paid = self._examiner.may_look(self.step, self._schedule, self._elapsed)
        if not sampled and not paid:
            return
        with self._guard("examination"):
            if paid or self._examiner.sees_news(self._known(self._examiner.looks_at)):
                self._examine()

    def _compare_replicas(self) -> None:
        if self._replicas is None or not self._replicas.at_work():
            return
        with self._guard("replicas"):
            self._tell_replicas(self._replicas.look(self.step))

    def _tell_replicas(self, comparisons: Iterable[Comparison]) -> None:
        for one in comparisons:
            self.journal.learn(one.facts)
            self._take([(one.step, dict(one.values))], now=True)
            if one.apart is not None:
                self._apart = one.apart
                self._schedule.alarm()

    def _measured(self, step: int) -> list[Reading]:
        """Samples the update just made; the samples that have arrived, perhaps earlier ones."""
        readings: list[Reading] = []
        with self._guard("sampling"):
            if self._collector is None:
                return []
            if self._sentinel is not None:  # on its way before the sample: there when that is
                self._firsts[step] = self._sentinel.sent()
            readings = self._collector.after(step)
            if self._outlets.want_sample():
                self._histograms[step] = self._outlets.histograms(self._collector.histograms)
            self._collector.forget()
        return readings

    def _tell_samples(self, readings: Iterable[Reading]) -> bool:
        """Writes down samples that have arrived; whether there are any."""
        told = False
        for reading in readings:
            step, tensors = reading.step, dict(reading.tensors)
            for error in reading.gaps:
                text = UNREAD.format(type(self.optimizer).__name__, error)
                self.journal.event(Event(step, "gap", text))
            first = self._firsts.get(step)
            histograms = self._histograms.get(step)
            for known in (self._firsts, self._histograms):
                for earlier in [at for at in known if at <= step]:
                    del known[earlier]
            if self._was_skipped(step):
                continue
            if step > self._first_told and first is not None and (row := first.read()) is not None:
                tensors[FIRST_BAD], self._first_told = row, step
            if self._apart is not None:
                tensors[BY_TENSOR], self._apart = self._apart, None
            self._sampled, told = max(self._sampled, step), True
            self.journal.sample(step, tensors)
            if step != self.step or self._mark is not None:  # its row was made without it
                self._take([(step, dict(reading.values))], now=True)
            if histograms is not None:
                names = tuple(info.name for info in self._tracked.tensors)
                self._outlets.sample(Sample(step, names, tensors, histograms))
        return told

    def _was_skipped(self, step: int) -> bool:
        """Of a sample that has arrived: whether its update was not made. The mark has come too."""
        if step == self.step and self._mark is not None:
            return number_of(self._mark) > 0
        return self._incoming.was_skipped(step)

    def _is_skipped(self, optimizer: Optimizer) -> bool:
        """Whether the update is one that will not be made, as far as that can be known now.

        Fused optimizers run their hooks on a skipped step too; the scaler leaves this mark. Where
        it lies on a device, the row of the update takes it along.
        """
        mark = getattr(optimizer, "found_inf", None)
        self._mark = None
        if is_left_out(optimizer):
            return True
        if isinstance(mark, Tensor) and not is_host(mark.device):
            self._mark = mark.detach().reshape(()).clone()
            return False
        return mark is not None and number_of(mark) > 0

    def _seen(self, optimizer: Optimizer) -> dict[str, float | Tensor]:
        """What every update tells."""
        values: dict[str, float | Tensor] = {}
        now, last = time.perf_counter(), self._made
        self._made = now
        if self._sentinel is not None:
            try:
                values = self._sentinel.commit(self.step + 1, self._mark)
            except Exception as error:
                self._fail("tap", error)
        with self._guard("backward"):
            values |= self._told_by_witness()
        if self._attention is not None:
            values |= self._attention.taken()
        if last is not None:
            values["step_time_s"] = now - last
        main = optimizer.param_groups[self._main_group : self._main_group + 1]
        rate = main[0].get("lr") if main else None
        if isinstance(rate, Tensor) and not is_host(rate.device):
            values["lr"] = rate.detach().reshape(()).clone()  # schedules change it in place
        elif rate is not None:
            values["lr"] = rate if type(rate) is float else number_of(rate)
        if self._mark is not None:
            values[SKIPPED] = self._mark
            self._incoming.mark(self.step + 1)
        return values

    def _told_by_witness(self) -> dict[str, float | Tensor]:
        if self._witness is None:
            return {}
        kept, passes = self._witness.finish()
        learnt, given = self._micro_batches.learnt, self.journal.facts.get("accumulation_steps")
        number = self._micro_batches.add(passes, self._rows.num_losses)
        if number is not None and given in (None, learnt):
            self.journal.learn({"accumulation_steps": number})
        return {} if kept is None else {"gradients_kept": kept}

    def _take(self, rows: list[Row], *, now: bool = False, wait: bool = False) -> None:
        self._sound_all(self._incoming.add(rows, now=now, wait=wait))
        self._notice_lost_record()

    def _not_made(self, step: int) -> None:
        """Of an update that had a mark on its device."""
        self._note(Event(step, "step-skipped", NOT_MADE))
        self._schedule.alarm()

    def _sound_all(self, odd: list[Odd]) -> None:
        for one in odd:
            self._save_batch(one)
            self._sound(one.step, one.what, one.value)

    def _save_batch(self, odd: Odd) -> None:
        """Before the alarm is examined: what is found then can name the file."""
        if self._batches is None:
            return
        with self._guard("batches"):
            if (event := self._batches.save(odd)) is not None:
                self._note(event)

    def _sound(self, step: int, odd: str, value: float) -> None:
        fresh = self._schedule.alarm()
        if not fresh and math.isfinite(value):
            return
        self._sample_first_bad(self.step)
        self._note(Event(step, "alarm", odd))
        prompt = self._num_events["alarm"] <= PROMPT or self._schedule.may_spend(self._elapsed)
        if prompt:
            self.journal.flush()
            if self._schedule.may_hurry(self._elapsed):
                with self._guard("examination"):
                    self._examine()
            self._examiner.alarmed(self.step)
        if odd == LOST:
            self._examiner.lost(self.step)

    def _examine(self, *, tell: bool = True) -> None:
        began = time.perf_counter()
        told = self._examiner.examine(self.trace, self.step)
        self._schedule.looked(time.perf_counter() - began)
        self.journal.notices(told)
        if tell:
            self._outlets.tell(told)
            if self.treating.at_work:
                with self._guard("treatments"):
                    self.treating.consider(self._examiner.diagnosis, self.step)

    def _fail(self, part: str, error: Exception) -> None:
        """Steps back from the part that failed, and writes down why, once."""
        if part == "sampling":
            self._collector = None
        if part == "tap":
            self._sentinel = None
        if part == "backward" and self._witness is not None:
            self._witness.close()
            self._witness = None
        if part == "attention":
            attention_tap.leave(self)
        if part == "replicas":
            self._replicas = None
        if part in ("batches", "start", "step") and self._batches is not None:
            self._batches.close()
            self._batches = None
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
