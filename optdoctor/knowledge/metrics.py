"""Metrics of a task by their names: which way is better, and which are of the evaluation."""

import re
from typing import NamedTuple

import numpy as np

from optdoctor.curves.level import HUGE, Floats
from optdoctor.store import IntArray
from optdoctor.trace import Trace

# Not compiled: few runs have metrics, and compiling them all takes a millisecond.
RISING = (
    r"(^|[_/.])(acc|accuracy|f1|bleu|rouge\w?|auc|auroc|map|precision|recall|m?iou|dice|top|mcc)"
    r"($|[_/.@\d(])"
)
FALLING = r"(^|[_/.])(wer|cer|err|error|rmse|mse|mae|fid)($|[_/.@\d(])"
EVALUATED = r"(^|[_/.])(eval|val|valid|validation|dev|test)"
"""Names of metrics, in either case: those that should rise, those that should fall, and those of
the evaluation."""
MOST_GAINED = 1e3
"""Largest gain that is told, as a share: the value before may be 0."""
LOSS = r"(^|[_/.])(loss|nll|xent|cross_?entropy)$"
"""Names of the losses on further sets of data, or of parts of the loss."""


def direction(name: str, told: object = None) -> int:
    """1 where a metric should rise, -1 where it should fall, 0 where nobody knows.

    `told`: the fact `metric_direction` of it.
    """
    if told:
        return 1 if str(told).lower() in ("rise", "up", "max", "maximize") else -1
    if re.search(RISING, name, re.I):
        return 1
    return -1 if re.search(FALLING, name, re.I) else 0


def is_evaluated(name: str) -> bool:
    """Whether it names a number of the evaluation."""
    return re.search(EVALUATED, name, re.I) is not None


def is_loss(name: str) -> bool:
    """Whether it names another loss, as that on a further set of data."""
    return re.search(LOSS, name, re.I) is not None


class Course(NamedTuple):
    """A metric of the evaluation, its finite values only."""

    channel: str
    name: str
    steps: IntArray  # [m]
    values: Floats  # [m]
    sign: int  # 1 where they should rise, -1 where they should fall
    is_loss: bool  # on a further set of data, or a part of the loss

    def change(self, step: int) -> tuple[float, float, float] | None:
        """(value at that step, value at the end, gain as a share of the first), medians of three.

        None where there is no value before or none after. The gain is negative for a loss of
        quality, and at most `MOST_GAINED`.
        """
        before, since = np.flatnonzero(self.steps <= step), self.values[self.steps > step]
        if not before.size or not since.size:
            return None
        then = float(np.median(self.values[max(before[-1] - 1, 0) : before[-1] + 2]))
        now = float(np.median(since[-3:]))
        gain = self.sign * (now - then)
        return then, now, round(gain / max(abs(then), 1e-9, abs(gain) / MOST_GAINED), 3)


def courses(trace: Trace, evaluations: int) -> list[Course]:
    """The metrics of the evaluation of which it is known which way is better.

    By their names; where none is named so, those that are logged as seldom as the `evaluations`.
    """
    names = [name for name in trace.series if name.startswith("metric:") and "best" not in name]
    rows = trace.series["loss"].rows if "loss" in trace.series else 0
    names = [n for n in names if is_evaluated(n.removeprefix("metric:"))] or [
        n for n in names if trace.series[n].rows <= evaluations < rows
    ]
    found = []
    for channel in names:
        name, series = channel.removeprefix("metric:"), trace.series[channel]
        sign = direction(name, trace.facts.get(f"metric_direction:{name}"))
        kept = np.isfinite(series.values)
        values = np.clip(np.asarray(series.values[kept], np.float64), -HUGE, HUGE)
        steps = np.asarray(series.steps[kept], np.int64)
        if sign or is_loss(name):
            found.append(Course(channel, name, steps, values, sign or -1, is_loss(name)))
    return found
