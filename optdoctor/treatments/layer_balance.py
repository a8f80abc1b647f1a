"""Factors of the rates of layers, from how far the layers move: arithmetic alone."""

import math
from collections.abc import Sequence
from statistics import median

SLACK = math.log(1.25)
"""How far, in the logarithm, a wish has to differ from what is for anything to move."""
PATIENCE = 3
"""Looks in a row in which the same layer has to."""
PACE = 0.2
"""Of the way that is then gone at each look."""
FRESH = 0.3
"""Weight of the newest look in what is known of a layer."""
TINY = 0.1
"""Of the median size of layers: one below it began near zero, has no size to move by, and is left
alone until it has grown."""


class Balance:
    """The logarithms of the factors, whose mean over layers is 0, and what they follow from."""

    def __init__(self, count: int, low: float, high: float, alpha: float) -> None:
        self.low, self.high, self.alpha = low, high, alpha
        self.logs = [0.0] * count
        self.known: list[float | None] = [None] * count
        """Of each layer the logarithm of movement over size as it would be at the user's rate."""
        self.rows = [0] * count

    def learn(self, ratios: Sequence[tuple[float, float]]) -> None:
        """(movement over size, size) of each layer in one step made with these factors. One that
        stood still, or is not finite, tells nothing."""
        least = TINY * median([size for _, size in ratios])
        for i, (ratio, size) in enumerate(ratios):
            if not (math.isfinite(ratio) and ratio > 0):
                continue
            if size < least:
                self.known[i] = None
                continue
            base, known = math.log(ratio) - self.logs[i], self.known[i]
            self.known[i] = base if known is None else known + FRESH * (base - known)

    def move(self) -> bool:
        """A fifth of the way to the wishes, where one has differed for long enough; all go
        together, so that the mean stays 0 and none leaves its bounds."""
        wishes = self.wishes()
        off = [abs(wish - log) > SLACK for wish, log in zip(wishes, self.logs, strict=True)]
        self.rows = [row + 1 if one else 0 for row, one in zip(self.rows, off, strict=True)]
        if max(self.rows) < PATIENCE:
            return False
        self.logs = [log + PACE * (w - log) for log, w in zip(self.logs, wishes, strict=True)]
        return True

    def wishes(self) -> list[float]:
        """The logarithms as they should be."""
        judged = [known for known in self.known if known is not None]
        if len(judged) < 2:
            return list(self.logs)
        middle = median(judged)
        wanted = [None if k is None else self.alpha * (middle - k) for k in self.known]
        return balanced(wanted, self.low, self.high)


def balanced(wanted: Sequence[float | None], low: float, high: float) -> list[float]:
    """The wanted logarithms plus one number, each then held between `low` < 0 < `high`, such that
    their sum is 0; where none is wanted, 0."""
    known = [one for one in wanted if one is not None]
    reach = max(high, -low) + max(map(abs, known))
    below, above = -reach, reach
    for _ in range(60):  # halving: as near as floats come
        shift = (below + above) / 2
        total = sum(min(max(one + shift, low), high) for one in known)
        below, above = (shift, above) if total < 0 else (below, shift)
    return [0.0 if one is None else min(max(one + shift, low), high) for one in wanted]
