"""The level of the loss before and after something that happened."""

from typing import NamedTuple

import numpy as np

from optdoctor.trace import Trace

WINDOW = 16
"""Losses on each side whose median is a level."""


class Levels(NamedTuple):
    """The loss around an event."""

    before: float
    after: float
    noise: float
    """Median change from row to row before it."""

    @property
    def risen(self) -> float:
        return self.after - self.before


def levels_around(trace: Trace, until: int, since: int) -> Levels | None:
    """Of the last losses up to step `until`, and of the first from step `since` on.

    None where too few are known on one side, or they are no sizes.
    """
    if "loss" not in trace.series:
        return None
    loss = trace.series["loss"]
    finite = np.isfinite(loss.values)
    before = loss.values[finite & (loss.steps <= until)][-WINDOW:]
    after = loss.values[finite & (loss.steps >= since)][:WINDOW]
    if len(before) < WINDOW or len(after) < WINDOW or np.median(before) <= 0:
        return None
    noise = float(np.median(np.abs(np.diff(before))))
    return Levels(float(np.median(before)), float(np.median(after)), noise)
