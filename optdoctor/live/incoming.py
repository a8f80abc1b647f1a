"""Rows of updates on their way into the record: together, and without waiting for a device."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from optdoctor.live.alarm import Alarms
from optdoctor.live.journal import Journal
from optdoctor.live.outlets import Outlets
from optdoctor.live.rows import Crossing, Row, on_device
from optdoctor.live.variance import GradVarianceRatio

DRAIN = 256
"""Rows that may wait for one transfer from their device and one entry in the record."""
WAIT_S = 1.0
"""How long they may where no device is waited for."""
SKIPPED = "step_skipped"


class Odd(NamedTuple):
    """A number that is worth a closer look."""

    step: int
    what: str
    value: float
    of_batch: bool
    """Whether the batch may be to blame."""
    row: Mapping[str, float]
    """All that its update told."""


class Incoming:
    """Lets rows wait, looks at each number once as soon as it is known, and writes them down."""

    def __init__(
        self,
        journal: Journal,
        outlets: Outlets,
        on_skip: Callable[[int], None],
        *,
        prompt: bool = False,
    ) -> None:
        """`on_skip` is told the step of an update that turns out not to have been made. `prompt`
        fetches each row at once from its device, still without waiting for it."""
        self._prompt, self.known = prompt, 0
        """Up to which step numbers were looked at."""
        self._journal, self._outlets, self._on_skip = journal, outlets, on_skip
        self._alarms, self._variance = Alarms(), GradVarianceRatio()
        self._waiting: list[Row] = []
        self._num_known = 0
        """Of those, how many numbers are known, and were looked at."""
        self._there = False
        """Whether some of them wait on a device."""
        self._crossing = Crossing()
        self._sent = time.perf_counter()
        self._marked: set[int] = set()
        """Waiting updates whose row holds, on a device, whether they were made."""
        self._unmade: set[int] = set()
        """Of those, the ones that were not."""

    @property
    def can_be_told(self) -> bool:
        """Whether rows wait that no device has to be waited for."""
        return bool(self._waiting) and not self._there

    def mark(self, step: int) -> None:
        """The row of this update will tell, as `step_skipped`, whether it was made."""
        self._marked.add(step)

    def was_skipped(self, step: int) -> bool:
        """Whether a marked update was not made; waits for its mark."""
        if step in self._marked:
            self.add([], now=True, wait=True)
        return step in self._unmade

    def add(self, rows: list[Row], *, now: bool = False, wait: bool = False) -> list[Odd]:
        """Takes rows, in rising order of steps; what is odd in those that are known by now.

        `now` writes down all that can be; `wait` waits for what lies on a device.
        """
        self._waiting += rows
        self._there = self._there or on_device(rows)
        odd: list[Odd] = []
        if not self._there:
            odd, self._num_known = self._odd(rows), self._num_known + len(rows)
            now = now or bool(odd) or time.perf_counter() - self._sent > WAIT_S
        if now or len(self._waiting) >= DRAIN or (self._prompt and self._there):
            self._crossing.send(self._waiting, self._num_known)
            self._waiting, self._num_known, self._there = [], 0, False
            self._sent = time.perf_counter()
        return odd + self._arrived(wait=wait) if self._crossing else odd

    def _arrived(self, *, wait: bool) -> list[Odd]:
        odd: list[Odd] = []
        for rows, num_known in self._crossing.arrived(wait=wait):
            self._learn_skips(rows)
            for _, values in rows:
                if (ratio := self._variance(values.get("grad_norm"))) is not None:
                    values["grad_variance_ratio"] = ratio
            odd += self._odd(rows[num_known:])
            for step, counted in self._journal.rows(rows):
                self._outlets.row(step, counted)
        return odd

    def _odd(self, rows: Iterable[tuple[int, Any]]) -> list[Odd]:
        odd = []
        for step, values in rows:
            odd += [Odd(step, *each, values) for each in self._alarms(values)]
            self.known = max(self.known, step)
        return odd

    def _learn_skips(self, rows: Iterable[tuple[int, dict[str, float]]]) -> None:
        for step, values in rows:
            if step not in self._marked or SKIPPED not in values:
                continue
            self._marked.discard(step)
            if not values.pop(SKIPPED):
                continue
            for name in ("grad_norm", "grad_norm_used", "lr"):
                values.pop(name, None)
            values[SKIPPED] = 1.0
            self._unmade.add(step)
            self._on_skip(step)
