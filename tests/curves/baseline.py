"""The shape classifier to beat: octile medians and fixed limits, after a first study of small runs.

Each test gives a margin, the largest factor on its limits at which it still speaks. One factor for
all limits trades misses for false alarms, so that two classifiers are compared at equal alarms. It
was given the benefit of the doubt where its description is silent: a plateau under a spent learning
rate is a hit and no alarm, benign two-step cycles are not counted, drift and divergence are one.
"""

from collections.abc import Mapping

import numpy as np

from curves.runs import Floats
from optdoctor.trace import Trace

LEAST_ROWS = 8
NEVER = 0.0
SILENT = "early-plateau under a spent rate"
"""A name that counts as a hit and never as an alarm."""


def margins(trace: Trace) -> Mapping[str, float]:
    """{name of a rule: the factor on the limits up to which the baseline says it}."""
    loss = np.asarray(trace.series["loss"].values, np.float64)
    found = {"nan-pulse": np.inf} if not np.isfinite(loss).all() else {}
    loss = loss[np.isfinite(loss)]
    if len(loss) < LEAST_ROWS:
        return found
    level = _level(loss)
    noise = max(1.4826 * _mad(np.diff(level)) / np.sqrt(2), 1e-6)
    octiles = np.array([np.median(part) for part in np.array_split(level, 8)])
    error = 1.2533 * noise / np.sqrt(len(level) / 8)
    rise = float(octiles[-1] - octiles.min())
    found["divergence"] = rise / 0.3
    found["upward-drift"] = min(rise / 0.08, rise / (5 * error))
    found["loss-spike"] = _spike(level, noise)
    found["staircase-oscillation"] = _period(level, noise)
    plateau = _plateau(octiles, error)
    found[SILENT if _is_spent(trace) else "early-plateau"] = plateau
    found["bimodal-gap"] = _overfitting(trace, octiles)
    return {name: float(margin) for name, margin in found.items() if margin > NEVER}


def _level(loss: Floats) -> Floats:
    if loss.min() < 0:
        low, high = np.quantile(loss, [0.05, 0.95])
        return np.asarray(loss / max(high - low, 1e-12), np.float64)
    soft = 0.05 * float(np.median(loss[:3])) or 1e-12
    return np.asarray(np.log(loss + soft), np.float64)


def _mad(values: Floats) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def _prominence(level: Floats) -> Floats:
    """[n]: the height of each row above the medians of the rows before and after it."""
    n = len(level)
    width = max(4, n // 25)
    padded = np.pad(level, width, mode="edge")
    medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    before, after = medians[:n], medians[width + 1 : width + 1 + n]
    return np.asarray(level - np.maximum(before, after), np.float64)


def _spike(level: Floats, noise: float) -> float:
    n = len(level)
    height = _prominence(level)[max(n // 10, 1) :]
    largest = float(height.max(initial=0))
    return min(largest / (9 * noise), largest / (0.25 if n < 60 else np.log(1.1)))


def _period(level: Floats, noise: float) -> float:
    """Autocorrelation of the clipped residual with a second harmonic, or equally spaced spikes."""
    n = len(level)
    if n < 40:
        return NEVER
    width = max(n // 24, 3)
    padded = np.pad(level, width, mode="edge")
    slow = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * width + 1), axis=1)
    left = np.clip((level - slow)[n // 10 :] / noise, -4, 4)
    left -= left.mean()
    lags = len(left) // 4  # four cycles
    size = 1 << (2 * len(left) - 1).bit_length()
    power = np.fft.irfft(np.abs(np.fft.rfft(left, size)) ** 2, size)[: 2 * lags + 1]
    if power[0] <= 0:
        return NEVER
    z = power / power[0] * np.sqrt(len(left))
    at = np.arange(4, lags + 1)
    both = np.minimum(z[at], 2 * z[2 * at])
    return max(float(both.max(initial=0)) / 5.5, _equally_spaced(level, noise))


def _equally_spaced(level: Floats, noise: float) -> float:
    height = _prominence(level)
    order = np.sort(np.flatnonzero(height > max(9 * noise, np.log(1.1))))
    starts = order[np.append(True, np.diff(order) > 2)] if order.size else order
    gaps = np.diff(starts)
    if len(starts) < 4 or gaps.std() > 0.15 * gaps.mean():
        return NEVER
    return float(height[starts].min()) / max(9 * noise, float(np.log(1.1)))


def _plateau(octiles: Floats, error: float) -> float:
    """An equivalence test of the fall of the later half; it abstains where noise hides 2 %."""
    doubt = 2 * np.sqrt(2) * error
    if doubt > 0.02:
        return NEVER
    bound = float(octiles[4] - octiles[7]) + doubt
    return 0.02 / max(bound, 0.005)  # wide limits silence it too: four times as wide do


def _is_spent(trace: Trace) -> bool:
    if not trace.has("lr"):
        return False
    rate = trace.series["lr"].values
    return bool(rate[-1] < 0.05 * rate.max())


def _overfitting(trace: Trace, octiles: Floats) -> float:
    if not trace.has("eval_loss"):
        return NEVER
    series, last = trace.series["eval_loss"], trace.series["loss"].steps[-1]
    values = np.asarray(series.values, np.float64)
    steps = series.steps[np.isfinite(values)]
    values = values[np.isfinite(values)]
    if len(values) < 5:
        return NEVER
    best = int(values.argmin())
    end, unit = float(np.median(values[-3:])), float(values.min())
    if unit <= 0:
        unit = float(np.ptp(values))
    is_rising = end > np.median(values[best : best + 3]) and best < len(values) - 2
    octile = min(int(8 * steps[best] / max(last, 1)), 7)
    is_training = octiles[-1] < octiles[octile]
    return (end - float(values.min())) / unit / 0.05 if is_rising and is_training else NEVER
