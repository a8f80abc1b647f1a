"""What comes back in a curve with a fixed period."""

import numpy as np

from optdoctor.curves.folded import (
    SPIKE,
    folded,
    jumps,
    rises_once,
    smoothness,
    stands_out,
    unfolded,
)
from optdoctor.curves.level import Curve, Floats
from optdoctor.curves.slow_waves import even_rises
from optdoctor.curves.spacing import on_grid
from optdoctor.curves.trend import standardised, trend
from optdoctor.curves.wave import CYCLES, Least, Wave, is_even
from optdoctor.curves.wave_levels import from_first_clear

LEAST_PERIOD = 4
"""Rows below which a cycle is the two-step or three-step one of a large learning rate."""
COMB = 0.2
"""Least height of the comb, on the scale of the autocorrelation."""
SHORT = 0.1
"""Share of the period up to which a jump is that of single batches, not of an order of data."""
MULTIPLE = 1.25
"""How many times higher the autocorrelation is at a multiple of a period that is the true one."""
SMOOTH = -0.25
"""Autocorrelation of differences above which rows were smoothed: that of white noise is -0.5."""
SLIGHTLY, CLIMB = -0.1, 0.35
"""Skew and rise, as a share of the wave, below which the level only ever steps down."""
DOWN = -0.3
"""Skew of the wave's slopes below which its largest jump is down."""


def wave_of(shape: Curve, least: Least = Least(), known: int = 0) -> Wave | None:  # noqa: B008
    """The clearest wave in the curve, of at least `CYCLES` periods; else jumps at even distances.

    `known` is a period in rows that is looked at without a search, 0 where there is none. None also
    where the rows stand at distances too uneven for a period.
    """
    even = on_grid(shape.steps, shape.level)
    if even is None:
        return None
    level, rows = even
    shape, n = shape._replace(level=level), level.size
    height = standardised(level - trend(level, max(n // 24, 2)), np.inf)
    deviation = level - trend(level, n // 8)
    wave = _comb_wave(shape, height, deviation, least, known)
    wave = wave or _even_jumps(level, height, deviation, least) or even_rises(shape, least)
    if wave is None:
        return None
    return wave._replace(jumps=np.unique(rows[from_first_clear(level, wave)]))


def _comb_wave(
    shape: Curve, height: Floats, deviation: Floats, least: Least, known: int
) -> Wave | None:
    n = shape.level.size
    skip = n // 10
    best, lag, power, told = 0.0, 0, np.zeros(1), 0.0
    for values in (np.clip(height, -4, 4), standardised(deviation)):
        here, comb, error = _comb(values[skip:])
        told = max(told, float((comb / error)[max(known - 3, 2) : known].max(initial=0.0)))
        clear = np.where(comb >= COMB, comb / error, 0.0)[LEAST_PERIOD - 2 :]
        if clear.size and clear.max() > best:
            best, power, lag = float(clear.max()), here, int(clear.argmax()) + LEAST_PERIOD
    leeway = _leeway(shape, deviation[skip:], lag)
    found = round(best / leeway, 2) > least.clearness and not _short_cycle(power, lag)
    clearness = best / leeway
    if found:
        lag = _true_period(power, lag)
    else:
        clearness = told / shape.leeway
        if known < LEAST_PERIOD or round(clearness, 2) <= least.known_clearness:
            return None
    period = _refined(power, lag) if found else float(known)
    wave = folded(deviation[skip:], period)
    slopes = np.diff(wave, append=wave[0])
    amplitude = float(np.ptp(wave))
    if round(amplitude, 3) <= least.amplitude:
        return None
    skew = float((slopes.max() + slopes.min()) / (slopes.max() - slopes.min()))
    if skew < SLIGHTLY and _climb(shape.level[skip:], wave.size, period) < CLIMB * amplitude:
        skew = -1.0  # stairs that lead down
    first = (int(slopes.argmax()) + 1) % wave.size
    start = skip + first * period / wave.size
    at = jumps(deviation, np.roll(wave, -first), period, start)
    if at.size < CYCLES:
        return None
    high = int((wave > wave.min() + amplitude / 2).sum())
    lasting = high > max(SHORT * wave.size, 1)
    places = folded(deviation[skip:], period, most=n)
    left = deviation[skip:] - unfolded(places, n - skip, period)
    noise = 1.4826 * float(np.median(np.abs(left))) / np.sqrt((n - skip) / period)
    alike, plain = smoothness(places), stands_out(places) or rises_once(places, noise)
    return Wave(
        period, clearness, 0.0, amplitude, skew, at, lasting, alike, float(wave.min()), plain
    )


def _climb(level: Floats, bins: int, period: float) -> float:
    """How far the level itself rises between two steepest falls.

    A running trend glides down ahead of a step, so that the last rows before it seem to rise.
    """
    rows = round(period)
    fall = float(np.median(level[rows:] - level[:-rows]))  # in a period
    wave = folded(level - fall * np.arange(level.size) / period, period, most=bins)
    slopes = np.diff(wave, append=wave[0])
    course = np.roll(wave, -int(slopes.argmin()) - 1) + fall * np.arange(wave.size) / wave.size
    return float((course - np.minimum.accumulate(course)).max())


def _leeway(shape: Curve, deviation: Floats, lag: int) -> float:
    """That of the curve, where what is left beside the wave is smooth too: a wave is by itself."""
    few = 1 + 6 / shape.blocks.size
    if shape.leeway <= few or lag < LEAST_PERIOD:
        return shape.leeway
    left = deviation - unfolded(folded(deviation, lag, most=lag), deviation.size, lag)
    difference = np.diff(left)
    bound = 4 * 1.4826 * float(np.median(np.abs(difference)))
    likeness = autocorrelation(np.clip(difference, -bound, bound), 1)[1]
    return shape.leeway if likeness > SMOOTH else few


def _comb(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Autocorrelation; height and standard error (Bartlett) of the comb at lags 2, 3, ... n/4."""
    last = values.size // CYCLES
    power = autocorrelation(values, 3 * last)
    lags = np.arange(2, last + 1)
    full = np.stack([power[lags * m] for m in (1, 2, 3)])
    half = np.stack([np.interp(lags * m / 2, np.arange(power.size), power) for m in (1, 3, 5)])
    height = full.mean(axis=0) - half.mean(axis=0) + np.minimum(full.min(axis=0), 0)
    known = np.cumsum(power[1:] ** 2)[lags // 2 - 1]
    return power, height, 0.82 * np.sqrt((1 + 2 * known) / values.size)


def _short_cycle(power: Floats, lag: int) -> bool:
    """Whether the period is that of a cycle of 2 or 3 rows, seen several times over."""
    for short in (2, 3):
        full = power[short * np.arange(1, 4)].min()
        between = np.delete(power[1 : 3 * short + 1], short * np.arange(1, 4) - 1).max()
        if lag <= 0 or full - between > power[lag] / 2:
            return True
    return False


def _true_period(power: Floats, lag: int) -> int:
    """The lag, or its multiple where the autocorrelation is clearly higher: half a period may be
    high by chance, the whole one is not."""
    best = lag
    for multiple in range(2 * lag, power.size - 1, lag):
        at = multiple - 1 + int(power[multiple - 1 : multiple + 2].argmax())
        if power[at] > max(MULTIPLE * power[lag], power[best]):
            best = at
    return best


def _refined(power: Floats, lag: int) -> float:
    """The period as a fraction of rows, from the peaks at its multiples."""
    period, times = float(lag), 2
    while (times + 0.5) * period < power.size - 2:
        near = round(times * period)
        window = power[near - 1 : near + 2]
        if window.max() < power[lag] / 2:
            break
        period = (near - 1 + int(window.argmax())) / times
        times *= 2
    return period


def _even_jumps(level: Floats, height: Floats, deviation: Floats, least: Least) -> Wave | None:
    n = height.size
    high = np.flatnonzero(height[n // 10 :] > SPIKE) + n // 10
    if high.size <= CYCLES:
        return None
    groups = np.split(high, np.flatnonzero(np.diff(high) > max(n // 100, 2)) + 1)
    peaks = np.array([group[height[group].argmax()] for group in groups])
    peaks = peaks[deviation[peaks] > np.median(deviation[peaks]) / 2]
    before = [np.median(level[max(peak - n // 24, 0) : peak + 1]) for peak in peaks]
    peaks = peaks[level[peaks] - before > deviation[peaks] / 2]  # no last rows before a step down
    for start in range(peaks.size // 4 + 1):  # a few before the period began
        tall = peaks[start:]
        if tall.size <= CYCLES:
            break
        apart = np.diff(tall)
        spread, amplitude = float(apart.std() / apart.mean()), float(np.median(deviation[tall]))
        if is_even(tall, least.spacing) and round(amplitude, 3) > least.amplitude:
            period = float(np.median(apart))
            return Wave(period, 0.0, spread, amplitude, 0.0, tall, False, 0.0, 0.0, plain=True)
    return None


def autocorrelation(values: Floats, lags: int) -> Floats:
    """[lags + 1]: of values with their mean taken off; 1 at lag 0, 0 throughout for a constant."""
    centred = values - values.mean()
    size = 1 << (2 * len(values) - 1).bit_length()
    power = np.fft.irfft(np.abs(np.fft.rfft(centred, size)) ** 2, size)[: lags + 1]
    return power / power[0] if power[0] > 0 else np.zeros(lags + 1)
