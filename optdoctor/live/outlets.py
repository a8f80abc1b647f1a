"""The sinks of one run: each is told what it takes, and none can hurt the others or the training.

A sink is no record: of what is written at every update or sample it gets the first ones whole and
later ones ever rarer, so that a long run costs it little.
"""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from optdoctor.findings import Diagnosis, Notice
from optdoctor.live.guard import Guard
from optdoctor.live.schedule import Schedule
from optdoctor.sinks import Histogram, Sample, Sink
from optdoctor.trace import Trace

ROWS = 1000
"""Values of one step channel that are passed on whole; of a million, 7482 are."""
SAMPLES = 32
"""Samples that are passed on whole; of the 950 that a million updates bring, 126 are."""


@dataclass
class Thinning:
    """Lets the first `whole` pass, and of n at most whole * (1 + ln(n / whole))."""

    whole: int
    _seen: int = 0
    _passed: int = 0

    def passes(self) -> bool:
        """Whether the next one passes; to be asked once for each."""
        self._seen += 1
        if self._seen > self.whole and (self._seen - self._passed) * self.whole < self._seen:
            return False
        self._passed = self._seen
        return True


class Outlets:
    """Tells the sinks. Those in `failed`, by the name of their part, are told only the end."""

    def __init__(
        self, sinks: Iterable[Sink], guard: Guard, failed: Container[str], schedule: Schedule
    ) -> None:
        self.sinks = list(sinks)
        self._guard, self._failed, self._schedule = guard, failed, schedule
        self._spent_s = 0.0
        self._rows: dict[str, Thinning] = {}
        self._samples = Thinning(SAMPLES)

    def tell(self, notices: list[Notice]) -> None:
        """Passes on what appeared, worsened or ended."""
        for sink in self._sound() if notices else []:
            with self._guard(_part(sink)):
                sink.tell(notices)

    def row(self, step: int, values: Mapping[str, float]) -> None:
        """Passes on step channels of one update, thinned channel by channel."""
        takers = [sink for sink in self._sound() if type(sink).row is not Sink.row]
        if not takers:
            return
        kept = {
            name: value
            for name, value in values.items()
            if self._rows.setdefault(name, Thinning(ROWS)).passes()
        }
        for sink in takers if kept else []:
            with self._guard(_part(sink), idle=True):
                sink.row(step, kept)

    def want_sample(self) -> bool:
        """Whether the sample at hand should be passed on; to be asked once for each.

        Showing samples may cost as much as all else that samples are for, unless the user has
        fixed their interval: it must not make them rare.
        """
        rest_s = self._schedule.work_s - self._spent_s
        affordable = self._schedule.interval is not None or self._spent_s <= rest_s
        return bool(self._takers()) and affordable and self._samples.passes()

    def histograms(
        self, make: Callable[[], Mapping[str, Mapping[str, Histogram]]]
    ) -> Mapping[str, Mapping[str, Histogram]]:
        """The histograms of the sample at hand, made only where a sink wants them."""
        if "histograms" not in self._failed and any(sink.histograms for sink in self._takers()):
            with self._guard("histograms"), self._timed():
                return make()
        return {}

    def sample(self, sample: Sample) -> None:
        """Passes on tensor channels of one update."""
        for sink in self._takers():
            with self._guard(_part(sink)), self._timed():
                sink.sample(sample)

    def close(self, diagnosis: Diagnosis, trace: Trace, cost: Callable[[], str]) -> None:
        """Passes on the last diagnosis, to those that failed too."""
        for sink in self.sinks:
            with self._guard(_part(sink)):
                sink.close(diagnosis, trace, cost())

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent_s += time.perf_counter() - start

    def _sound(self) -> list[Sink]:
        return [sink for sink in self.sinks if _part(sink) not in self._failed]

    def _takers(self) -> list[Sink]:
        return [sink for sink in self._sound() if type(sink).sample is not Sink.sample]


def _part(sink: Sink) -> str:
    return f"sink {type(sink).__name__}"
