"""Waves of the learning rate and the length of the epoch: what else has a period."""

import numpy as np

from optdoctor.curves.folded import folded
from optdoctor.curves.level import Floats
from optdoctor.curves.trend import trend
from optdoctor.curves.wave import CYCLES, Wave
from optdoctor.store import IntArray, Series
from optdoctor.trace import Trace

RATE_SPIKE = 10.0
"""Multiple of its median above which a learning rate is no schedule that restarts."""
LEAST_NORMS = 4
"""Norms below which none stands out."""
PARTS = (0.5, 1.0, 2.0, 3.0)
"""Lengths, in epochs, of what comes back with the epoch."""
OUTLIER = 4.5
"""Standard deviations of the logarithm of the gradient norm from which it stands out at a jump."""
EARLY = 0.02
"""Share of the first epoch up to which its first row is its beginning."""
SAME = 0.05
"""Relative difference up to which two periods are the same."""


def raised(rate: Floats, spacing: float) -> IntArray | None:
    """Rows at which the rate jumps far above its median, where their distances are even."""
    high = rate > RATE_SPIKE * np.median(rate)
    rows = np.flatnonzero(high[1:] & ~high[:-1]) + 1
    apart = np.diff(rows)
    if rows.size < CYCLES or round(float(apart.std() / apart.mean()), 3) >= spacing:
        return None
    return rows


def restarts(rate: Floats, wave: Wave) -> bool:
    """Whether a schedule restarts or steps with the period of the wave."""
    if rate.max() > RATE_SPIKE * np.median(rate):
        return False
    level = np.log(np.maximum(rate, 1e-3 * rate.max()))
    swing = (level - trend(level, level.size // 8))[level.size // 10 :]
    mean = folded(swing, wave.period)
    return bool(np.ptp(mean) > SAME and mean.var() > swing.var() / 2)


def epoch_length(trace: Trace) -> tuple[str, float] | None:
    """The channel that tells, and the steps in an epoch; None where nothing tells.

    Reads `epoch`, `batch_index` and the events.
    """
    starts = np.array([event.step for event in trace.events if event.kind == "epoch"], np.int64)
    if starts.size >= 2:
        return "loss", float(np.median(np.diff(starts)))
    if "batch_index" in trace.series:
        index = trace.series["batch_index"]
        starts = index.steps[1:][np.diff(index.values) < 0]
        if starts.size >= 2:
            return "batch_index", float(np.median(np.diff(starts)))
    if "epoch" not in trace.series:
        return None
    epoch = trace.series["epoch"]
    known = np.isfinite(epoch.values)
    steps, values = epoch.steps[known], np.asarray(epoch.values[known], np.float64)
    starts = steps[1:][np.diff(np.floor(values)) > 0]
    if starts.size >= 2:
        return "epoch", float(np.median(np.diff(starts)))
    if starts.size and steps[0] <= EARLY * starts[0]:  # the log begins with the first epoch
        return "epoch", float(starts[0] - steps[0])
    passed = float(values[-1] - values[0]) if values.size > 1 else 0.0
    if passed <= 0 or not (values % 1).any():
        return None
    return "epoch", float(steps[-1] - steps[0]) / passed


def is_of(period: float, unit: float, tolerance: float) -> bool:
    """Whether a period is that of the unit, half of it, or up to three times as long."""
    return any(
        abs(period - times * unit) <= max(SAME * period, tolerance) for times in PARTS if unit > 0
    )


def is_not_of(period: float, unit: float, tolerance: float) -> bool:
    """Whether a period can have nothing to do with the unit: it is shorter than half of it, or no
    multiple where few multiples lie near it."""
    return period < PARTS[-1] * unit and not is_of(period, unit, tolerance)


def highest_near(norm: Series, jumps: IntArray, apart: float) -> Floats:
    """[J]: the largest norm at most one row from each jump; -inf where there is none."""
    values = np.where(np.isfinite(norm.values), norm.values, -np.inf)
    first = np.searchsorted(norm.steps, jumps - apart)
    past = np.searchsorted(norm.steps, jumps + apart, "right")
    highest = np.full(jumps.size, -np.inf)
    for offset in range(int((past - first).max(initial=0))):
        at = first + offset
        inside = at < past
        highest[inside] = np.maximum(highest[inside], values[at[inside]])
    return highest


def is_outlying(trace: Trace, jumps: IntArray, apart: float) -> bool:
    """Whether the gradient norm stands out at most of the jumps."""
    for name in ("grad_norm", "grad_norm_used"):
        if name in trace.series:
            norm = trace.series[name]
            usual = norm.values[np.isfinite(norm.values) & (norm.values > 0)]
            if usual.size < LEAST_NORMS:
                continue
            level = np.log(usual)
            spread = max(1.4826 * float(np.median(np.abs(level - np.median(level)))), 0.1)
            highest = np.log(np.maximum(highest_near(norm, jumps, apart), 1e-300))
            return bool(np.median(highest) > np.median(level) + OUTLIER * spread)
    return False
