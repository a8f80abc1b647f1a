"""Keeps what fails inside the doctor from the training, and bills what it costs."""

import time
from collections.abc import Callable
from types import TracebackType

from optdoctor.live.schedule import Schedule

IDLE = ("log", "tap", "backward", "sampling", "step", "bill")
"""Parts at work at every update; the others, and these at a sampled update, are work."""

ENTRY_TRIES = 16
DEEPEST = 64
"""Parts within one another, beyond which the outermost are what a KeyboardInterrupt left behind."""


class Guard:
    """A context manager to enter again and again, also inside itself; `guard("part")` names a part.

    An `Exception` inside ends there and is handed to `on_failure` with the part's name; anything
    graver, as a KeyboardInterrupt, passes. Time is billed once, to the innermost part.
    """

    def __init__(self, bill: Schedule, on_failure: Callable[[str, Exception], None]) -> None:
        self._bill, self._on_failure = bill, on_failure
        self._parts: list[tuple[str, bool, float]] = []
        self._inner_s: list[float] = []
        """For each part what parts within it were billed for."""
        self._entry_s = 0.0
        self._entry_s = self._measured_entry_s()
        """What entering a part costs that lies between no two readings of the clock."""

    def __call__(self, part: str, *, idle: bool = False) -> "Guard":
        """Names the part of the doctor that is at work next; `idle` if at every update."""
        self._parts.append((part, idle or part == "log", time.perf_counter()))
        self._inner_s.append(0.0)
        if len(self._parts) > DEEPEST:
            del self._parts[:-DEEPEST], self._inner_s[:-DEEPEST]
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> bool:
        part, idle, start = self._parts[-1]
        handled = isinstance(error, Exception)
        if isinstance(error, Exception):
            self._on_failure(part, error)
        self._parts.pop()
        inner_s, spent_s = self._inner_s.pop(), time.perf_counter() - start + self._entry_s
        idle = idle or (part in IDLE and not self._bill.sampling)
        self._bill.add(spent_s - inner_s, idle=idle)
        if self._inner_s:
            self._inner_s[-1] += spent_s
        return handled

    def _measured_entry_s(self) -> float:
        """The least of some tries, so that nothing is billed that the machine did meanwhile."""
        kept, self._bill = self._bill, Schedule()
        tries = []
        for _ in range(ENTRY_TRIES):
            before, billed_s = time.perf_counter(), self._bill.billed_s
            with self("log"):
                pass
            tries.append(time.perf_counter() - before - (self._bill.billed_s - billed_s))
        self._bill = kept
        return max(min(tries), 0.0)
