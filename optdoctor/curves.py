"""Pure functions on series: what several rules and reports ask of a curve."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from optdoctor.store import NO_STEP, IntArray, Series


def lookup(series: Series, steps: IntArray, absent: float = np.nan) -> NDArray[np.float64]:
    """[len(steps)]: the value recorded at exactly each step, `absent` where there is none."""
    if not series.steps.size:
        return np.full(len(steps), absent)
    at = np.minimum(np.searchsorted(series.steps, steps), series.steps.size - 1)
    return np.where(series.steps[at] == steps, series.values[at], absent)


def masked_zeros(loss: Series, norm: Series | None) -> NDArray[np.bool_]:
    """[T]: losses of exactly 0 beside a gradient norm that is not finite: NaN, printed as 0.

    A bucket of rows counts where it holds both, which no true zero has been seen to do.
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


def spans(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Index pairs [first, last] of the runs of True in `mask` [T]."""
    edges = np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return [(int(a), int(b)) for a, b in zip(starts, ends, strict=True)]
