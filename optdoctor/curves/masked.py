"""The training loss of a trace, without the zeros that a log prints for NaN."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor.curves.level import Curve, curve
from optdoctor.curves.meanwhile import times
from optdoctor.store import NO_STEP, IntArray, Series
from optdoctor.trace import Trace

FILTERED_BY = ("framework", "loss_window", "nan_filter")
"""Facts that `witness` and `may_hide_nan` read."""
BEFORE = 10
"""Rows before a stretch of zeros that tell from where the loss fell to it."""


class Zeros(NamedTuple):
    """Losses of exactly 0 from a step to the end of a log, and from where they fell to 0."""

    step: int  # the first of them
    rows: int  # how many those are,
    share: float  # and of all rows, rounded
    before: float  # the loss one row before
    height: float
    """The lower of that loss and of the median of `BEFORE` rows, over the first losses; rounded.
    It is 0 where any of those rows is: a loss that reaches 0 by itself does so more than once."""


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


def masked_zeros(loss: Series, norm: Series | None) -> NDArray[np.bool_]:
    """[T]: losses of exactly 0 beside a gradient norm that is not finite: NaN, printed as 0.

    `norm` is what `witness` gives: without one a 0 is a 0. A bucket of rows counts where it holds
    both, which no true zero has been seen to do.
    """
    beside = _same_rows(loss, norm)
    return (loss.low == 0) & (beside >= 0) & (_at(norm.bad, beside) > 0) if norm else beside >= 0


def unmasked(loss: Series, norm: Series | None) -> Series:
    """`loss` with NaN where `masked_zeros` finds a 0 in its place."""
    if norm is None or not norm.bad.any():
        return loss
    masked = masked_zeros(loss, norm)
    if not masked.any():
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


def zeros_to_the_end(loss: Series) -> Zeros | None:
    """The zeros at the end of a loss; None where there are none, or too few rows before them."""
    others = np.flatnonzero((loss.low != 0) | (loss.high != 0) | (loss.bad > 0))
    start = int(others[-1]) + 1 if others.size else 0
    finite = loss.values[:start][np.isfinite(loss.values[:start])]
    if start in (0, loss.steps.size) or finite.size < BEFORE:
        return None
    last = np.asarray(finite[-BEFORE:], np.float64)
    first, before = float(np.median(finite[:3])), float(last[-1])
    height = min(before, float(np.median(last))) if last.min() > 0 else 0.0
    count = int(loss.count[start:].sum())
    return Zeros(
        step=int(loss.starts[start]),
        rows=count,
        share=round(count / loss.rows, 4),
        before=before,
        height=round(times(height, first), 3) if first > 0 else 0.0,
    )


def without(loss: Series, zeros: Zeros) -> Series:
    """`loss` with NaN in place of those zeros."""
    since = loss.starts >= zeros.step
    return replace(
        loss,
        values=np.where(since, np.nan, loss.values),
        low=np.where(since, np.nan, loss.low),
        high=np.where(since, np.nan, loss.high),
        high_step=np.where(since, NO_STEP, loss.high_step),
        bad=np.where(since, loss.count, loss.bad),
        first_bad=np.where(since, loss.starts, loss.first_bad),
        last_bad=np.where(since, loss.steps, loss.last_bad),
    )


def _same_rows(loss: Series, norm: Series | None) -> IntArray:
    """[T]: the row of `norm` that ends at the same step, -1 where there is none."""
    if norm is None or not norm.steps.size:
        return np.full(loss.steps.size, -1, np.int64)
    at = np.minimum(np.searchsorted(norm.steps, loss.steps), norm.steps.size - 1)
    return np.where(norm.steps[at] == loss.steps, at, -1)


def _at(column: IntArray, rows: IntArray) -> IntArray:
    return np.where(rows >= 0, column[np.maximum(rows, 0)], 0)
