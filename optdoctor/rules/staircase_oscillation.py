"""The loss jumps or swings with a fixed period.

## What it finds
A wave of at least 4 cycles and 4 rows a cycle in the logarithm of the loss, once its slow trend is
taken off: the autocorrelation is high at 1, 2 and 3 periods and low half a period beside them,
which neither noise nor a moving average does. Or at least 5 jumps of like height at even distances.
It is an alarm where the wave is smooth from row to row, or rises once and falls once, or where a
few places in the period stand out. The evidence says what else has that period: the epoch, the
learning rate, evaluations, checkpoints, or norms that are clipped.
## Why it matters
Something comes back: the same batches in the same order, a few broken batches, or a job that
disturbs the training. The model learns them anew each time, and what lies between is forgotten.
## What to do
Compare the period with the length of the epoch and with the distance of evaluations and
checkpoints. Shuffle the training data anew in each epoch. Look at the batches at the jumps. Where
the gradient norm is an outlier at the jumps, clipping at 1.5 times its running mean bounds their
step; for data in a fixed order that is not proposed: there each jump is a part of the data that
has to be learned. A larger clip norm is not proposed: a clip has no period of its own.
## When it is fine
The loss falls at each new epoch of a model that remembers its data: a step down, not a jump. It
follows a learning rate that restarts or steps with the same period. Cycles of 2 or 3 steps of a
large learning rate do no harm. Batches that come back in one mixed order each have a level of their
own, so the loss repeats row for row while neighbours have nothing in common: that is a note. A text
that is read in the same order in each epoch gives a wave of the epoch's length; up to about a third
from bottom to top it is a note too.
## Told apart from
`bad-batch`: the single batches that make such jumps, by loss and gradient norm at once.
`loss-spike`: single jumps, or several without a period. `upward-drift`: what stays up.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optdoctor import rule
from optdoctor.curves.level import Curve, Floats
from optdoctor.curves.masked import FILTERED_BY, loss_curve
from optdoctor.curves.rates import rates
from optdoctor.curves.trend import standardised, trend
from optdoctor.curves.waves import autocorrelation
from optdoctor.findings import Abstain, Evidence, Finding, Safety, Severity, Treatment, When
from optdoctor.knowledge.losses import RUNNING_MEAN, SUM
from optdoctor.store import IntArray, Series
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace
from optdoctor.trace import Trace

NO_SHAPE = frozenset({"reward", "adversarial"})
"""Values of loss_kind whose curve swings in a good run."""
CYCLES = 4
"""Fewest periods in the rows looked at."""
LEAST_PERIOD = 4
"""Rows below which a cycle is the two-step or three-step one of a large learning rate."""
COMB = 0.2
"""Least height of the comb, on the scale of the autocorrelation."""
DOWN = -0.3
"""Skew of the wave's slopes below which its largest jump is down."""
SPIKE = 6.0
"""Deviation, in standard deviations, from which a row is a peak of its own."""
OUTLIER = 4.5
"""The same for the logarithm of the gradient norm, at the jumps."""
SHORT = 0.1
"""Share of the period up to which a jump is that of single batches, not of an order of data."""
TOGETHER = 0.8
"""Share of the jumps at which another event is no accident."""
RATE_SPIKE = 10.0
"""Multiple of its median above which a learning rate is no schedule that restarts."""
FACTOR = 0.7
"""Amplitude above which a factor reads better than a percentage."""
BINS = 64
"""Most bins of a folded wave."""
SAME = 0.05
"""Relative difference up to which two periods are the same."""
MULTIPLE = 1.25
"""How many times higher the autocorrelation is at a multiple of a period that is the true one."""
ONE_TOP = 7
"""Places from which a mixed order hardly ever rises once and falls once."""
FEW = 6.0
"""Places in the period at which the spread of the others is known only to a factor of two."""


def _do(title: str, when: When, source: str, safety: Safety = "manual") -> Treatment:
    return Treatment(title=title, when=when, safety=safety, basis="heuristic", source=source)


CLIP = _do(
    "Clip the gradient at 1.5 times the running mean of its norm",
    "now",
    "it bounds the step of a batch that stands out and leaves all others as they are",
    "risky",
)
SHUFFLE = _do("Shuffle the training data anew in each epoch", "next", "an order that comes back")
OTHER_ORDER = _do(
    "Train one epoch with another seed of the shuffle: if the jumps move, the data make them",
    "check",
    "only the order of the data differs",
)
COMPARE = _do(
    "Compare the period with the length of the epoch and with the distance of evaluations,"
    " checkpoints and changes of the rate",
    "check",
    "what has the same period is where to look",
)


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 40
    """Four periods of at least four rows, with the first tenth left out, and room for a trend."""
    clearness: float = 5.0
    """Height of the comb, in its standard errors, that noise does not reach; a third more where
    rows were smoothed, and more for few rows."""
    known_clearness: float = 3.0
    """The same at the distance of jumps of the learning rate: nothing was searched for."""
    amplitude: float = 0.03
    """Least difference between top and bottom of the mean wave, in the loss's logarithm: 3 %."""
    spacing: float = 0.15
    """Largest relative spread of the distances between jumps that count as even."""
    order_amplitude: float = 0.3
    """Amplitude, as above, up to which a wave as long as the epoch is a note: parts of the data
    differ by that much where nothing is wrong."""
    smoothness: float = 2.5
    """Likeness of neighbours in the mean wave, in its standard errors, up to which the places of
    the period are levels of single batches in a mixed order: heuristic."""


class Wave(NamedTuple):
    """What comes back, in rows of the curve."""

    period: float
    clearness: float  # standard errors of the comb, 0 where jumps were counted instead
    spacing: float  # relative spread of the distances between jumps, 0 where the comb found it
    amplitude: float
    skew: float  # of its slopes: 1 only jumps up, -1 only down, 0 alike
    jumps: IntArray  # row of each jump
    lasting: bool  # whether the loss stays up for more than single rows
    smoothness: float  # likeness of neighbours in the wave, in its standard errors
    plain: bool  # whether a place of the period stands out of all others, or it rises just once


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    kind = trace.facts.get("loss_kind")
    if kind in NO_SHAPE:
        return Abstain(f"a loss of kind {kind} swings in a good run")
    if (form := trace.facts.get("loss_form")) in (RUNNING_MEAN, SUM):
        return Abstain(f"a loss that is logged as a {form} swings by itself")
    shape = loss_curve(trace)
    if shape is None or shape.level.size < limits.rows:
        return Abstain(f"{shape.level.size if shape else 0} finite losses, needs {limits.rows}")
    rows, rate = shape.level.size, rates(trace, shape)
    height = standardised(shape.level - trend(shape.level, max(rows // 24, 2)), np.inf)
    deviation = shape.level - trend(shape.level, rows // 8)
    raised = _raised(rate, limits) if rate is not None else None
    wave = _comb_wave(shape, height, deviation, limits, raised)
    wave = wave or _even_jumps(height, deviation, limits)
    if wave is None or wave.skew < DOWN or (rate is not None and _restarts(rate, wave)):
        return []
    apart = float(np.median(np.diff(shape.steps)))
    epoch = _epoch(trace)
    of_order = epoch is not None and _multiple(wave.period * apart, epoch[1], apart)
    mixed = raised is None and not wave.plain and round(wave.smoothness, 2) <= limits.smoothness
    weak = of_order and round(wave.amplitude, 3) <= limits.order_amplitude
    steps = shape.steps[wave.jumps]
    swings = wave.lasting and abs(wave.skew) < -DOWN
    word = "Oscillation: the loss swings" if swings else "Staircase: the loss jumps"
    size = f"{100 * math.expm1(min(wave.amplitude, FACTOR)):.2g} %"
    if wave.amplitude > FACTOR:
        size = f"a factor of {math.exp(min(wave.amplitude, 700.0)):.3g}"
    least = f"limit {100 * math.expm1(limits.amplitude):.2g} %"
    every = f"about every {wave.period * apart:.3g} steps"
    times = f"{steps.size} times since step {steps[0]}"
    summary = f"{word} by {size} {every}, {times} ({least})."
    if mixed:
        summary = (
            f"Oscillation: the order of the batches repeats {every}, {times}, and each batch has"
            f" its own level: the highest is {math.exp(min(wave.amplitude, 700.0)):.3g} times the"
            f" lowest ({least})."
        )
    return [
        Finding(
            severity=Severity.NOTE if weak or mixed else Severity.WARN,
            summary=summary,
            steps=(int(steps[0]), int(min(steps[-1] + wave.period * apart, shape.steps[-1]))),
            period=round(wave.period * apart),
            evidence=(
                *_evidence(wave, limits, apart, epoch, of_order=of_order, told=raised is not None),
                *_alike(wave, limits, mixed=mixed),
                *_company(trace, steps, apart, wave.period * apart, rate, raised),
            ),
            treatments=(SHUFFLE, OTHER_ORDER)
            if mixed
            else _treatments(trace, shape, wave, of_order=of_order, raised=raised),
        )
    ]


def _comb_wave(
    shape: Curve, height: Floats, deviation: Floats, limits: Limits, raised: IntArray | None
) -> Wave | None:
    n = shape.level.size
    skip = n // 10
    known = round(float(np.median(np.diff(raised)))) if raised is not None else 0
    best, lag, power, told = 0.0, 0, np.zeros(1), 0.0
    for values in (np.clip(height, -4, 4), standardised(deviation)):
        here, comb, error = _comb(values[skip:])
        told = max(told, float((comb / error)[max(known - 3, 2) : known].max(initial=0.0)))
        clear = np.where(comb >= COMB, comb / error, 0.0)[LEAST_PERIOD - 2 :]
        if clear.size and clear.max() > best:
            best, power, lag = float(clear.max()), here, int(clear.argmax()) + LEAST_PERIOD
    found = round(best / shape.leeway, 2) > limits.clearness and not _short_cycle(power, lag)
    clearness = best / shape.leeway
    if found:
        lag = _true_period(power, lag)
    else:
        clearness = told / shape.leeway
        if known < LEAST_PERIOD or round(clearness, 2) <= limits.known_clearness:
            return None
    period = _refined(power, lag) if found else float(known)
    wave = _folded(deviation[skip:], period)
    slopes = np.diff(wave, append=wave[0])
    amplitude = float(np.ptp(wave))
    if round(amplitude, 3) <= limits.amplitude:
        return None
    skew = float((slopes.max() + slopes.min()) / (slopes.max() - slopes.min()))
    first = (int(slopes.argmax()) + 1) % wave.size
    start = skip + first * period / wave.size
    jumps = _jumps(deviation, np.roll(wave, -first), period, start)
    if jumps.size < CYCLES:
        return None
    high = int((wave > wave.min() + amplitude / 2).sum())
    lasting = high > max(SHORT * wave.size, 1)
    places = _folded(deviation[skip:], period, most=n)
    alike, plain = _smoothness(places), _stands_out(places) or _rises_once(places)
    return Wave(period, clearness, 0.0, amplitude, skew, jumps, lasting, alike, plain)


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


def _smoothness(places: Floats) -> float:
    """Correlation of neighbours around the period, in standard errors of a mixed order."""
    centred = places - places.mean()
    power = float(centred @ centred)
    alike = float(centred @ np.roll(centred, 1)) / power if power > 0 else 0.0
    return alike * math.sqrt(min(places.size, BINS))


def _rises_once(places: Floats) -> bool:
    """Whether a period has one top and one bottom: of mixed orders of 7 places, 4 % have."""
    rising = np.diff(places, append=places[0]) > 0
    return places.size >= ONE_TOP and int((rising != np.roll(rising, 1)).sum()) == 2


def _stands_out(places: Floats) -> bool:
    """Whether the highest place stands out of all others, further where these are few."""
    above = places - np.median(places)
    spread = 1.4826 * float(np.median(np.abs(above)))
    return bool(above.max() > SPIKE * (1 + FEW / places.size) * spread)


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


def _bins(rows: IntArray | Floats, period: float, bins: int) -> IntArray:
    """The bin of each row, by its place in the period."""
    return np.minimum(np.mod(rows, period) / period * bins, bins - 1).astype(np.int64)


def _folded(values: Floats, period: float, most: int = BINS) -> Floats:
    """[bins]: the mean wave over one period, in a bin per row but not more than `most`."""
    bins = int(min(round(period), most))
    phase = _bins(np.arange(values.size), period, bins)
    total = np.bincount(phase, values, minlength=bins)
    return np.asarray(total / np.maximum(np.bincount(phase, minlength=bins), 1), np.float64)


def _jumps(deviation: Floats, wave: Floats, period: float, start: float) -> IntArray:
    """The row of the steepest rise in each cycle that holds the wave, by projection on it."""
    template = wave - wave.mean()
    reach = max(math.ceil(period / wave.size), 1)
    rows = []
    for begin in np.arange(start % period, deviation.size, period):
        at = np.arange(math.ceil(begin), min(math.ceil(begin + period), deviation.size))
        shape = template[_bins(at - start, period, wave.size)]
        power = float(shape @ shape)
        if power <= 0 or shape @ deviation[at] < power / 2:
            continue
        low, high = max(round(begin) - reach, 1), min(round(begin) + reach + 1, deviation.size)
        if high > low:
            rows.append(low + int(np.diff(deviation[low - 1 : high]).argmax()))
    return np.array(rows, np.int64)


def _even_jumps(height: Floats, deviation: Floats, limits: Limits) -> Wave | None:
    n = height.size
    high = np.flatnonzero(height[n // 10 :] > SPIKE) + n // 10
    if high.size <= CYCLES:
        return None
    groups = np.split(high, np.flatnonzero(np.diff(high) > max(n // 100, 2)) + 1)
    peaks = np.array([group[height[group].argmax()] for group in groups])
    peaks = peaks[deviation[peaks] > np.median(deviation[peaks]) / 2]
    for start in range(peaks.size // 4 + 1):  # a few before the period began
        tall = peaks[start:]
        if tall.size <= CYCLES:
            break
        apart = np.diff(tall)
        spread, amplitude = float(apart.std() / apart.mean()), float(np.median(deviation[tall]))
        if round(spread, 3) < limits.spacing and round(amplitude, 3) > limits.amplitude:
            period = float(np.median(apart))
            return Wave(period, 0.0, spread, amplitude, 0.0, tall, False, 0.0, plain=True)
    return None


def _raised(rate: Floats, limits: Limits) -> IntArray | None:
    """Rows at which the rate jumps far above its median, where their distances are even."""
    high = rate > RATE_SPIKE * np.median(rate)
    rows = np.flatnonzero(high[1:] & ~high[:-1]) + 1
    apart = np.diff(rows)
    if rows.size < CYCLES or round(float(apart.std() / apart.mean()), 3) >= limits.spacing:
        return None
    return rows


def _restarts(rate: Floats, wave: Wave) -> bool:
    """Whether a schedule restarts or steps with the period of the wave."""
    if rate.max() > RATE_SPIKE * np.median(rate):
        return False
    level = np.log(np.maximum(rate, 1e-3 * rate.max()))
    swing = (level - trend(level, level.size // 8))[level.size // 10 :]
    mean = _folded(swing, wave.period)
    return bool(np.ptp(mean) > SAME and mean.var() > swing.var() / 2)


def _epoch(trace: Trace) -> tuple[str, float] | None:
    """The channel that tells, and the steps in an epoch; None where nothing tells."""
    starts = np.array([event.step for event in trace.events if event.kind == "epoch"], np.int64)
    name = "loss"
    if "batch_index" in trace.series and starts.size < 3:
        index = trace.series["batch_index"]
        name, starts = "batch_index", index.steps[1:][np.diff(index.values) < 0]
    if "epoch" in trace.series and starts.size < 3:
        epoch = trace.series["epoch"]
        name, starts = "epoch", epoch.steps[1:][np.diff(np.floor(epoch.values)) > 0]
    if starts.size < 3:
        return None
    return name, float(np.median(np.diff(starts)))


def _multiple(period: float, unit: float, tolerance: float) -> bool:
    times = round(period / unit) if unit > 0 else 0
    return 1 <= times <= 3 and abs(period - times * unit) <= max(SAME * period, tolerance)


def _evidence(
    wave: Wave,
    limits: Limits,
    apart: float,
    epoch: tuple[str, float] | None,
    *,
    of_order: bool,
    told: bool,
) -> list[Evidence]:
    what = "top to bottom of the mean wave, in the loss's logarithm"
    limit = limits.order_amplitude if of_order else limits.amplitude
    evidence = [Evidence("loss", what, wave.amplitude, limit, "log")]
    if wave.spacing or not wave.clearness:
        what = f"spread of the distances between {wave.jumps.size} jumps"
        evidence.append(Evidence("loss", what, wave.spacing, limits.spacing, "of the mean"))
    else:
        what = "autocorrelation at 1, 2 and 3 periods over that half a period beside"
        limit = min(limits.clearness, limits.known_clearness if told else np.inf)
        evidence.append(Evidence("loss", what, wave.clearness, limit, "standard errors"))
    if epoch is not None:
        fits = "of which it is a multiple: order of data" if of_order else "which it does not fit"
        what = f"period, beside the length of the epoch, {fits}"
        evidence.append(Evidence(epoch[0], what, wave.period * apart, epoch[1], "steps"))
    return evidence


def _alike(wave: Wave, limits: Limits, *, mixed: bool) -> list[Evidence]:
    """Why it is no alarm, where the batches come back in a mixed order."""
    what = "likeness of neighbouring rows in the mean wave, low as in a mixed order"
    unit = "standard errors"
    return [Evidence("loss", what, wave.smoothness, limits.smoothness, unit)] if mixed else []


def _company(
    trace: Trace,
    jumps: IntArray,
    apart: float,
    period: float,
    rate: Floats | None,
    raised: IntArray | None,
) -> list[Evidence]:
    """What else happens at the jumps, beside what chance would give."""
    evidence = []
    if rate is not None and raised is not None:
        times = float(rate.max() / max(np.median(rate), 1e-300))
        what = f"learning rate over its median, raised {raised.size} times at that distance"
        evidence.append(Evidence("lr", what, times, RATE_SPIKE, "times"))
    evaluations = [event.step for event in trace.events if event.kind == "evaluation"]
    if "eval_loss" in trace.series and not evaluations:
        evaluations = trace.series["eval_loss"].steps.tolist()
    checkpoints = [event.step for event in trace.events if event.kind == "checkpoint"]
    for channel, word, at in (
        ("eval_loss", "an evaluation", evaluations),
        ("loss", "a checkpoint", checkpoints),
    ):
        steps = np.unique(np.array(at, np.int64))
        every = float(np.median(np.diff(steps))) if steps.size > 1 else 0.0
        if abs(every - period) > max(SAME * period, apart):
            continue
        behind = jumps - steps[np.maximum(np.searchsorted(steps, jumps, "right") - 1, 0)]
        beside = int(((behind >= 0) & (behind <= apart)).sum())
        if beside >= TOGETHER * jumps.size:
            chance = jumps.size * 2 * apart / every
            what = f"jumps that follow {word} at once; the limit is what chance gives"
            evidence.append(Evidence(channel, what, beside, chance, "jumps"))
    clip = trace.facts.get("max_grad_norm")
    if "grad_norm" in trace.series and isinstance(clip, int | float) and 0 < clip < 1e300:
        norm = trace.series["grad_norm"]
        share = float((norm.values > clip).mean())
        beside = int((_highest(norm, jumps, apart) > clip).sum())
        if beside >= TOGETHER * jumps.size and share < TOGETHER:
            what = "jumps with a norm that is clipped, which a broken batch makes and a clip does"
            what = f"{what} not; the limit is what chance gives"
            evidence.append(Evidence("grad_norm", what, beside, share * jumps.size, "jumps"))
    return evidence


def _highest(norm: Series, jumps: IntArray, apart: float) -> Floats:
    """[J]: the largest norm at most one row from each jump; -inf where there is none."""
    highest = np.full(jumps.size, -np.inf)
    for i, jump in enumerate(jumps):
        near = norm.values[(norm.steps >= jump - apart) & (norm.steps <= jump + apart)]
        highest[i] = near[np.isfinite(near)].max(initial=-np.inf)
    return highest


def _outlying(trace: Trace, jumps: IntArray, apart: float) -> bool:
    """Whether the gradient norm stands out at most of the jumps."""
    for name in ("grad_norm", "grad_norm_used"):
        if name in trace.series:
            norm = trace.series[name]
            usual = norm.values[np.isfinite(norm.values) & (norm.values > 0)]
            if usual.size < LEAST_PERIOD:
                continue
            level = np.log(usual)
            spread = max(1.4826 * float(np.median(np.abs(level - np.median(level)))), 0.1)
            highest = np.log(np.maximum(_highest(norm, jumps, apart), 1e-300))
            return bool(np.median(highest) > np.median(level) + OUTLIER * spread)
    return False


def _treatments(
    trace: Trace, shape: Curve, wave: Wave, *, of_order: bool, raised: IntArray | None
) -> tuple[Treatment, ...]:
    steps = shape.steps[wave.jumps]
    apart = float(np.median(np.diff(shape.steps)))
    if raised is not None:
        first = int(shape.steps[raised[0]])
        title = f"Take the jumps out of the schedule: the learning rate leaps at step {first}"
        return _do(title, "next", "the loss jumps where the rate does"), COMPARE
    if of_order:
        return SHUFFLE, OTHER_ORDER
    at = ", ".join(str(step) for step in steps[:3])
    batches = _do(f"Look at the batches of steps {at}", "next", "what comes back is in the data")
    if not wave.lasting and _outlying(trace, steps, apart):
        return CLIP, batches, SHUFFLE, COMPARE, OTHER_ORDER
    return SHUFFLE, batches, COMPARE, OTHER_ORDER


def _sick() -> Trace:
    loss = falling_loss()[:395]
    loss[119::40] *= 1.5
    return make_trace(loss=loss, grad_norm=gradient_norms()[:395])


RULE = rule.Rule(
    name="staircase-oscillation",
    needs=("loss",),
    uses=(
        "epoch",
        "batch_index",
        "lr",
        "grad_norm",
        "grad_norm_used",
        "max_grad_norm",
        "eval_loss",
        "loss_kind",
        "loss_form",
        *FILTERED_BY,
    ),
    onset="estimated",
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss(), grad_norm=gradient_norms()),
    doc=__doc__ or "",
)
