"""What the loss lately was, and from which on it is far out."""

import statistics
from collections import deque
from collections.abc import Iterable
from math import inf, isfinite

LOSSES, FEWEST = 128, 32
"""Sound losses that it compares with, and the fewest."""
DEVIATIONS = 8.0
"""Robust ones above the median of those losses from which one is far out."""
LEAST_DEVIATION = 0.02
"""Of the median: a loss that hardly varies has no smaller one."""
NORMAL = 1.4826
"""Standard deviations of a normal distribution in its median absolute deviation."""


class UsualLoss:
    """Losses of the past that were sound: finite, and not far above the median of those before."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=LOSSES)

    def take(self, losses: Iterable[float]) -> str:
        """Learns what is sound, and says of the last that is not what is wrong with it."""
        told = ""
        for loss in losses:
            if isfinite(loss) and not loss > self.highest():
                self._losses.append(loss)
                continue
            told = f"the loss is {loss:.4g}"
            if self._losses:
                told += f", lately its median was {statistics.median(self._losses):.4g}"
        return told

    def highest(self) -> float:
        """The loss above which one is far out; infinite as long as too few are known."""
        if len(self._losses) < FEWEST:
            return inf
        median = statistics.median(self._losses)
        deviation = NORMAL * statistics.median(abs(loss - median) for loss in self._losses)
        return median + DEVIATIONS * max(deviation, LEAST_DEVIATION * abs(median))

    def forget(self) -> None:
        """Begins anew."""
        self._losses.clear()

    def state(self) -> list[float]:
        """The losses that it knows."""
        return [*self._losses]

    def load(self, losses: Iterable[float]) -> None:
        """Knows those and no others."""
        self._losses.clear()
        self._losses.extend(float(loss) for loss in losses)
