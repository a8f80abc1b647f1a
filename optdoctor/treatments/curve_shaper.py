"""Curve shaper: rates are lowered for a while where the curve of the loss bends upward sharply.

The loss of single batches is mostly noise, and its second difference more so. What is looked at are
medians of stretches of `window` losses, the newest three of which are A, B and C: the curve is
sharp where both

    C - B > limit * e    and    C - 2 B + A > limit * e * sqrt(3),

with e the standard error of C - B. The first condition is because a loss that falls ever more
slowly bends upward too, and is healthy. e is the largest of what the noise of single losses makes
of it if each is independent, 1.2533 sigma sqrt(2 / window) with sigma from the median size of the
differences between neighbours; of 1.4826 times the median deviation of such differences in the past
13 stretches, since losses are often not independent; and of 1 % of B.

It answers a rise once it is there and says nothing of what caused it; it is not the curvature by
which a largest stable rate is known. A rate that is far too high it does not cure: the floor is a
half. In 270 000 made-up losses of independent noise (normal, Student's t of 3 degrees, log-normal)
it never acted; where each loss keeps half of the deviation of the one before, in 1 of 5550 looks,
and where it keeps 0.9 of it in 15.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from optdoctor.treatments.multiplied import Multiplied

PACE = 0.7
"""The factor of one change."""
CALM = 4
"""Looks in a row below half of the limit after which one change is taken back."""
HISTORY, FEW = 16, 4
"""Stretches whose medians are kept, and past differences of them below which they say nothing."""
LEAST = 0.01
"""Of the level."""
OF_MEDIAN = math.sqrt(math.pi / 2)
"""What a median varies more than a mean (normal noise, large windows)."""
TO_SIGMA = 1.4826
"""Standard deviation over median size (normal noise)."""


class CurveShaper(Multiplied):
    """Multiplies all rates by 0.7 for each sharp bend, down to `floor`, and takes one back after
    every four looks in a row that were calm; never above 1. It looks each `window` losses.

    It has to be told the losses: `observe({"loss": 0.3})`, which the doctor calls by itself with
    what is logged. One bad batch moves no median. A loss that is not finite is left out. Refuses
    optimizers that do not move by the rate of their groups.
    """

    name = "curve-shaper"
    safety = "risky"

    def __init__(self, *, window: int = 16, limit: float = 5.0, floor: float = 0.5) -> None:
        super().__init__()
        if window < 4:
            raise ValueError(f"window must be at least 4 losses, not {window!r}")
        if not 0 < limit < math.inf:
            raise ValueError(f"limit must be above 0 standard errors, not {limit!r}")
        if not 0 < floor <= 1:
            raise ValueError(f"floor must be above 0 and at most 1, not {floor!r}")
        self.window, self.limit, self.floor = window, limit, floor
        self._forget()

    def _forget(self) -> None:
        self._now, self._calm, self._new = 1.0, 0, 0
        self._losses: deque[float] = deque(maxlen=3 * self.window)
        self._medians: deque[float] = deque(maxlen=HISTORY)

    def begin(self) -> None:
        """Nothing is known yet."""
        self._forget()

    def factor_now(self) -> float:
        """What is left of the rates."""
        return self._now

    def observe(self, values: Mapping[str, float]) -> None:
        """Takes what the loop has logged; looks where a stretch is full."""
        loss = float(values.get("loss", math.nan))
        if not self.applied or not math.isfinite(loss):
            return
        self._losses.append(loss)
        self._new += 1
        if self._new < self.window:
            return
        self._new = 0
        losses = list(self._losses)
        self._medians.append(median(losses[-self.window :]))
        if len(losses) == 3 * self.window:
            self._look(sharpness(losses, list(self._medians)))

    def _look(self, sharp: float) -> None:
        old = self._now
        self._calm = self._calm + 1 if sharp < self.limit / 2 else 0
        if sharp > self.limit:
            self._now = max(old * PACE, self.floor)
        elif self._calm >= CALM:
            self._now, self._calm = raised(old), 0
        if self._now != old:
            why = "bends upward" if self._now < old else "has been calm"
            self.note(
                f"{self.name}: the loss {why} ({sharp:.3g} standard errors, limit {self.limit:g}),"
                f" rates go from {old:.3g} to {self._now:.3g} of what is set",
                old,
                self._now,
            )

    def state_dict(self) -> dict[str, Any]:
        """The factor and the losses that it looks at."""
        return {
            "now": self._now,
            "calm": self._calm,
            "new": self._new,
            "losses": list(self._losses),
            "medians": list(self._medians),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes it up where it was left."""
        if state:
            self._now, self._calm = float(state["now"]), int(state["calm"])
            self._new = int(state["new"])
            self._losses = deque(map(float, state["losses"]), maxlen=3 * self.window)
            self._medians = deque(map(float, state["medians"]), maxlen=HISTORY)


def raised(factor: float) -> float:
    """One change taken back; exactly 1 where that is 1 but for rounding."""
    up = factor / PACE
    return 1.0 if up > 1 - 1e-9 else up


def sharpness(losses: Sequence[float], medians: Sequence[float]) -> float:
    """The smaller of bend and rise, in standard errors of each. `losses` of the newest three
    stretches, `medians` of at least those."""
    a, b, c = medians[-3:]
    noise = TO_SIGMA / math.sqrt(2) * median([abs(y - x) for x, y in pairwise(losses)])
    error = max(OF_MEDIAN * noise * math.sqrt(2 / (len(losses) // 3)), LEAST * abs(b), 1e-30)
    past = [y - x for x, y in pairwise(medians[:-1])]
    if len(past) >= FEW:
        middle = median(past)
        error = max(error, TO_SIGMA * median([abs(one - middle) for one in past]))
    return min((c - b) / error, (c - 2 * b + a) / (math.sqrt(3) * error))


INTERVENTION = CurveShaper
