"""Says when a loss or a gradient is worth a closer look."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

WINDOW, MADS = 64, 8.0
"""A loss further than so many median deviations from the median of the last so many."""
LEAST = 16
LOST = "loss not finite"
KEPT = 8
"""Updates in a row without gradients set to zero that are no oversight of a loop which does."""
RENEW = 8
"""Losses after which median and deviation are computed anew: at every loss they cost too much."""


class LossAlarm:
    """Looks at each loss once."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._low, self._high = -math.inf, math.inf
        self._age = 0
        self._was_finite = True
        self.is_low = False
        """Whether what was odd about the last loss is that it was low."""

    def __call__(self, loss: float) -> str | None:
        """What is odd about this loss, None if nothing is, or nothing new."""
        if not math.isfinite(loss):
            first, self._was_finite, self.is_low = self._was_finite, False, False
            return LOST if first else None
        self._was_finite = True
        odd, self.is_low = not self._low <= loss <= self._high, loss < self._low
        self._window.append(loss)
        self._age += 1
        if self._age % RENEW == 0 and self._age >= LEAST:
            self._renew()
        return f"loss {loss:.4g} is far from its last {len(self._window)}" if odd else None

    def _renew(self) -> None:
        middle = _middle(self._window)
        reach = MADS * _middle(abs(loss - middle) for loss in self._window)
        if reach > 0:
            self._low, self._high = middle - reach, middle + reach


def _middle(values: Iterable[float]) -> float:
    """The median; of an even number of values, of which a full window has one, the mean of two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


class GradientAlarm:
    """Looks at the norm of each update's gradient once."""

    def __init__(self) -> None:
        self._was_finite = True

    def __call__(self, norm: float) -> str | None:
        """What is odd about this norm, None if nothing is, or nothing new."""
        first, self._was_finite = self._was_finite, math.isfinite(norm)
        return "gradient not finite" if first and not self._was_finite else None


class KeptAlarm:
    """Counts the updates in a row that began with the gradient of the one before."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, kept: float) -> str | None:
        """That they have become too many, once."""
        self._count = self._count + 1 if kept == 1 else 0
        return f"gradients kept over {KEPT} updates" if self._count == KEPT else None


class Alarms:
    """Looks at each row of an update once."""

    def __init__(self) -> None:
        self._loss, self._gradient, self._kept = LossAlarm(), GradientAlarm(), KeptAlarm()

    def __call__(self, values: Mapping[str, float]) -> Iterator[tuple[str, float, bool]]:
        """(what is odd, the number, whether its batch may be to blame) for each number that is."""
        norm = values.get("grad_norm", values.get("grad_norm_used"))
        looks: tuple[tuple[Callable[[float], str | None], float | None], ...] = (
            (self._loss, values.get("loss")),
            (self._gradient, norm),
            (self._kept, values.get("gradients_kept")),
        )
        for alarm, value in looks:
            if value is not None and (odd := alarm(value)):
                low = alarm is self._loss and self._loss.is_low
                yield odd, value, not low and alarm is not self._kept
