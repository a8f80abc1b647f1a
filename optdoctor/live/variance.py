"""How much the norm of the gradient varies from update to update."""

import math
from collections import deque

WINDOW = 50
"""Norms that the ratio is taken over, as its channel says."""
SMALL = 1e-3
"""Share of an earlier sum below which its rounding errors would be seen."""


class GradVarianceRatio:
    """Variance over squared mean of the last 50 finite norms; each is looked at once."""

    def __init__(self) -> None:
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._sum = self._squares = self._peak = 0.0
        """Of the norms, of their squares; the largest sum since both were added up anew."""
        self._age = 0

    def __call__(self, norm: float | None) -> float | None:
        """The ratio with this norm among them; None as long as there are fewer, or all are 0."""
        if norm is None or not math.isfinite(norm):
            return None
        self._age += 1
        if len(self._norms) == WINDOW:
            gone = self._norms[0]
            self._sum, self._squares = self._sum - gone, self._squares - gone * gone
        self._norms.append(norm)
        self._sum, self._squares = self._sum + norm, self._squares + norm * norm
        self._peak = max(self._peak, self._sum)
        if self._age % WINDOW == 0 or self._sum < SMALL * self._peak:  # what rounding left goes
            self._sum, self._squares = math.fsum(self._norms), math.fsum(n * n for n in self._norms)
            self._peak = self._sum
        if len(self._norms) < WINDOW or not 0 < self._sum < math.inf:
            return None
        ratio = self._squares * WINDOW / self._sum**2 - 1
        return max(ratio, 0.0) if math.isfinite(ratio) else None
