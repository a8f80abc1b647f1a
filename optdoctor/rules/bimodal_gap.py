"""The evaluation loss turns and rises while the training loss goes on falling.

## What it finds
The logarithm of the evaluation loss, to which 5 % of its first values are added, ends above its
minimum by more than a small limit and by more than its own noise allows. At least an eighth of the
evaluations have to come after the minimum, and the training loss has to fall. With fewer than ten
evaluations an exact test of their order takes the place of the noise, and the rise must be larger.
Second, a stop: over the later half of the evaluations the training loss falls far and the
evaluation loss by less than a tenth of that. A note, and a warning where the training loss about
halves meanwhile.
## Why it matters
The model learns the training data by heart: what it gains there no longer carries over. The best
model of the run is that of the minimum; every later step is spent on a worse one.
## What to do
Keep the checkpoint of the minimum and stop. Next: more data or augmentation first; then fewer
epochs, dropout or weight decay. Before that, evaluate on a part of the training data in evaluation
mode: the two losses have to be the same function of the model.
## When it is fine
A constant distance between the two losses, large or small, in either direction: mixup, dropout and
label smoothing raise the training loss, another scale or another function shifts it. Only changes
are judged. A task metric that still improves while the loss rises: the model grows overconfident
and not worse at its task; the finding says so and stays a warning. Losses below 0 are not judged:
nobody knows whether a rise is bad.
## Told apart from
`upward-drift`: the training loss rises too.
A rise that goes back before the end, or that a noisy evaluation set explains.
"""

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optdoctor import rule
from optdoctor.curves.level import HUGE, SOFT, Curve, Floats, softening
from optdoctor.curves.masked import FILTERED_BY, loss_curve
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

ENOUGH = 10
"""Evaluations from which their noise can be measured; below, their order is tested exactly."""
HALVES = 8
"""Evaluations from which the later half is judged for a stop."""
RISING = (
    r"(^|[_/.])(acc|accuracy|f1|bleu|rouge\w?|auc|auroc|map|precision|recall|m?iou|dice|top|mcc)"
    r"($|[_/.@\d(])"
)
FALLING = r"(^|[_/.])(wer|cer|err|error|rmse|mse|mae|fid)($|[_/.@\d(])"
EVALUATED = r"(^|[_/.])(eval|val|valid|validation|dev|test)"
"""Names of metrics, in either case: those that should rise, those that should fall, and those of
the evaluation. Not compiled: few runs have metrics, and compiling them all takes a millisecond."""

GAINED = 0.01
"""Gain of a task metric, as a share of it, from which it still improves."""
MOST_GAINED = 1e3
"""Largest such gain that is told: the value at the minimum may be 0."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 5
    """Least evaluations: one before the minimum, and three after it."""
    rise: float = 0.02
    """Largest rise of the evaluation loss above its minimum, in logarithms, that passes."""
    errors: float = 3.3
    """Largest such rise in its standard errors that passes as noise, times 1 + 4 / evaluations.
    With these limits none of 300 made-up healthy runs with 5 to 60 evaluations alarms."""
    since: float = 0.12
    """Least share of the evaluations that come after the minimum, about an eighth."""
    kept: float = 0.5
    """Least share of the highest rise that still stands at the end; below, it is coming back."""
    fall: float = 0.01
    """Least fall of the training loss since the minimum, in logarithms; any, once it is near zero,
    at less than a twentieth of its start."""
    fall_errors: float = 3.0
    """Least such fall in standard errors, here and for a stop."""
    short_rise: float = 0.05
    """What `rise` is below ten evaluations."""
    chance: float = 0.0417
    """Largest probability that so few evaluations come in such an order without a trend: 1 in 24,
    that of a minimum and three after it that rise each time."""
    stopped_fall: float = 0.3
    """Largest fall of the training loss over the later half of the evaluations, in logarithms,
    that passes where the evaluation loss stopped."""
    stopped_share: float = 0.1
    """Largest fall of the evaluation loss over that of the training loss that is a stop."""
    halved: float = 0.69
    """Fall of the training loss beside such a stop above which it is a warning: log 2 = 0.69."""
    grave: float = 0.3
    """Rise of the evaluation loss, in logarithms, above which it is critical if no metric gains."""


class Evaluations(NamedTuple):
    """m evaluations beside the training curve. Figures are rounded: judged as printed."""

    steps: IntArray  # [m]
    losses: Floats  # [m]
    level: Floats  # [m] log(loss + soft)
    soft: float  # SOFT of the first losses
    best: int  # index of the minimum
    low: float  # loss that has the level of the minimum,
    end: float  # and of the end,
    end_since: int  # which is measured from this step on
    height: float  # end above the minimum, log
    errors: float  # height in its standard errors, over 1 + 4 / m; 0 below ENOUGH
    chance: float  # of the order since the minimum; 1 from ENOUGH on
    since: float  # share of evaluations after the minimum
    kept: float  # height over the highest rise since
    fall: float  # of training since the minimum, log
    fall_errors: float  # in standard errors
    solved: bool  # training ends near zero, where SOFT hides how far it still falls
    later_fall: float  # of training over the later half of the evaluations, log
    later_errors: float  # in standard errors
    later_share: float  # fall of the evaluation loss over that


def evaluations(trace: Trace, line: Curve) -> Evaluations | None:
    """The evaluations of a run with a training curve; None for fewer than four finite ones."""
    series = trace.series["eval_loss"]
    kept = np.isfinite(series.values) & (series.values > 0)
    steps = series.steps[kept]
    losses = np.minimum(np.asarray(series.values[kept], np.float64), HUGE)
    count = len(losses)
    if count < 4:
        return None
    soft = softening(losses)
    level = np.log(losses + soft)
    smooth = _of_three(level) if count >= ENOUGH else level
    at = int(np.argmin(smooth))
    near = slice(max(at - 1, 0), at + 2)
    best = at if count < ENOUGH else max(at - 1, 0) + int(np.argmin(level[near]))
    tail = max(3, count // 8)
    now, low = float(np.median(level[-tail:])), float(smooth[at])
    height = now - low
    training = _training(line, steps)
    three = 0.82 * line.block_error * line.leeway  # a difference of means of three blocks
    fall = float(training[best] - training[-1])
    half = slice(count // 2, count)
    later = np.linspace(0, 1, count - count // 2)
    later_fall = -float(np.polyfit(later, training[half], 1)[0])
    later_eval = -float(np.polyfit(later, level[half], 1)[0])
    return Evaluations(
        steps=steps,
        losses=losses,
        level=level,
        soft=soft,
        best=best,
        low=max(math.exp(low) - soft, 0.0),
        end=max(math.exp(now) - soft, 0.0),
        end_since=int(steps[-tail]),
        height=round(height, 3),
        errors=round(_errors(level, height, tail), 2) if count >= ENOUGH else 0.0,
        chance=round(_chance(level[best:]), 4) if count < ENOUGH else 1.0,
        since=round(1 - (best + 1) / count, 3),
        kept=round(height / max(float(smooth[at:].max() - smooth[at]), height, 1e-12), 2),
        fall=round(fall, 3),
        fall_errors=round(float(fall / three), 2),
        solved=bool(np.median(line.losses[-3:]) < SOFT * np.median(line.losses[:3])),
        later_fall=round(later_fall, 3),
        later_errors=round(float(later_fall / three), 2),
        later_share=round(later_eval / later_fall, 3) if later_fall > 0 else math.inf,
    )


def _training(line: Curve, steps: IntArray) -> Floats:
    """[m]: level of the training loss at the steps of the evaluations, means of three blocks."""
    return np.interp(steps, (line.block_steps + line.block_ends) / 2, _of_three(line.blocks))


def _of_three(values: Floats) -> Floats:
    """[m]: mean of each value and its neighbours."""
    ones = np.ones(3)
    return np.convolve(values, ones, "same") / np.convolve(np.ones_like(values), ones, "same")


def _errors(level: Floats, height: float, tail: int) -> float:
    between = level[1:-1] - (level[:-2] + level[2:]) / 2
    noise = max(1.4826 * float(np.median(np.abs(between))) / 1.2247, 1e-4)
    return height / (noise * math.sqrt(1 / 3 + 1 / tail)) / (1 + 4 / len(level))


def _chance(level: Floats) -> float:
    """Probability of so few pairs out of rising order (Kendall's exact test)."""
    count = len(level)
    wrong = sum(int((level[i + 1 :] <= level[i]).sum()) for i in range(count))
    ways = [1]  # [pairs out of order] of the orders of the first values
    for size in range(2, count + 1):
        longer = [0] * (len(ways) + size - 1)
        for pairs, number in enumerate(ways):
            for more in range(size):
                longer[pairs + more] += number
        ways = longer
    return sum(ways[: wrong + 1]) / math.factorial(count)


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    kind = trace.facts.get("loss_kind") or "falling"
    if kind != "falling":
        return Abstain(f"a loss of kind {kind} may rise in a good run")
    line = loss_curve(trace)
    if _least(trace) < 0:
        return Abstain("losses below 0: whether a rise is good or bad is not known")
    found = evaluations(trace, line) if line is not None else None
    if line is None or found is None:
        return Abstain("too few finite losses for a curve")
    gains = _gains(trace, found)
    if _turned(found, limits):
        gained = any(evidence.observed > GAINED for evidence in gains)
        grave = found.height > limits.grave and not gained
        return [_finding(found, Severity.CRITICAL if grave else Severity.WARN, gains, limits)]
    if _stopped(found, limits):
        halved = found.later_fall > limits.halved
        return [_stop(found, Severity.WARN if halved else Severity.NOTE, gains, limits)]
    return []


def _least(trace: Trace) -> float:
    """The lowest finite loss, of training or evaluation."""
    values = np.concatenate([trace.series[name].values for name in ("loss", "eval_loss")])
    return float(values[np.isfinite(values)].min(initial=np.inf))


def _turned(found: Evaluations, limits: Limits) -> bool:
    """Whether the evaluation loss rises from its minimum while training falls."""
    if found.fall < limits.fall and not found.solved:
        return False
    if found.fall_errors < limits.fall_errors:
        return False
    if found.since < limits.since or found.kept < limits.kept:
        return False
    if len(found.level) < ENOUGH:
        return found.height > limits.short_rise and found.chance <= limits.chance
    return found.height > limits.rise and found.errors > limits.errors


def _stopped(found: Evaluations, limits: Limits) -> bool:
    """Whether the evaluation loss has stopped while training falls a long way."""
    if len(found.level) < HALVES or found.later_fall <= limits.stopped_fall:
        return False
    if found.later_errors < limits.fall_errors:
        return False
    return found.later_share <= limits.stopped_share


def _gains(trace: Trace, found: Evaluations) -> list[Evidence]:
    """What each task metric gained since the minimum of the evaluation loss."""
    names = [name for name in trace.series if name.startswith("metric:") and "best" not in name]
    names = [n for n in names if re.search(EVALUATED, n.removeprefix("metric:"), re.I)] or [
        n for n in names if trace.series[n].rows <= len(found.level) < trace.series["loss"].rows
    ]
    told = []
    for name in names:
        short = name.removeprefix("metric:")
        sign = _direction(trace, short)
        series = trace.series[name]
        finite = np.isfinite(series.values)
        steps, values = series.steps[finite], series.values[finite]
        before = values[steps <= found.steps[found.best]]
        since = values[steps > found.steps[found.best]]
        if not sign or not before.size or not since.size:
            continue
        then = float(np.clip(before[-1], -HUGE, HUGE))
        change = sign * (float(np.median(np.clip(since[-3:], -HUGE, HUGE))) - then)
        gain = round(change / max(abs(then), 1e-9, abs(change) / MOST_GAINED), 3)
        word = "still improves" if gain > GAINED else "does not improve either"
        what = f"the metric {short} {word} since the minimum of the loss: gain over its value there"
        told.append(Evidence(name, what, gain, GAINED, "share"))
    return told[:3]


def _direction(trace: Trace, name: str) -> int:
    """1 where a metric should rise, -1 where it should fall, 0 where nobody knows."""
    told = str(trace.facts.get(f"metric_direction:{name}") or "").lower()
    if told:
        return 1 if told in ("rise", "up", "max", "maximize") else -1
    if re.search(RISING, name, re.I):
        return 1
    return -1 if re.search(FALLING, name, re.I) else 0


def _finding(
    found: Evaluations, severity: Severity, gains: list[Evidence], limits: Limits
) -> Finding:
    best, last = int(found.steps[found.best]), int(found.steps[-1])
    few = len(found.level) < ENOUGH
    scale = f"log(evaluation loss + {found.soft:.4g})"
    limit = limits.short_rise if few else limits.rise
    noise = (
        Evidence("eval_loss", "chance of such an order", found.chance, limits.chance, "1")
        if few
        else Evidence(
            "eval_loss", "the rise over its standard error", found.errors, limits.errors, "1"
        )
    )
    return Finding(
        severity=severity,
        summary=(
            f"Overfitting: the evaluation loss rises from a level of {found.low:.4g} at step {best}"
            f" to a level of {found.end:.4g} from step {found.end_since} on, by {found.height} in"
            f" {scale} (limit {limit}), while the training loss falls."
        ),
        steps=(best, last),
        evidence=(
            Evidence(
                "eval_loss",
                f"rise of {scale} above its minimum",
                found.height,
                limit,
                "1",
            ),
            noise,
            *_fallen(found, limits),
            *gains,
        ),
        treatments=_treatments(f"of step {best}, the evaluation minimum"),
    )


def _fallen(found: Evaluations, limits: Limits) -> list[Evidence]:
    if found.solved:
        what = (
            "the training loss is near zero; fall of its logarithm since, over its standard error"
        )
        return [Evidence("loss", what, found.fall_errors, limits.fall_errors, "1")]
    what = "fall of the logarithm of the training loss since"
    return [Evidence("loss", what, found.fall, limits.fall, "1")]


def _stop(found: Evaluations, severity: Severity, gains: list[Evidence], limits: Limits) -> Finding:
    first, last = int(found.steps[len(found.level) // 2]), int(found.steps[-1])
    best = int(found.steps[found.best])
    return Finding(
        severity=severity,
        summary=(
            f"Overfitting: from step {first} to step {last} the training loss falls by "
            f"{found.later_fall} on a log scale (limit {limits.stopped_fall}), and the evaluation "
            f"loss has stopped."
        ),
        steps=(first, last),
        evidence=(
            Evidence(
                "loss",
                "fall of the logarithm of the training loss over the later half of the evaluations",
                found.later_fall,
                limits.halved if severity is Severity.WARN else limits.stopped_fall,
                "1",
            ),
            Evidence(
                "eval_loss",
                "fall of the logarithm of the evaluation loss over that of the training loss",
                found.later_share,
                limits.stopped_share,
                "share",
            ),
            *gains,
        ),
        treatments=_treatments(f"with the lowest evaluation loss so far, step {best}"),
    )


def _treatments(which: str) -> tuple[Treatment, ...]:
    return (
        Treatment(
            title=f"Keep the checkpoint {which}, and stop the run here",
            when="now",
            safety="safe",
            source="arithmetic: no later evaluation is lower",
        ),
        Treatment(
            title="Train on more data, or on augmented data",
            when="next",
            source="what cannot be learnt by heart has to be learnt; the first remedy to try",
        ),
        Treatment(
            title="Train for fewer epochs, with the schedule ending near the minimum",
            when="next",
            source="repeated examples are what is learnt by heart",
        ),
        Treatment(
            title="Add dropout or weight decay; neither replaces missing data",
            when="next",
            source="general practice; their effect on a small set is often small",
        ),
        Treatment(
            title="Evaluate on a part of the training data in evaluation mode",
            when="check",
            safety="safe",
            source="if that loss rises as well, the two losses are not the same function",
        ),
    )


def _evaluated(rise: float) -> Trace:
    """400 losses and 40 evaluations, which rise by `rise` over the later half."""
    steps = np.arange(10, 401, 10)
    late = np.maximum(steps - 200, 0) / 200
    values = falling_loss(400, noise=0.004, seed=1)[steps - 1] * np.exp(rise * late)
    return make_trace(loss=falling_loss(), eval_loss=values, steps={"eval_loss": steps})


RULE = rule.Rule(
    name="bimodal-gap",
    needs=("loss", "eval_loss"),
    uses=("loss_kind", "grad_norm", *FILTERED_BY, "metric:*", "metric_direction:*"),
    onset="estimated",
    check=check,
    limits=Limits(),
    sick=lambda: _evaluated(0.2),
    healthy=lambda: _evaluated(0.0),
    doc=__doc__ or "",
)
