"""A series as a curve: its level on a log scale, in blocks, and the noise of its own rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor.store import IntArray, Series, StepStore

Floats = NDArray[np.float64]


MOST_ROWS = 65_536
"""Rows of a curve: neighbours of a longer series are one, as in what a `Recorder` keeps."""

LEAST_ROWS = 8
"""Finite rows below which a curve has no shape."""

BLOCKS = 40
"""Blocks of equal length in which the level of a curve is measured."""

SOFT = 0.05
"""Share of the first losses that is added before the logarithm: it tames losses near zero."""

FIRST_JUMP = 3.0
"""Largest multiple of the very first loss that the first losses count as: a run may explode."""

FIRST_FALL = 10.0
"""Largest multiple of the median of the first tenth that they count as: they may be an outlier."""

EARLY = 10
"""The first tenth of the rows is early, and ten rows at least."""

SLIPS = 0.01
"""Share of rows, and of the median loss, up to which losses below 0 are slips, and count as 0."""

HUGE = 1e300
"""What a finite loss beyond it counts as, so that no sum or difference of losses overflows."""

TRIFLE = 1e-12
"""Share of the largest loss below which a difference is none; losses of any scale are judged."""


class Curve(NamedTuple):
    """A curve of n finite rows on a log scale, in K blocks, with the noise of its own rows.

    After the statistics of Theil (differences against trends) and block medians; the constants
    of the standard errors are those of a median of normal values.
    """

    steps: IntArray  # [n] step of each row
    losses: Floats  # [n] as recorded; 0 for the few just below it
    level: Floats  # [n] log(loss + SOFT * first losses); over its range where losses are negative
    noise: float
    """Standard deviation of one row's level, from differences of neighbours."""
    blocks: Floats  # [K] median level of each block
    block_steps: IntArray  # [K] first step of each block
    block_error: float
    """Standard error of a block's median, from the blocks themselves: it knows slow noise too."""
    leeway: float
    """By what limits in standard errors grow: few blocks, or rows that were smoothed."""
    soft: float
    """What is added to each loss before the logarithm; 0 where losses are negative."""

    @property
    def block_ends(self) -> IntArray:
        """[K]: the last step of each block."""
        return np.append(self.block_steps[1:] - 1, self.steps[-1])

    def level_of(self, loss: float) -> float:
        """The level of such a loss, likewise."""
        return float(np.log(loss + self.soft))

    def loss_at(self, level: float) -> float:
        """The loss that has this level, for a curve without negative losses."""
        return max(float(np.exp(min(level, np.log(2 * HUGE)))) - self.soft, 0.0)


def curve(series: Series) -> Curve | None:
    """The finite rows of `series` as a curve, of at most `MOST_ROWS`; None for fewer than
    `LEAST_ROWS`."""
    series = bounded(series)
    kept = np.isfinite(series.values)
    losses = np.clip(np.asarray(series.values[kept], np.float64), -HUGE, HUGE)
    if losses.size < LEAST_ROWS:
        return None
    losses = _without_slips(losses)
    soft = 0.0 if losses.min() < 0 else softening(losses)
    level = np.log(losses + soft) if soft else _over_range(losses)
    difference = np.diff(level)
    spread = _spread(difference)
    noise = max(spread / np.sqrt(2), 1e-4)
    groups = np.array_split(np.arange(losses.size), min(BLOCKS, losses.size))
    middle = np.mean if len(groups[0]) <= 4 else np.median
    blocks = np.array([middle(level[group]) for group in groups])
    between = blocks[1:-1] - (blocks[:-2] + blocks[2:]) / 2
    late = between[len(between) // 5 :]
    of_blocks = 1.4826 * float(np.median(np.abs(late))) / 1.2247
    of_rows = noise / (2 * np.sqrt(losses.size / len(groups)))
    smoothed = losses.size > 60 and _first_autocorrelation(difference, spread) > -0.25
    steps = np.asarray(series.steps[kept], np.int64)
    return Curve(
        steps=steps,
        losses=losses,
        level=level,
        noise=noise,
        blocks=blocks,
        block_steps=np.array([steps[group[0]] for group in groups], np.int64),
        block_error=max(of_blocks, of_rows, 2e-4),
        leeway=(1 + 6 / len(groups)) * (1.35 if smoothed else 1.0),
        soft=soft,
    )


def bounded(series: Series) -> Series:
    """The series, or what a `Recorder` keeps of a longer one: `MOST_ROWS` at most."""
    if series.steps.size <= MOST_ROWS or series.rows > series.steps.size:
        return series.thinned(MOST_ROWS)
    store = StepStore(MOST_ROWS)
    store.extend(series.steps, np.asarray(series.values, np.float64))
    return store.series()


def softening(losses: Floats) -> float:
    """`SOFT` of the first losses: what is added to losses of 0 or more before the logarithm."""
    first, usual = float(losses[0]), float(np.median(losses[:3]))
    early = float(np.median(losses[: max(losses.size // EARLY, EARLY)]))
    if early > 0:
        usual = min(usual, FIRST_FALL * early) or early
    if 0 < first < usual / FIRST_JUMP:
        usual = FIRST_JUMP * first
    usual = usual or TRIFLE * float(losses.max()) or TRIFLE
    return max(SOFT * usual, float(np.finfo(np.float64).tiny))


def _without_slips(losses: Floats) -> Floats:
    """The losses with 0 for a few rows just below it; truly signed losses stay as they are."""
    low = losses[losses < 0]
    few = 0 < low.size <= max(SLIPS * losses.size, 1)
    if few and -float(low.min()) < SLIPS * float(np.median(losses)):
        return np.maximum(losses, 0.0)
    return losses


def _over_range(losses: Floats) -> Floats:
    low, high = (float(np.quantile(losses, q)) for q in (0.05, 0.95))
    largest = float(np.abs(losses).max())
    return np.asarray(losses / max(high - low, TRIFLE * largest), np.float64)


def _spread(values: Floats) -> float:
    """Standard deviation of normal values, from their median absolute deviation."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values)))) if values.size else 0.0


def _first_autocorrelation(difference: Floats, spread: float) -> float:
    """Of differences without their outliers: -0.5 for white noise, about 0 for a moving average."""
    bound = 4 * spread
    clipped = np.clip(difference - np.median(difference), -bound, bound)
    power = float(clipped @ clipped)
    return float(clipped[:-1] @ clipped[1:]) / power if power > 0 else -0.5
