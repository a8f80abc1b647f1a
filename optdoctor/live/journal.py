"""What is known of one run: in memory as a recorder, on disk as a record, always the same."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from optdoctor.findings import Notice
from optdoctor.readers.run_record import Record, Segment, load, replay, scatter, settled
from optdoctor.reading.reader import Unreadable
from optdoctor.sinks.record import RecordWriter, set_aside
from optdoctor.trace import Event, Fact, Recorder, TensorInfo, Trace, Vitals

HostRow: TypeAlias = tuple[int, Mapping[str, float]]
"""A step and its step channels."""


class Journal:
    """Rows, samples, events and facts of one run."""

    def __init__(self, out: Path | None, tensor_channels: tuple[str, ...]) -> None:
        self._out, self._tensor_channels = out, tensor_channels
        self._writer: RecordWriter | None = None
        self._recorder = Recorder()
        self._columns: tuple[int, ...] = ()
        self._newest: dict[str, int] = {}
        self.facts: dict[str, Fact] = {}
        self.events: list[Event] = []
        self.notes: dict[str, str | bool | None] = {}
        """What run.json says beside facts."""
        self.last_step = 0
        self.failure: Exception | None = None
        """Why the record on disk ended early; memory goes on."""

    def open(self, facts: Mapping[str, Fact], resumed: bool, first_step: int | None) -> None:
        """Begins the record. A resumed run goes on with the one in the folder, if there is one.

        Rows from `first_step` on, where it is given, are left out: they will be made again. Any
        other start sets an old record aside. `retrack` must follow.
        """
        self.facts = dict(facts)
        segments: tuple[Segment, ...] = ()
        if self._out is None:
            return
        record = _load(self._out) if resumed else None
        if record is not None:
            self._recorder = Recorder((), **record.capacities)
            self.last_step = replay(self._out, record, self._recorder, before=first_step)
            series = self._recorder.trace({}).series
            self._newest = {name: int(s.steps[-1]) for name, s in series.items() if s.steps.size}
            self.events = list(record.events)
            self.facts = record.facts | self.facts
            segments = record.segments
        try:
            if record is None:
                set_aside(self._out)
            self._writer = RecordWriter(self._out, segments)
        except OSError as error:  # memory is enough to watch
            self.failure = error

    def retrack(self, tensors: tuple[TensorInfo, ...], next_step: int) -> None:
        """Takes a new table of tensors: known ones by name and shape keep their place."""
        known = list(self._recorder.tensors)
        place = {(t.name, t.shape): i for i, t in enumerate(known)}
        columns = []
        for tensor in tensors:
            at = place.setdefault((tensor.name, tensor.shape), len(known))
            if at == len(known):
                known.append(tensor)
            known[at] = replace(tensor, order=at)
            columns.append(at)
        self._columns = tuple(columns)
        self._recorder.widen(tuple(known))
        self._begin(next_step)

    def amend(self, news: Mapping[int, Mapping[str, Any]]) -> None:
        """Adds to what is known of some tensors: {place in the last table: fields}."""
        if not news:
            return
        known = list(self._recorder.tensors)
        for position, fields in news.items():
            at = self._columns[position]
            known[at] = replace(known[at], **fields)
        self._recorder.widen(tuple(known))
        self._describe()

    def rows(self, rows: Iterable[tuple[int, Mapping[str, float]]]) -> list[HostRow]:
        """Adds step channels of updates; of several numbers for one step the first counts.

        Returns those that counted. Many at once cost a fraction of the same one by one.
        """
        columns: dict[str, tuple[list[int], list[float]]] = {}
        counted: list[HostRow] = []
        for step, values in rows:
            fresh = {name: v for name, v in values.items() if self._newest.get(name, -1) < step}
            if not fresh:
                continue
            counted.append((step, fresh))
            for name, value in fresh.items():
                self._newest[name] = step
                steps, numbers = columns.setdefault(name, ([], []))
                steps.append(step)
                numbers.append(value)
        for name, (steps, numbers) in columns.items():
            self._recorder.extend(name, np.array(steps, np.int64), np.array(numbers, np.float64))
        for step, _ in counted:
            self.last_step = max(self.last_step, step)
        if self._writer is not None and counted and not self._writer.knows(columns):
            self._writer.learn(columns)
            self._begin(self.last_step + 1)
        self._write(lambda writer: writer.rows(counted))
        return counted

    def row(self, step: int, values: Mapping[str, float]) -> Mapping[str, float]:
        """`rows` of one; returns what counted."""
        return dict(self.rows([(step, values)])).get(step, {})

    def sample(self, step: int, tensors: Mapping[str, NDArray[np.float32]]) -> None:
        """Adds tensor channels of one sampled update, in the order of the last table given."""
        width = len(self._recorder.tensors)
        wide = {name: scatter(row, self._columns, width) for name, row in tensors.items()}
        self._recorder.add(Vitals(step, tensors=wide))
        self.last_step = max(self.last_step, step)
        self._write(lambda writer: writer.sample(step, tensors))

    def event(self, event: Event) -> None:
        """Adds an event."""
        self.events.append(event)
        self._write(lambda writer: writer.events([event]))

    def learn(self, facts: Mapping[str, Fact]) -> None:
        """Adds or changes facts."""
        changed = {k: v for k, v in facts.items() if v is not None and self.facts.get(k) != v}
        if changed:
            self.facts |= changed
            self._describe()

    def notices(self, notices: Iterable[Notice]) -> None:
        """Writes down what was announced."""
        self._write(lambda writer: writer.notices(notices))

    def flush(self) -> None:
        """Hands every row to the operating system."""
        self._write(lambda writer: writer.flush())

    def close(self) -> None:
        """Ends the record."""
        self._write(lambda writer: writer.close())
        self.notes["closed"] = True
        self._describe()
        self._writer = None

    def trace(self, only: frozenset[str] | None = None) -> Trace:
        """A snapshot, of all channels or of those declared."""
        return self._recorder.trace(self.facts, settled(self.events), only=only)

    def _begin(self, first_step: int) -> None:
        self._write(lambda writer: writer.begin(first_step, self._columns, self._tensor_channels))
        self._describe()

    def _describe(self) -> None:
        recorder = self._recorder
        self._write(
            lambda writer: writer.describe(
                self.facts, recorder.tensors, recorder.capacities, **self.notes
            )
        )

    def _write(self, action: Callable[[RecordWriter], None]) -> None:
        if self._writer is None:
            return
        try:
            action(self._writer)
        except Exception as error:  # a full disk ends the record, not what is known in memory
            writer, self._writer, self.failure = self._writer, None, error
            with suppress(Exception):
                writer.close()


def _load(folder: Path) -> Record | None:
    try:
        return load(folder)
    except Unreadable:
        return None
