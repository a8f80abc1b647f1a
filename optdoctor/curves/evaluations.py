"""Evaluations beside the training loss: where they turn, how far they rise, and from what noise."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from optdoctor.curves.level import HUGE, SOFT, Curve, Floats, softening
from optdoctor.store import IntArray, Series

LEAST = 4
"""Evaluations below which there is no course: a minimum and three after it."""
ENOUGH = 10
"""Evaluations from which three neighbours are averaged; below, their order is tested too."""
TIED = 0.1
"""Share of values equal to the one before above which values were rounded."""
COUNTED = 20
"""Smallest steps up to which a metric is a count of few cases, with the noise of a count."""


class Turn(NamedTuple):
    """Where m values that should fall have their minimum, and how they end above it.

    Figures are rounded: what is printed was judged.
    """

    best: int  # index of the minimum
    low: float  # the minimum, of means of three from ENOUGH values on
    end: float  # median of the last ones
    tail: int  # how many those are: 3 or an eighth
    height: float  # end above the minimum
    errors: float  # height in its standard errors, over 1 + 4 / m
    chance: float  # of so rising an order after a minimum, without a trend; 1 without three
    since: float  # share of values after the minimum
    kept: float  # height over the highest rise since
    rebound: float  # height over the largest rise before the minimum, which came back; HUGE if none
    jump: float  # gap between all values before one and all from it on, over height
    jump_at: int  # index of that one, which at least two follow


class Training(NamedTuple):
    """The training loss at the steps of m evaluations, on the log scale of its curve."""

    level: Floats  # [m]
    losses: Floats  # [m] losses of that level
    error: float  # standard error of a difference of two levels
    solved: bool  # it ends near zero, where SOFT hides how far it still falls


class Evaluations(NamedTuple):
    """m evaluations and the training loss beside them. Figures are rounded: judged as printed."""

    steps: IntArray  # [m]
    level: Floats  # [m] log(loss + soft)
    soft: float  # SOFT of the first losses
    turn: Turn
    best_step: int
    training: Training | None  # None where it was not logged
    fall: float  # of training since the minimum, log
    fall_errors: float  # in standard errors
    later_fall: float  # of training over the later half of the evaluations, log
    later_errors: float  # in standard errors
    later_share: float  # fall of the evaluation loss over that

    def loss_at(self, level: float | np.floating[Any]) -> float:
        """The loss that has this level."""
        return max(math.exp(level) - self.soft, 0.0)


def evaluations(
    series: Series, loss: Series | None, line: Curve | None, resumes: Sequence[int] = ()
) -> Evaluations | None:
    """The evaluations of a run; None for fewer than `LEAST` finite ones above 0.

    An evaluation before the first training loss is left out: it is that of other weights, or of a
    try with a few batches. Where most of a rise is one jump at a resume, only what comes after
    that resume is one course.

    Args:
        loss: the training loss, and `line` its curve, where it has enough rows for one.
        resumes: steps of resumes.
    """
    kept = np.isfinite(series.values) & (series.values > 0)
    steps = np.asarray(series.steps[kept], np.int64)
    losses = np.minimum(np.asarray(series.values[kept], np.float64), HUGE)
    if loss is not None and loss.steps.size and steps.size and steps[0] < loss.starts[0]:
        steps, losses = steps[1:], losses[1:]
    if len(steps) < LEAST:
        return None
    soft = softening(losses)
    level = np.log(losses + soft)
    found = turn(level)
    if start := _joint(steps, level, found, resumes):
        steps, level = steps[start:], level[start:]
        if len(steps) < LEAST:
            return None
        found = turn(level)
    training = _training(loss, line, steps)
    count = len(steps)
    half = slice(count // 2, count)
    later_eval = _slope(level[half])
    fall = 0.0 if training is None else float(training.level[found.best] - training.level[-1])
    later = 0.0 if training is None else _slope(training.level[half])
    error = 1.0 if training is None else training.error
    return Evaluations(
        steps=steps,
        level=level,
        soft=soft,
        turn=found,
        best_step=int(steps[found.best]),
        training=training,
        fall=round(fall, 3),
        fall_errors=round(fall / error, 2),
        later_fall=round(later, 3),
        later_errors=round(later / error, 2),
        later_share=round(later_eval / later, 3) if later > 0 else math.inf,
    )


def turn(level: Floats, noise: float = 0.0) -> Turn:
    """The turn of m >= `LEAST` finite values that should fall, in one unit of a log or a share.

    Args:
        noise: least standard deviation of one value.
    """
    count = len(level)
    smooth = _of_three(level) if count >= ENOUGH else level
    at = int(np.argmin(smooth))
    near = level[max(at - 1, 0) : at + 2]
    best = at if count < ENOUGH else max(at - 1, 0) + int(np.argmin(near))
    tail = max(3, count // 8)
    low, end = float(smooth[at]), float(np.median(level[-tail:]))
    height = end - low
    error = max(_noise(level), noise) * math.sqrt(1 / 3 + 1 / tail) * (1 + 4 / count)
    middle = np.median(np.stack((level[:-2], level[1:-1], level[2:])), axis=0)[: max(at, 1)]
    before = float((middle - np.minimum.accumulate(middle)).max())
    gap, jump_at = _jump(level[best:])
    return Turn(
        best=best,
        low=low,
        end=end,
        tail=tail,
        height=round(height, 3),
        errors=round(height / error, 2),
        chance=round(_chance(level[best + 1 :]), 4),
        since=round(1 - (best + 1) / count, 3),
        kept=round(height / max(float(smooth[at:].max()) - low, height, 1e-12), 2),
        rebound=round(height / before, 2) if before > 1e-9 else HUGE,
        jump=round(min(gap / height, 1.0), 2) if height > 0 else 0.0,
        jump_at=best + jump_at,
    )


def _jump(since: Floats) -> tuple[float, int]:
    """The widest gap between all values before one and all from it on, and its index; 0 if none."""
    highest = np.maximum.accumulate(since)[:-3]
    lowest = np.minimum.accumulate(since[::-1])[::-1][1:-2]
    if not highest.size:
        return 0.0, 0
    last = int(np.argmax(lowest - highest))
    return max(float(lowest[last] - highest[last]), 0.0), last + 1


def noise_of_a_count(values: Floats) -> float:
    """Standard deviation of a share of few cases, such as an accuracy near 0, as of their count.

    A case is worth the smallest step between two values; 0 for more than `COUNTED` cases.
    """
    sizes = np.unique(np.abs(values))
    if sizes.size < 2:
        return 0.0
    case, usual = float(np.diff(sizes).min()), float(np.median(np.abs(values)))
    return math.sqrt(case) * math.sqrt(max(usual, case)) if usual <= COUNTED * case else 0.0


def _joint(steps: IntArray, level: Floats, found: Turn, resumes: Sequence[int]) -> int:
    """Index of the first value after the newest resume at which most of the rise is one jump."""
    for resume in sorted(resumes, reverse=True):
        # An evaluation at the step of the resume itself may be of before or of after it.
        for side in ("right", "left"):
            at = int(np.searchsorted(steps, resume, side))
            if found.best < at < len(steps) and level[at] - level[at - 1] > found.height / 2 > 0:
                return at
    return 0


def _training(loss: Series | None, line: Curve | None, steps: IntArray) -> Training | None:
    if line is not None and line.soft:
        at, level = (line.block_steps + line.block_ends) / 2, _of_three(line.blocks)
        soft, rows = line.soft, line.losses
        error = 0.82 * line.block_error * line.leeway  # a difference of means of three blocks
    else:  # a row an epoch: each stands for itself
        kept = np.isfinite(loss.values) if loss is not None else np.empty(0, bool)
        if loss is None or kept.sum() < LEAST:
            return None
        rows = np.clip(np.asarray(loss.values[kept], np.float64), 0.0, HUGE)
        soft = softening(rows)
        at, level = np.asarray(loss.steps[kept], np.float64), np.log(rows + soft)
        error = math.sqrt(2) * _noise(level)
    beside = np.interp(steps, at, level)
    return Training(
        level=beside,
        losses=np.maximum(np.exp(beside) - soft, 0.0),
        error=float(error),
        solved=bool(np.median(rows[-3:]) < SOFT * np.median(rows[:3])),
    )


def _slope(values: Floats) -> float:
    """Fall of a straight line through the values, from the first to the last."""
    return -float(np.polyfit(np.linspace(0, 1, len(values)), values, 1)[0])


def _of_three(values: Floats) -> Floats:
    """[m]: mean of each value and its neighbours."""
    ones = np.ones(3)
    return np.convolve(values, ones, "same") / np.convolve(np.ones_like(values), ones, "same")


def _noise(level: Floats) -> float:
    """Standard deviation of one value, from each against its neighbours.

    From third differences, which a bent trend leaves alone; from second ones where values are few.
    The largest over neighbours at several distances: evaluations wander too, and what is alike
    from one to the next makes the next one a poor witness.
    """
    noise, step = max(_quantum(level) / 2, 1e-4), 1
    if len(level) < ENOUGH:
        return max(_spread((level[:-2] - 2 * level[1:-1] + level[2:]) / math.sqrt(6)), noise)
    while step <= len(level) // 10:
        ends = level[: -3 * step] - level[3 * step :]
        third = ends - 3 * (level[step : -2 * step] - level[2 * step : -step])
        noise = max(noise, _spread(third / math.sqrt(20)))
        step *= 2
    return noise


def _quantum(level: Floats) -> float:
    """The smallest step of values of which many equal the one before: they were rounded.

    On a log scale the steps of the later, smaller values count.
    """
    apart = np.abs(np.diff(level))
    if np.mean(apart == 0) <= TIED or not apart.any():
        return 0.0
    late = apart[len(apart) // 2 :]
    late = late if late.any() else apart
    return float(late[late > 0].min())


def _spread(values: Floats) -> float:
    """Standard deviation of normal values around 0, from the median of their sizes."""
    return 1.4826 * float(np.median(np.abs(values)))


def _chance(after: Floats) -> float:
    """Probability of so few pairs out of rising order (Kendall's exact test) without a trend.

    Of the values after a minimum, which are above it in any case; 1 for fewer than three.
    """
    count = len(after)
    if count < 3:
        return 1.0
    if count >= ENOUGH:
        return 0.0
    wrong = sum(int((after[i + 1 :] <= after[i]).sum()) for i in range(count))
    return sum(_orders(count)[: wrong + 1]) / math.factorial(count)


@cache
def _orders(count: int) -> tuple[int, ...]:
    """[pairs out of order]: how many orders of `count` values have so many."""
    ways = [1]
    for size in range(2, count + 1):
        longer = [0] * (len(ways) + size - 1)
        for pairs, number in enumerate(ways):
            for more in range(size):
                longer[pairs + more] += number
        ways = longer
    return tuple(ways)
