"""Whether a curve is flat: from its start, at its end, or in a handful of rows."""

import math
from typing import NamedTuple

import numpy as np

from optdoctor.curves.level import FIRST_JUMP, Curve, Floats
from optdoctor.store import Series

SIGNIFICANT = 3.0
"""Standard errors from which even a small fall is one."""
SURE = 2.2
"""Standard errors of a fall that its upper bound adds."""
NO_ORDER = 0.05
"""Probability of the order of a handful of losses below which they decline."""
COARSE = 0.01
"""Step of the printed loss, relative to it, beyond which flatness cannot be seen."""
LEAST_LEARNING = 100
"""Rows in which a run should have learned something."""
TWO_DECIMALS = 0.1
"""Loss above which two decimals are enough to see that it never changed by a tenth."""
LEAST_DROP = 0.1
"""Fall before a flat tail, in the loss's logarithm, that makes it one."""
CONVERGED = 0.025
"""Share of the first loss below which a flat tail, or weights at rest, are a solved task."""
VEILED = 0.15
"""Two standard errors of the first 3 % of the rows, in logarithms, beyond which noise hides a fast
early fall."""


class Flatness(NamedTuple):
    """How far a curve can have fallen from its first tenth on, in the loss's logarithm."""

    fall: float
    error: float
    """Standard error of the fall."""
    upper: float
    """Upper bound of the fall, rounded: what is printed was judged."""
    declines: bool
    """Whether the fall, or a steady slope of the blocks, is surely none of the noise's."""


class Tail(NamedTuple):
    """The flat end of a curve that fell before."""

    block: int
    """The first block of the tail."""
    late: float
    """Upper bound of the fall since."""


class Few(NamedTuple):
    """A handful of losses above 0, judged without an estimate of their noise."""

    level: float
    """Median loss."""
    lowest: float
    highest: float
    spread: float
    """Highest less lowest and one step of the printed losses, relative to the level; rounded."""
    order: float
    """Probability that losses without a trend come in an order that falls so much; rounded."""


def smoothed(line: Curve) -> Floats:
    """[K - 2]: means of three blocks."""
    return np.convolve(line.blocks, np.ones(3) / 3, "valid")


def end_level(line: Curve) -> float:
    """Median of the last blocks."""
    return float(np.median(line.blocks[-max(2, line.blocks.size // 13) :]))


def rise(line: Curve) -> float:
    """Of the end above the best level, in the loss's logarithm."""
    return end_level(line) - float(smoothed(line).min())


def drops_at_the_end(line: Curve, least: float) -> bool:
    """Whether the last blocks lie surely, and by more than `least`, below those before them."""
    last = max(2, line.blocks.size // 13)
    before = line.blocks[line.blocks.size // 2 : -last]
    if not before.size:
        return False
    error = line.block_error * math.sqrt(1 / last + 1 / before.size)
    return float(np.median(before)) - end_level(line) > max(least, SIGNIFICANT * error)


def late_fall(line: Curve, since: int) -> float:
    """Upper bound of the fall from the first to the last third of the blocks from `since` on.

    In the loss's logarithm, rounded, so that what is printed was judged.
    """
    third = max((line.blocks.size - since) // 3, 1)
    blocks = line.blocks[since:]
    fall = float(np.median(blocks[:third]) - np.median(blocks[-third:]))
    return round(fall + 2 * line.block_error * math.sqrt(2 / third), 4)


def loss_near(line: Curve, row: int) -> float:
    """The median of three losses around a row, of the last tenth for -1."""
    if row < 0:
        return float(np.median(line.losses[-max(line.losses.size // 10, 1) :]))
    return float(np.median(line.losses[max(row - 1, 0) : row + 2]))


def quantum(losses: Floats) -> float:
    """The last decimal place that any of the losses has, 0 where they are in full."""
    places = next((d for d in range(7) if (np.round(losses, d) == losses).all()), None)
    return 0.0 if places is None else 10.0**-places


def is_coarse(line: Curve) -> bool:
    """Whether the losses are printed with so few digits that equal ones need not be equal.

    A loss that never changes does not show its digits: logs print two decimals or more.
    """
    middle = float(np.median(np.abs(line.losses[line.losses.size // 2 :])))
    if np.ptp(line.losses) == 0 and line.losses.size >= LEAST_LEARNING:
        return middle < TWO_DECIMALS
    return middle == 0 or quantum(line.losses) > COARSE * middle


def is_solved(line: Curve) -> bool:
    """Whether next to nothing is left of the first loss."""
    end = float(np.median(line.losses[-max(line.losses.size // 6, 2) :]))
    return end < CONVERGED * float(line.losses[0])


def from_the_start(line: Curve) -> Flatness:
    """How far a curve fell from its first tenth on; a fast fall within that tenth is added."""
    blocks, rows = line.blocks, line.level.size
    k = blocks.size
    first = float(np.median(blocks[: max(k // 10, 1)]))
    later = [np.median(blocks[int(0.4 * k) : int(0.7 * k)]), np.median(blocks[-int(0.3 * k) :])]
    if drops_at_the_end(line, 0.0):
        later.append(np.float64(end_level(line)))
    fall = first - float(min(later))
    error = line.block_error * math.sqrt(10 / k + 1 / (0.3 * k))
    begin = line.level
    if FIRST_JUMP * line.losses[0] < np.median(line.losses[:3]):  # what shot up is no fall
        begin = np.minimum(begin, begin[0])
    early = max(
        float(begin[:w].mean()) - first - 2.5 * line.noise / math.sqrt(w)
        for w in (3, max(rows // 100, 3), max(3 * rows // 100, 3))
    )
    seen = blocks[max(k // 10, 1) :]
    at = np.arange(seen.size) - (seen.size - 1) / 2
    slope = float(at @ seen) / float(at @ at)
    steady = -slope * math.sqrt(float(at @ at)) / line.block_error
    return Flatness(
        fall=fall,
        error=error,
        upper=round(fall + SURE * error + max(early, 0.0), 4),
        declines=bool(fall >= SIGNIFICANT * error or steady >= SIGNIFICANT * line.leeway),
    )


def hardly_falls(line: Curve, flat: Flatness, most: float) -> bool:
    """Whether no fall can be told from the noise of a log that begins with the run.

    Nor can one of `most` be hidden in it: from the first tenth on, in the first rows, or in the
    last half.
    """
    if flat.upper >= most or flat.declines or not begins(line):
        return False
    veiled = 2 * line.noise / math.sqrt(0.03 * line.level.size) > VEILED
    return not veiled and late_fall(line, line.blocks.size // 2) < most


def begins(line: Curve) -> bool:
    """Whether the log begins with the run: at one of its first two intervals."""
    return bool(line.steps[0] <= 2 * int(np.median(np.diff(line.steps))))


def flat_tail(line: Curve, band: float) -> Tail | None:
    """The stretch up to the end that stays within `band`, and its noise, of the last level."""
    blocks, level = line.blocks, smoothed(line)
    last = float(np.median(blocks[-max(blocks.size // 6, 2) :]))
    away = np.round(np.abs(level - last) - 2 * line.block_error, 4)
    outside = np.flatnonzero(away > band)
    kink = max(int(outside[-1]) + 1 if outside.size else 0, 2)
    if kink > blocks.size // 2:
        return None
    before = float(blocks[kink // 4] - level[min(kink, level.size - 1)])
    return Tail(kink, late_fall(line, kink)) if before >= LEAST_DROP else None


def few(losses: Floats) -> Few | None:
    """A handful of losses; None where some are not above 0."""
    if losses.min() <= 0:
        return None
    level = float(np.median(losses))
    spread = (float(np.ptp(losses)) + quantum(losses)) / level
    return Few(
        level,
        float(losses.min()),
        float(losses.max()),
        round(spread, 5),
        round(chance_of_falling(losses), 4),
    )


def chance_of_falling(values: Floats) -> float:
    """Probability of at least so many falling pairs among values without a trend.

    Kendall's exact test; pairs of equal values count half. For a few dozen values.
    """
    count = len(values)
    pairs = np.sign(values[:, None] - values[None, :])[np.triu_indices(count, 1)]
    falling = float((pairs > 0).sum() + (pairs == 0).sum() / 2)
    ways = np.ones(1)  # [rising pairs] share of the orders of the first values
    for size in range(2, count + 1):
        ways = np.convolve(ways, np.ones(size) / size)
    rising = pairs.size - falling
    return min(float(ways[: math.floor(rising) + 1].sum()), 1.0)


def change(series: Series, first: int, last: int) -> tuple[float, float, float] | None:
    """(before, after, standard errors of the difference) of another series over the same steps.

    Medians of the first and the last third of its finite rows between two steps; None for fewer
    than six.
    """
    kept = (series.steps >= first) & (series.steps <= last) & np.isfinite(series.values)
    values = np.clip(np.asarray(series.values[kept], np.float64), -1e300, 1e300)
    if values.size < 6:
        return None
    third = values.size // 3
    before, after = float(np.median(values[:third])), float(np.median(values[-third:]))
    noise = 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
    error = 1.25 * noise * math.sqrt(2 / third)
    return before, after, (after - before) / max(error, 1e-9 * abs(before), 1e-300)
