"""The loss jumps or swings with a fixed period.

## What it finds
A wave of at least 4 cycles and 4 rows a cycle in the logarithm of the loss, once its slow trend is
taken off: the autocorrelation is high at 1, 2 and 3 periods and low half a period beside them,
which neither noise nor a moving average does. Or at least 5 jumps of like height at even distances,
or 4 rises of the level that it falls back from. Of rows at uneven distances the longest even part.
It is an alarm where the wave is smooth from row to row, or rises once and falls once, or where a
few places in the period stand out. The evidence says what else has that period: the epoch, the
learning rate, evaluations, checkpoints, or norms that are clipped.
## Why it matters
Something comes back: the same batches in the same order, a few broken batches, or a job that
disturbs the training. The model learns them anew each time, and what lies between is forgotten.
## What to do
Compare the period with the length of the epoch and with the distance of evaluations and
checkpoints, and of copies to a target network, at each of which the loss jumps. Shuffle the
training data anew in each epoch. Look at the batches at the jumps. Where
the gradient norm is an outlier at the jumps, clipping at 1.5 times its running mean bounds their
step; for data in a fixed order that is not proposed: there each jump is a part of the data that
has to be learned. A larger clip norm is not proposed: a clip has no period of its own.
## When it is fine
The loss falls at each new epoch of a model that remembers its data: a step down, not a jump. It
follows a learning rate that restarts or steps with the same period. Cycles of 2 or 3 steps of a
large learning rate do no harm. Batches that come back in one mixed order each have a level of their
own, so the loss repeats row for row while neighbours have nothing in common: that is a note. So is
a wave as long as the epoch, half of it or two or three of them, where the log tells how long that
is: it is the order of the data, as in a text that is read from front to back in each epoch, unless
the last half is no better than a guess among a known number of classes. Where the epoch fits none
of these, the order of the data is not proposed.
## Told apart from
`bad-batch`: the single batches that make such jumps, by loss and gradient norm at once.
`loss-spike`: single jumps, or several without a period. `upward-drift`: what stays up.
"""

import math
from dataclasses import dataclass

import numpy as np

from optdoctor import rule
from optdoctor.curves.chance import never_better
from optdoctor.curves.companions import (
    RATE_SPIKE,
    SAME,
    epoch_length,
    highest_near,
    is_not_of,
    is_of,
    is_outlying,
    raised,
    restarts,
)
from optdoctor.curves.level import Curve, Floats, curve
from optdoctor.curves.masked import FILTERED_BY, unmasked, witness
from optdoctor.curves.rates import rates
from optdoctor.curves.spacing import even_part
from optdoctor.curves.wave import Least, Wave, most_spread
from optdoctor.curves.wave_levels import bottom_and_top
from optdoctor.curves.waves import DOWN, wave_of
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import RESCALED, RUNNING_MEAN, SUM, called
from optdoctor.knowledge.staircases import (
    CLIP,
    COMPARE,
    COMPARE_REST,
    OTHER_ORDER,
    SHUFFLE,
    look_at,
    take_out,
)
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace
from optdoctor.trace import Trace

NO_SHAPE = frozenset({"reward", "adversarial"})
"""Values of loss_kind whose curve swings in a good run."""
TOGETHER = 0.8
"""Share of the jumps at which another event is no accident."""
ALIKE = (
    "likeness of neighbouring rows in the average period: below the limit each row has a level of"
    " its own, as batches in a mixed order have"
)
"""Why it is no alarm, where the batches come back in a mixed order."""
FACTOR = 2.0
"""Multiple from which a factor reads better than a percentage."""


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
    smoothness: float = 2.5
    """Likeness of neighbours in the mean wave, in its standard errors, up to which the places of
    the period are levels of single batches in a mixed order: heuristic."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    kind = trace.facts.get("loss_kind")
    if kind in NO_SHAPE:
        return Abstain(f"{called(str(kind))} swings in a good run")
    if (form := trace.facts.get("loss_form")) in (RUNNING_MEAN, SUM):
        return Abstain(f"a loss that is logged as a {form} swings by itself")
    loss = unmasked(trace.series["loss"], witness(trace))
    part = even_part(loss)
    shape = curve(part)
    if shape is None or shape.level.size < limits.rows:
        rows = int(np.isfinite(part.values).sum())
        how = "" if part is loss else " at one distance"
        return Abstain(f"{rows} finite losses{how}, needs {limits.rows}")
    rate = rates(trace, shape)
    leaps = raised(rate, limits.spacing) if rate is not None else None
    known = round(float(np.median(np.diff(leaps)))) if leaps is not None else 0
    least = Least(limits.clearness, limits.known_clearness, limits.amplitude, limits.spacing)
    wave = wave_of(shape, least, known)
    if wave is None or wave.skew < DOWN or (rate is not None and restarts(rate, wave)):
        return []
    apart = float(np.median(np.diff(shape.steps)))
    epoch = epoch_length(trace)
    of_order = epoch is not None and epoch[1] > 2 * apart
    of_order = of_order and is_of(wave.period * apart, epoch[1] if epoch else 0.0, apart)
    is_other = epoch is not None and epoch[1] > 2 * apart
    is_other = is_other and is_not_of(wave.period * apart, epoch[1] if epoch else 0.0, apart)
    mixed = leaps is None and not wave.plain and round(wave.smoothness, 2) <= limits.smoothness
    steps = shape.steps[wave.jumps]
    of_epoch = "the order of the data" if of_order else "not the order of the data"
    length = f"an epoch has {epoch[1]:,.4g} steps: {of_epoch}" if epoch else ""
    length = length if of_order or is_other else ""
    helpless = _never_better(trace, shape) if of_order and not mixed else []
    for found in helpless:
        length += f", and the loss of the last half, {found.observed:.4g}, is no better than chance"
    summary = _summary(shape, wave, limits, apart, length, mixed=mixed)
    return [
        Finding(
            severity=Severity.NOTE if (of_order and not helpless) or mixed else Severity.WARN,
            summary=summary,
            steps=(int(steps[0]), int(min(steps[-1] + wave.period * apart, shape.steps[-1]))),
            period=round(wave.period * apart),
            evidence=(
                *_evidence(
                    shape, wave, limits, apart, epoch, of_order=of_order, told=leaps is not None
                ),
                *(
                    [Evidence("loss", ALIKE, wave.smoothness, limits.smoothness, "standard errors")]
                    * mixed
                ),
                *helpless,
                *_company(trace, steps, apart, wave.period * apart, rate, leaps),
            ),
            treatments=_treatments(
                trace, shape, wave, of_order=of_order or mixed, is_other=is_other, raised=leaps
            ),
        )
    ]


def _never_better(trace: Trace, shape: Curve) -> list[Evidence]:
    """That nothing is learnt in this order of the data, where the number of classes is known."""
    facts = trace.facts
    unit = str(facts.get("loss_base") or "nats")
    comparable = facts.get("loss_form") not in RESCALED and unit in ("nats", "bits")
    found = never_better(shape, facts.get("num_classes"), unit) if comparable else None
    if found is None:
        return []
    what = "median loss of the last half; the limit is that of a guess among the classes"
    return [Evidence("num_classes", what, found[0], found[1], "1")]


def _summary(
    shape: Curve, wave: Wave, limits: Limits, apart: float, of_epoch: str, *, mixed: bool
) -> str:
    """From which loss to which, how often, since when; `of_epoch` beside the length of an epoch."""
    since = int(shape.steps[wave.jumps[0]])
    every = f"about every {wave.period * apart:,.4g} steps"
    times = f"{wave.jumps.size} times since step {since:,}"
    limit = f"(limit {_height(limits.amplitude, shape):.2g} %)"
    end = f"; {of_epoch}" if of_epoch else ""
    levels = bottom_and_top(shape, wave)
    if mixed:
        between = f": lately from {levels[0]:.3g} to {levels[1]:.3g}" if levels else ""
        return (
            f"Oscillation: the same levels come back {every}, {times} {limit}, as those of batches"
            f" in a fixed order do{between}{end}."
        )
    swings = wave.lasting and abs(wave.skew) < -DOWN
    word = "Oscillation: the loss swings" if swings else "Staircase: the loss jumps"
    return f"{word} {_size(shape, wave, levels)} {every}, {times} {limit}{end}."


def _size(shape: Curve, wave: Wave, levels: tuple[float, float] | None) -> str:
    """From which level to which, and how far apart those two are."""
    if levels is None or not levels[0] < levels[1]:
        return f"by {_height(wave.amplitude, shape):.2g} %"
    low, high = levels
    between = f"lately from {low:.3g} to {high:.3g},"
    if not shape.soft:  # of losses that turn negative the level is a share of their range
        return f"by {_height(wave.amplitude, shape):.2g} % of its range, {between}"
    if low <= 0 or high / low > 1e6:
        return between
    low, high = float(f"{low:.3g}"), float(f"{high:.3g}")  # as they are printed
    times = high / low
    size = f"a factor of {times:.3g}" if times > FACTOR else f"{100 * (times - 1):.2g} %"
    return f"by {size}, {between}"


def _height(amplitude: float, shape: Curve) -> float:
    """A height of the level in percent: of the loss, or of the range of losses below 0."""
    return 100 * (math.expm1(min(amplitude, 600.0)) if shape.soft else amplitude)


def _evidence(
    shape: Curve,
    wave: Wave,
    limits: Limits,
    apart: float,
    epoch: tuple[str, float] | None,
    *,
    of_order: bool,
    told: bool,
) -> list[Evidence]:
    what = "the average cycle, from its bottom to its top"
    what += "" if shape.soft else ", as a share of the range of the losses"
    height, least = _height(wave.amplitude, shape), _height(limits.amplitude, shape)
    evidence = [Evidence("loss", what, height, least, "%")]
    if wave.spacing or not wave.clearness:
        what = f"how much the distances between {wave.jumps.size} jumps differ"
        evidence.append(
            Evidence(
                "loss",
                what,
                wave.spacing,
                most_spread(wave.jumps.size, limits.spacing),
                "of the mean",
            )
        )
    else:
        what = "likeness of losses a period apart, above that of losses half a period apart"
        limit = min(limits.clearness, limits.known_clearness if told else np.inf)
        evidence.append(Evidence("loss", what, wave.clearness, limit, "standard errors"))
    if epoch is not None:
        fits = "fits them: order of data" if of_order else "does not fit them"
        what = f"steps from one jump to the next; an epoch, the limit, {fits}"
        evidence.append(Evidence(epoch[0], what, wave.period * apart, epoch[1], "steps"))
    return evidence


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
        beside = int((highest_near(norm, jumps, apart) > clip).sum())
        if beside >= TOGETHER * jumps.size and share < TOGETHER:
            what = "jumps with a norm that is clipped, which a broken batch makes and a clip does"
            what = f"{what} not; the limit is what chance gives"
            evidence.append(Evidence("grad_norm", what, beside, share * jumps.size, "jumps"))
    return evidence


def _treatments(
    trace: Trace,
    shape: Curve,
    wave: Wave,
    *,
    of_order: bool,
    is_other: bool,
    raised: IntArray | None,
) -> tuple[Treatment, ...]:
    if raised is not None:
        return take_out(int(shape.steps[raised[0]])), COMPARE
    if of_order:
        return SHUFFLE, OTHER_ORDER
    steps = shape.steps[wave.jumps]
    apart = float(np.median(np.diff(shape.steps)))
    batches = look_at(steps.tolist())
    if not wave.lasting and is_outlying(trace, steps, apart):
        first = (CLIP, batches)
        return (*first, COMPARE_REST) if is_other else (*first, SHUFFLE, COMPARE, OTHER_ORDER)
    if is_other:
        return batches, COMPARE_REST, OTHER_ORDER
    return COMPARE, SHUFFLE, batches, OTHER_ORDER


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
        "loss_base",
        "loss_kind",
        "loss_form",
        "num_classes",
        *FILTERED_BY,
    ),
    onset="estimated",
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss(), grad_norm=gradient_norms()),
    doc=__doc__ or "",
)
