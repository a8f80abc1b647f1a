"""How far a curve stayed behind its own course: a kink in its extrapolation, or a spent rate."""

import math
from typing import NamedTuple

import numpy as np

from optdoctor.curves.flatness import end_level, is_solved, late_fall, rise
from optdoctor.curves.level import Curve, Floats

KINKS = (0.12, 0.67)
"""Shares of the blocks between which a kink is looked for: a course before it, an end after it."""
DECAYS = (0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)
"""Time constants of exponentials, as shares of the run."""
POWERS = (0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
"""Exponents of power laws."""
ERRORS = 4.0
"""Standard errors of a shortfall that are one: the margin is 1 there, as for each constant below.
The form and these constants are a recipe of ours, tried on made-up curves."""
LEAST = 0.02
"""Shortfall that is left after two standard errors, in the loss's logarithm."""
UNMET = 0.6
"""Share of the predicted further fall that did not come."""
FLAT = 0.06
"""Upper bound of the fall since the kink, and in the last half, that is no progress."""
BEFORE = 0.05
"""Fall before the kink from which there is a course."""
SURE = 1.5
"""Margin from which a kink is as sure as it has to be."""
NEAR = 0.1
"""Share of the run between a kink and what brought it about."""
ROSE = 0.1
"""Rise over the best level from which it is no plateau."""


LEAST_ROWS = 6
"""Rows before a rate was spent in which the fall can be measured."""
LEAST_FALL = 0.02
"""Fall in the last doubling of the steps before, in the loss's logarithm, that is one."""
NEARLY_NOTHING = 0.03
"""Share of its peak down to which a rate still moves something: the plateau begins below it."""


class Shortfall(NamedTuple):
    """What a curve still owed to its own course at the end, in the loss's logarithm."""

    block: int
    """The kink: the last block of the course."""
    predicted: float
    """Least further fall among the fits of the course that are about as good as the best."""
    came: float
    """Fall since the kink."""
    error: float
    """Standard error of what is missing."""
    late: float
    """Upper bound of the fall since the kink."""
    margin: float
    """Smallest ratio of what was measured to what it takes; at 1 every condition just holds."""

    @property
    def missing(self) -> float:
        """Of the predicted fall."""
        return self.predicted - self.came

    @property
    def rank(self) -> tuple[float, float]:
        """Of two kinks that are both sure enough, the one where more is missing counts."""
        return min(self.margin, SURE), self.missing

    def begins(self, line: Curve, row: int) -> bool:
        """Whether the curve left its course at about that row."""
        return abs(self.block / line.blocks.size - row / line.level.size) <= NEAR


class Spent(NamedTuple):
    """A learning rate that was spent long before the end, beside the loss."""

    row: int
    """The first row of the spent rate."""
    still: int
    """The first row of a rate that is nearly nothing, or else of the spent one."""
    share: float
    """Of the rows, with a spent rate."""
    falling: bool
    """Whether the loss fell surely in the last doubling of the steps before."""
    came: float
    """Fall since then over what as much in each further doubling would have been; rounded."""


def shortfall(line: Curve) -> Shortfall | None:
    """Where the curve left its own course most surely; None where no course can be told.

    Before each kink it fits a + b log t, a + b exp(-t / tau) and a + b t^-p, and takes the smallest
    further fall that any good fit predicts. The kink is that of the largest margin, which lies
    nearer to where an injected stop was than that of the largest shortfall.
    """
    k, blocks = line.blocks.size, line.blocks
    if rise(line) > ROSE or is_solved(line):
        return None
    at = _times(line)
    courses = _courses(at)  # [F, K]
    end, late = end_level(line), late_fall(line, k // 2)
    best: Shortfall | None = None
    for kink in range(max(math.ceil(KINKS[0] * k), 4), int(KINKS[1] * k) + 1):
        window = slice(kink // 4, kink + 1)
        fits, errors = _fitted(courses, blocks, window)  # [F, K], [F]
        good = errors <= 1.5 * errors.min() + 2 * line.block_error**2
        nearest = int(np.argmin(errors))
        level = float(fits[nearest, kink])
        predicted = float((fits[good, kink] - fits[good, -1]).min())
        missing = predicted - (level - end)
        size = window.stop - window.start
        spread = math.sqrt(float(errors[nearest]) / max(size - 2, 1))
        error = 1.2 * math.hypot(spread, line.block_error)
        since = late_fall(line, kink + 1)
        drop = float(blocks[0]) - level
        if predicted <= 0 or drop <= 0:
            continue
        margin = min(
            missing / error / (ERRORS * line.leeway),
            (missing - 2 * error) / LEAST,
            missing / predicted / UNMET,
            FLAT / max(since, 1e-4),
            FLAT / max(late, 1e-4),
            drop / BEFORE,
        )
        found = Shortfall(kink, predicted, level - end, error, since, round(margin, 3))
        if best is None or found.rank > best.rank:
            best = found
    return best


def _times(line: Curve) -> Floats:
    """[K]: the middle of each block, in steps; those of a log that begins at 0 are one later."""
    middle = (line.block_steps + line.block_ends) / 2.0
    return np.asarray(middle + float(line.steps[0] == 0), np.float64)


def _courses(at: Floats) -> Floats:
    """[F, K]: the forms of a course over time, without height and scale."""
    run = (at - at[0]) / max(float(at[-1] - at[0]), 1.0)
    forms = [-np.log(at)]
    forms += [np.exp(-run / decay) for decay in DECAYS]
    forms += [(at / at[0]) ** -power for power in POWERS]
    return np.array(forms)


def _fitted(courses: Floats, blocks: Floats, window: slice) -> tuple[Floats, Floats]:
    """Least-squares fits [F, K] of each form to the blocks of a window, and squared errors [F]."""
    seen, seen_blocks = courses[:, window], blocks[window]
    means, mean = seen.mean(axis=1, keepdims=True), seen_blocks.mean()
    centred = seen - means
    power = np.maximum((centred**2).sum(axis=1), 1e-300)
    scale = centred @ (seen_blocks - mean) / power
    fits = mean + scale[:, None] * (courses - means)
    return fits, ((fits[:, window] - seen_blocks) ** 2).sum(axis=1)


def spent(line: Curve, rate: Floats, low: float) -> Spent | None:
    """A rate [n] below `low` of its peak from some row to the end, after some rows of others."""
    at = int(np.flatnonzero(rate >= low * rate.max())[-1]) + 1
    if at < LEAST_ROWS or at == rate.size:
        return None
    came = came_since(line, at)
    nothing = int(np.flatnonzero(rate >= NEARLY_NOTHING * rate.max())[-1]) + 1
    return Spent(
        row=at,
        still=nothing if nothing < rate.size else at,
        share=round((rate.size - at) / rate.size, 4),
        falling=came is not None,
        came=math.inf if came is None else came,
    )


def came_since(line: Curve, at: int) -> float | None:
    """Fall since row `at` over what as much in each further doubling would have been; rounded.

    None where the loss did not surely fall in the last doubling of the rows before.
    """
    width = max(at // 8, 2)
    level = float(np.median(line.level[at - 2 * width : at]))
    before = float(np.median(line.level[at // 2 - width : at // 2 + width])) - level
    after = level - float(np.median(line.blocks[-max(line.blocks.size // 6, 2) :]))
    if before < max(2 * line.noise / math.sqrt(width), LEAST_FALL):
        return None
    return round(after / (before * math.log2(line.level.size / at)), 3)
