"""What other channels did while a curve rose: factors since a step, and what happened there."""

import math

import numpy as np

from optdoctor.curves.gradient_norm import gradient_norm
from optdoctor.curves.level import HUGE, Floats
from optdoctor.store import IntArray, Series
from optdoctor.trace import Trace

FARTHEST = 1e6
"""Largest factor that a sentence tells as a number."""
AROUND = 50
"""Rows on each side of a step whose medians are compared."""
LEAST_ROWS = 3
"""Fewest rows on each side that have a median."""
AT_PEAK = 0.99
"""Share of its largest value from which on a rate has reached its peak."""
WARMED = 1.5
"""Factor by which a rate that warmed up grew to its peak."""


def times(now: float, before: float) -> float:
    """`now` over a positive `before`, at most `HUGE`."""
    return HUGE if now / HUGE >= before else now / before


def times_told(now: float, before: float) -> str:
    """The same as words."""
    factor = times(now, before)
    return f"more than {FARTHEST:,.0f} times" if factor > FARTHEST else f"{factor:.3g} times"


def evaluation_times(trace: Trace, first: int) -> float | None:
    """The last three evaluation losses over the last one up to step `first`; None for too few."""
    found = _finite(trace.series.get("eval_loss"))
    if found is None:
        return None
    steps, values = found
    before, since = values[steps <= first], values[steps > first]
    if not before.size or since.size < 3 or before[-1] <= 0 or since.min() < 0:
        return None
    return round(times(float(np.median(np.minimum(since[-3:], HUGE))), float(before[-1])), 3)


def gradient_times(trace: Trace, first: int) -> float | None:
    """The gradient norm of up to `AROUND` rows from step `first` on over that of those before."""
    found = _finite(trace.series.get(gradient_norm(trace)))
    if found is None:
        return None
    steps, values = found
    at = int(np.searchsorted(steps, first))
    before, since = values[max(at - AROUND, 0) : at], values[at : at + AROUND]
    if min(before.size, since.size) < LEAST_ROWS or values.min() < 0 or np.median(before) <= 0:
        return None
    return round(times(min(float(np.median(since)), HUGE), float(np.median(before))), 2)


def gain(series: Series, sign: int, first: int) -> tuple[float, float] | None:
    """(gain as a share of the value at step `first`, its standard errors) of the end of a run.

    Medians of up to `AROUND` finite rows each, up to that step and at the end; None for fewer than
    three. `sign` is 1 where the values should rise and -1 where they should fall.
    """
    found = _finite(series)
    if found is None:
        return None
    steps, values = found
    values = np.clip(values, -HUGE, HUGE)
    at = int(np.searchsorted(steps, first, "right"))
    before, since = values[max(at - AROUND, 0) : at], values[at:][-AROUND:]
    if min(before.size, since.size) < LEAST_ROWS:
        return None
    then, now = float(np.median(before)), float(np.median(since))
    noise = 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
    error = 1.25 * noise * math.sqrt(1 / before.size + 1 / since.size)
    moved = sign * (now - then)
    return moved / max(abs(then), 1e-9), moved / max(error, 1e-9 * abs(then), 1e-300)


def scale_times(trace: Trace, first: int) -> float | None:
    """The smallest loss scale from step `first` on over the one before it."""
    found = _finite(trace.series.get("loss_scale"))
    if found is None:
        return None
    steps, values = found
    before, since = values[steps < first], values[steps >= first]
    if not before.size or not since.size or before[-1] <= 0 or since.min() < 0:
        return None
    return times(float(since.min()), float(before[-1]))


def peak_reached(trace: Trace, first: int) -> int | None:
    """The step at which a rate that warmed up reached its peak, not long before step `first`.

    None where it did not, or where the run went on at the peak for longer than it had warmed up.
    """
    found = _finite(trace.series.get("lr"))
    if found is None:
        return None
    steps, values = found
    at = int(np.argmax(values >= AT_PEAK * values.max()))
    step, began = int(steps[at]), int(steps[0])
    if at == 0 or values[at] <= WARMED * values[0] or not step <= first <= 2 * step - began:
        return None
    return step


def norm_times(trace: Trace, first: int) -> float | None:
    """The norm of all weights at the end over that of step `first`."""
    series = trace.series.get("param_rms")
    if series is None or not trace.tensors:
        return None
    rms = np.minimum(np.asarray(series.values, np.float64), HUGE**0.4)
    squares = trace.num_elements * rms**2  # [T, P]
    whole = np.isfinite(squares).all(axis=1)
    steps, norms = series.steps[whole], np.sqrt(squares[whole].sum(axis=1))
    before, since = norms[steps <= first], norms[steps > first]
    if not before.size or not since.size or before[-1] <= 0:
        return None
    return round(times(float(since[-1]), float(before[-1])), 2)


def epoch_end(trace: Trace, first: int, last: int) -> int | None:
    """The only step within first to last at which an epoch ends, if there is one."""
    ends = [event.step for event in trace.events if event.kind == "epoch"]
    series = trace.series.get("epoch")
    if not ends and series is not None:
        turned = np.diff(np.floor(np.nan_to_num(series.values))) > 0
        ends = [int(step) for step in series.steps[1:][turned]]
    within = [step for step in ends if first <= step <= last]
    return within[0] if len(within) == 1 else None


def resumes(trace: Trace, first: int, last: int) -> list[int]:
    """The steps within first to last at which the run was resumed."""
    return [e.step for e in trace.events if e.kind == "resume" and first <= e.step <= last]


def _finite(series: Series | None) -> tuple[IntArray, Floats] | None:
    if series is None:
        return None
    finite = np.isfinite(series.values)
    return (
        (series.steps[finite], np.asarray(series.values[finite], np.float64))
        if finite.any()
        else None
    )
