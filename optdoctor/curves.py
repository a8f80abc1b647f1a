"""Pure functions on series: what several rules and reports ask of a curve."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor.store import NO_STEP, IntArray, Series
from optdoctor.trace import Trace

Floats = NDArray[np.float64]

LEAST_ROWS = 8
"""Finite rows below which a curve has no shape."""
BLOCKS = 40
"""Blocks of equal length in which the level of a curve is measured."""
SOFT = 0.05
"""Share of the first losses that is added before the logarithm: it tames losses near zero."""
FIRST_JUMP = 3.0
"""Largest multiple of the very first loss that the first losses count as: a run may explode."""
HUGE = 1e300
"""What a finite loss beyond it counts as, so that no sum or difference of losses overflows."""
TRIFLE = 1e-12
"""Share of the largest loss below which a difference is none; losses of any scale are judged."""
ANCHORS = 8
"""Points per window at which a running median is computed; between them it is interpolated."""


class Curve(NamedTuple):
    """A curve of n finite rows on a log scale, in K blocks, with the noise of its own rows.

    After the statistics of Theil (differences against trends) and block medians; the constants
    of the standard errors are those of a median of normal values.
    """

    steps: IntArray  # [n] step of each row
    losses: Floats  # [n] as recorded
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

    def loss_at(self, level: float) -> float:
        """The loss that has this level, for a curve without negative losses."""
        return max(float(np.exp(min(level, np.log(2 * HUGE)))) - self.soft, 0.0)


def curve(series: Series) -> Curve | None:
    """The finite rows of `series` as a curve; None for fewer than `LEAST_ROWS`."""
    kept = np.isfinite(series.values)
    losses = np.clip(np.asarray(series.values[kept], np.float64), -HUGE, HUGE)
    if losses.size < LEAST_ROWS:
        return None
    soft = 0.0 if losses.min() < 0 else softening(losses)
    level = np.log(losses + soft) if soft else _over_range(losses)
    difference = np.diff(level)
    noise = max(_spread(difference) / np.sqrt(2), 1e-4)
    groups = np.array_split(np.arange(losses.size), min(BLOCKS, losses.size))
    middle = np.mean if len(groups[0]) <= 4 else np.median
    blocks = np.array([middle(level[group]) for group in groups])
    between = blocks[1:-1] - (blocks[:-2] + blocks[2:]) / 2
    late = between[len(between) // 5 :]
    of_blocks = 1.4826 * float(np.median(np.abs(late))) / 1.2247
    of_rows = noise / (2 * np.sqrt(losses.size / len(groups)))
    smoothed = losses.size > 60 and _first_autocorrelation(difference) > -0.25
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


def softening(losses: Floats) -> float:
    """`SOFT` of the first losses: what is added to losses of 0 or more before the logarithm."""
    first, usual = float(losses[0]), float(np.median(losses[:3]))
    if 0 < first < usual / FIRST_JUMP:
        usual = FIRST_JUMP * first
    usual = usual or TRIFLE * float(losses.max()) or TRIFLE
    return max(SOFT * usual, float(np.finfo(np.float64).tiny))


def _over_range(losses: Floats) -> Floats:
    low, high = (float(np.quantile(losses, q)) for q in (0.05, 0.95))
    largest = float(np.abs(losses).max())
    return np.asarray(losses / max(high - low, TRIFLE * largest), np.float64)


def _spread(values: Floats) -> float:
    """Standard deviation of normal values, from their median absolute deviation."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values)))) if values.size else 0.0


def _first_autocorrelation(difference: Floats) -> float:
    """Of differences without their outliers: -0.5 for white noise, about 0 for a moving average."""
    bound = 4 * _spread(difference)
    clipped = np.clip(difference - np.median(difference), -bound, bound)
    power = float(clipped @ clipped)
    return float(clipped[:-1] @ clipped[1:]) / power if power > 0 else -0.5


def trend(values: Floats, half_width: int) -> Floats:
    """[n]: running median over +-`half_width` rows, narrower towards both ends."""
    n, half_width = len(values), max(half_width, 1)
    anchors = np.unique(np.append(np.arange(0, n, max(2 * half_width // ANCHORS, 1)), n - 1))
    reach = np.minimum(half_width, np.minimum(anchors, n - 1 - anchors))
    medians = [  # of 2r + 1 values, one of which is the median
        np.partition(values[a - r : a + r + 1], r)[r] for a, r in zip(anchors, reach, strict=True)
    ]
    return np.asarray(np.interp(np.arange(n), anchors, medians), np.float64)


def standardised(left: Floats, bound: float = 4.0) -> Floats:
    """[n]: deviations from a trend over their own running spread, cut at +-`bound`."""
    spread = 1.4826 * trend(np.abs(left), max(len(left) // 10, 2))
    overall = 1.4826 * float(np.median(np.abs(left)))
    return np.clip(left / np.maximum(np.maximum(spread, 0.35 * overall), 1e-9), -bound, bound)


def autocorrelation(values: Floats, lags: int) -> Floats:
    """[lags + 1]: of values with their mean taken off; 1 at lag 0, 0 throughout for a constant."""
    centred = values - values.mean()
    size = 1 << (2 * len(values) - 1).bit_length()
    power = np.fft.irfft(np.abs(np.fft.rfft(centred, size)) ** 2, size)[: lags + 1]
    return power / power[0] if power[0] > 0 else np.zeros(lags + 1)


def lookup(series: Series, steps: IntArray, absent: float = np.nan) -> NDArray[np.float64]:
    """[len(steps)]: the value recorded at exactly each step, `absent` where there is none."""
    if not series.steps.size:
        return np.full(len(steps), absent)
    at = np.minimum(np.searchsorted(series.steps, steps), series.steps.size - 1)
    return np.where(series.steps[at] == steps, series.values[at], absent)


FILTERED_BY = ("framework", "loss_window", "nan_filter")
"""Facts that `witness` and `may_hide_nan` read."""


def may_hide_nan(trace: Trace) -> bool:
    """Whether the loss went through a log that prints 0 for NaN.

    Only the Hugging Face Trainer's does, and a table of numbers may come from it. A loss that the
    doctor was given, or took from `training_step`, stands as it is: there a row is one update.
    """
    known = trace.facts.get("nan_filter")
    if known == "on":  # in the Trainer's log, which is only read where it alone tells the loss
        return trace.facts.get("loss_window") != 1
    return known != "off" and trace.facts.get("framework") not in ("torch", "lightning")


def witness(trace: Trace) -> Series | None:
    """The gradient norm, which tells a 0 printed for NaN from a true one; None where none is."""
    return trace.series.get("grad_norm") if may_hide_nan(trace) else None


def loss_curve(trace: Trace) -> Curve | None:
    """The training loss as a curve, without the zeros that a log prints for NaN.

    A rule that asks for it declares `grad_norm` and `FILTERED_BY` beside `loss`.
    """
    return curve(unmasked(trace.series["loss"], witness(trace)))


def rates(trace: Trace, line: Curve) -> Floats | None:
    """[n]: the learning rate at each row of the curve; None where it is not known throughout."""
    series = trace.series.get("lr")
    if series is None or not np.isfinite(series.values).all():
        return None
    rate = np.interp(line.steps, series.steps, series.values)
    return rate if rate.max() > 0 and rate.min() >= 0 else None


def masked_zeros(loss: Series, norm: Series | None) -> NDArray[np.bool_]:
    """[T]: losses of exactly 0 beside a gradient norm that is not finite: NaN, printed as 0.

    `norm` is what `witness` gives: without one a 0 is a 0. A bucket of rows counts where it holds
    both, which no true zero has been seen to do.
    """
    beside = _same_rows(loss, norm)
    return (loss.low == 0) & (beside >= 0) & (_at(norm.bad, beside) > 0) if norm else beside >= 0


def unmasked(loss: Series, norm: Series | None) -> Series:
    """`loss` with NaN where `masked_zeros` finds a 0 in its place."""
    masked = masked_zeros(loss, norm)
    if norm is None or not masked.any():
        return loss
    beside = _same_rows(loss, norm)
    bad = np.maximum(loss.bad, np.minimum(_at(norm.bad, beside), loss.count))
    first = _at(norm.first_bad, beside)
    first = np.where(loss.bad > 0, np.minimum(loss.first_bad, first), first)
    last = np.maximum(loss.last_bad, _at(norm.last_bad, beside))
    whole = masked & (bad >= loss.count)
    return replace(
        loss,
        values=np.where(masked & (loss.values == 0), np.nan, loss.values),
        low=np.where(whole, np.nan, np.where(masked, loss.high, loss.low)),
        high=np.where(whole, np.nan, loss.high),
        high_step=np.where(whole, NO_STEP, loss.high_step),
        bad=np.where(masked, bad, loss.bad),
        first_bad=np.where(masked, first, loss.first_bad),
        last_bad=np.where(masked, last, loss.last_bad),
    )


def _same_rows(loss: Series, norm: Series | None) -> IntArray:
    """[T]: the row of `norm` that ends at the same step, -1 where there is none."""
    if norm is None or not norm.steps.size:
        return np.full(loss.steps.size, -1, np.int64)
    at = np.minimum(np.searchsorted(norm.steps, loss.steps), norm.steps.size - 1)
    return np.where(norm.steps[at] == loss.steps, at, -1)


def _at(column: IntArray, rows: IntArray) -> IntArray:
    return np.where(rows >= 0, column[np.maximum(rows, 0)], 0)


def row_before(series: Series, step: int) -> int:
    """The newest recorded step before `step`, which is one of the series too.

    Of a thinned row it is the first where no more is known; before the very first row it is where
    one would stand at the distance of the first two.
    """
    row = int(np.searchsorted(series.steps, step))
    if row == series.steps.size or series.starts[row] >= step:
        if row:
            return int(series.steps[row - 1])
        return max(step - int(np.diff(series.starts[:2]).max(initial=1)), 0)
    is_whole = series.count[row] == series.steps[row] - series.starts[row] + 1
    return step - 1 if is_whole else int(series.starts[row])


def spans(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Index pairs [first, last] of the runs of True in `mask` [T]."""
    edges = np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return [(int(a), int(b)) for a, b in zip(starts, ends, strict=True)]
