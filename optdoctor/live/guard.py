"""Keeps what fails inside the doctor from the training, and bills what it costs."""

import time
from collections.abc import Callable
from types import TracebackType

from optdoctor.live.schedule import Schedule


class Guard:
    """A context manager to enter again and again, also inside itself; `guard("part")` names a part.

    An `Exception` inside ends there and is handed to `on_failure` with the part's name; anything
    graver, as a KeyboardInterrupt, passes. Time is billed once, by the outermost.
    """

    def __init__(self, bill: Schedule, on_failure: Callable[[str, Exception], None]) -> None:
        self._bill, self._on_failure = bill, on_failure
        self._parts: list[tuple[str, float]] = []

    def __call__(self, part: str) -> "Guard":
        """Names the part of the doctor that is at work next."""
        self._parts.append((part, time.perf_counter()))
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> bool:
        part, start = self._parts[-1]
        handled = isinstance(error, Exception)
        if isinstance(error, Exception):
            self._on_failure(part, error)
        self._parts.pop()
        if not self._parts:
            self._bill.billed_s += time.perf_counter() - start
        return handled
