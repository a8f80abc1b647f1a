"""Says when a loss is worth a closer look."""

import math
from collections import deque

WINDOW, MADS = 64, 8.0
"""A loss further than so many median deviations from the median of the last so many."""
LEAST = 16


class LossAlarm:
    """Looks at each loss once."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._was_finite = True

    def __call__(self, loss: float) -> str | None:
        """What is odd about this loss, None if nothing is, or nothing new."""
        if not math.isfinite(loss):
            first, self._was_finite = self._was_finite, False
            return "loss not finite" if first else None
        self._was_finite = True
        odd = len(self._window) >= LEAST and self._is_far(loss)
        self._window.append(loss)
        return f"loss {loss:.4g} is far from its last {len(self._window)}" if odd else None

    def _is_far(self, loss: float) -> bool:
        ordered = sorted(self._window)
        middle = ordered[len(ordered) // 2]
        deviation = sorted(abs(x - middle) for x in ordered)[len(ordered) // 2]
        return abs(loss - middle) > MADS * deviation > 0
