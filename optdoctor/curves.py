"""Pure functions on series: what several rules and reports ask of a curve."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from optdoctor.store import NO_STEP, FloatArray, IntArray, Series


def latest(series: Series) -> FloatArray:
    """[P]: the last measured value of each tensor, NaN where it never was."""
    measured = np.isfinite(series.values)  # [T, P]
    last = len(series.steps) - 1 - np.argmax(measured[::-1], axis=0)
    values = series.values[last, np.arange(series.values.shape[1])]
    return np.where(measured.any(axis=0), values, np.nan)


def lookup(series: Series, steps: IntArray, absent: float = np.nan) -> NDArray[np.float64]:
    """[len(steps)]: the value recorded at exactly each step, `absent` where there is none."""
    if not series.steps.size:
        return np.full(len(steps), absent)
    at = np.minimum(np.searchsorted(series.steps, steps), series.steps.size - 1)
    return np.where(series.steps[at] == steps, series.values[at], absent)


def first_bad_step(series: Series) -> int:
    """Step of the first NaN or infinite row, `NO_STEP` if there is none."""
    bad = series.first_bad[series.bad > 0]
    return int(bad.min()) if bad.size else NO_STEP


def masked_zeros(loss: Series, norm: Series | None) -> NDArray[np.bool_]:
    """[T]: losses of exactly 0 at steps whose gradient norm is not finite: NaN, printed as 0."""
    zero: NDArray[np.bool_] = (loss.low == 0) & (loss.high == 0)
    if norm is None:
        return np.zeros_like(zero)
    return zero & np.isin(loss.steps, norm.first_bad[norm.bad > 0])


def unmasked(loss: Series, norm: Series | None) -> Series:
    """`loss` with NaN where `masked_zeros` finds a 0 in its place."""
    masked = masked_zeros(loss, norm)
    if not masked.any():
        return loss
    return replace(
        loss,
        values=np.where(masked, np.nan, loss.values),
        low=np.where(masked, np.nan, loss.low),
        high=np.where(masked, np.nan, loss.high),
        high_step=np.where(masked, NO_STEP, loss.high_step),
        bad=np.where(masked, loss.count, loss.bad),
        first_bad=np.where(masked, loss.starts, loss.first_bad),
    )


def spans(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Index pairs [first, last] of the runs of True in `mask` [T]."""
    edges = np.diff(np.concatenate(([0], mask.astype(np.int8), [0])))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return [(int(a), int(b)) for a, b in zip(starts, ends, strict=True)]
