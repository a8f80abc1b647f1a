"""The evaluation loss turns and rises while the training loss goes on falling.

## What it finds
An evaluation loss that ends above its minimum, by more than its own noise allows and by more than
any earlier rise that came back, while the training loss falls. (Heights are differences of its
logarithm, to which 5 % of its first values are added.) An eighth of the evaluations have to come
after the minimum. Four to nine evaluations must rise further, and in an order that chance would
hardly give. It is a note where the rise is at most a twentieth of the minimum or a hundredth of the
first evaluation: that is no harm yet. It is critical with ten or more, where the loss ends surely a
third above its minimum and no task metric gains. A rise in one jump that stays is told as such,
since the evaluation may have changed there. A warning too: an evaluation loss that has stopped over
the later half of the evaluations, and hints at a rise, while the training loss halves again, is not
near zero, and no task metric gains. As notes: a stop while the training loss falls less far, or
without such a hint; a rise where the training loss was not logged, or on one of several evaluation
sets; a task metric that worsens while the evaluation loss still falls.
## Why it matters
The model learns the training data by heart: what it gains there no longer carries over. The best
model of the run is that of the minimum; every later step is spent on a worse one.
## What to do
Keep the checkpoint of the minimum and stop. Next: more data or augmentation first; then fewer
epochs, dropout or weight decay. After a jump, evaluate the checkpoints on either side of it on the
same data first. Before all that, evaluate on a part of the training data in evaluation mode: the
two losses have to be the same function of the model.
## When it is fine
A constant distance between the two losses, large or small, in either direction: mixup, dropout and
label smoothing raise the training loss, another scale or function shifts it. Only changes are
judged. A task metric that still improves while the loss rises: the model grows overconfident and
not worse at its task; that is a note. A metric near its floor, where a few cases more or less are
noise. Losses below 0 are not judged. An evaluation before the first update does not count as the
minimum, nor a jump at a resume as a rise.
## Told apart from
`upward-drift`: the training loss rises too.
A rise that goes back before the end, or that a noisy evaluation set explains.
"""

import math
from dataclasses import dataclass

import numpy as np

from optdoctor import rule
from optdoctor.curves.evaluations import (
    ENOUGH,
    LEAST,
    Evaluations,
    Turn,
    evaluations,
    noise_of_a_count,
    turn,
)
from optdoctor.curves.level import curve, softening
from optdoctor.curves.masked import FILTERED_BY, unmasked, witness
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import called
from optdoctor.knowledge.metrics import Course, courses
from optdoctor.knowledge.overfitting import against_overfitting
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

MOST = 1e6
"""Largest rise that is told, in %: the lowest loss may be 0."""
HALVES = 8
"""Evaluations from which the later half is judged for a stop."""
SINCE = " since that minimum"
IN_ERRORS = "that rise in its standard errors"
OF_MINIMUM = "that rise as a share of the minimum, or of a fifth of the first evaluation if more"
SOLVED = 0.2
"""Share of the first evaluation that a minimum counts as at least: a twentieth of a loss near zero
is nothing, a hundredth of what the run began with is something."""
FELL = 0.01
"""Change of the evaluation loss, in logarithms, that is one beside what else is told."""
GAINED = 0.01
"""Gain of a task metric, as a share of it, from which it still improves."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by: those of a turn were set on made-up healthy courses."""

    rows: int = 4
    """Least evaluations: a minimum and three after it."""
    rise: float = 0.02
    """Largest rise of the evaluation loss above its minimum, in logarithms, that passes."""
    harm: float = 0.05
    """Largest rise, as a share of the minimum or of a fifth of the first evaluation if that is
    more, that is a note: a run counts as harmed where its loss ends a twentieth higher."""
    errors: float = 3.5
    """Largest such rise in its standard errors that passes as noise, times 1 + 4 / evaluations.
    With these limits 0.3 % of 11,700 made-up healthy courses of 4 to 80 evaluations warn, in noise
    of 0.3 to 10 % that wanders in a quarter of them."""
    since: float = 0.12
    """Least share of the evaluations that come after the minimum, about an eighth."""
    kept: float = 0.5
    """Least share of the highest rise that still stands at the end; below, it is coming back."""
    rebound: float = 1.5
    """Least rise over the largest one before the minimum, which came back."""
    fall: float = 0.01
    """Least fall of the training loss since the minimum, in logarithms; any, once it is near zero,
    at less than a twentieth of its start."""
    fall_errors: float = 1.0
    """Least such fall in standard errors: a training loss that rises too is none, and the batches
    of a good run may be as noisy as its fall is long."""
    short_rise: float = 0.05
    """What `rise` is below ten evaluations, and where the training loss was not logged."""
    short_errors: float = 2.2
    """What `errors` is below ten evaluations."""
    chance: float = 0.0417
    """Largest probability that so few evaluations come in so rising an order by chance: 1 in 24,
    that of four after the minimum that rise each time."""
    gross_rise: float = 0.15
    """What `short_rise` is where that probability is larger: a rise that few noises reach."""
    gross_chance: float = 0.1667
    """Largest such probability at all: 1 in 6, that of three that rise each time."""
    stopped_fall: float = 0.3
    """Largest fall of the training loss over the later half of the evaluations, in logarithms,
    that passes where the evaluation loss stopped."""
    halved: float = 0.69
    """The same beyond which it is a warning, if the evaluation rises by above `rise` and `hint`,
    no metric gains, and the loss is not near zero: it halves again, and nothing comes of it."""
    hint: float = 2.5
    """Rise of the evaluation loss in its standard errors that makes such a stop a warning."""
    stopped_errors: float = 3.0
    """Least such fall in standard errors."""
    stopped_share: float = 0.1
    """Largest fall of the evaluation loss over that of the training loss that is a stop."""
    grave: float = 0.3
    """Rise of the evaluation loss, in logarithms, above which it is critical if no metric gains."""
    grave_errors: float = 8.0
    """Least such rise in its standard errors, of ten evaluations or more: of 10,000 courses with
    noise alone, 16 % of the loss, none is critical."""
    abrupt: float = 0.7
    """Least share of the rise in one step that is called a jump, of ten evaluations or more: a
    warning at most, since the evaluation itself may have changed there."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    kind = str(trace.facts.get("loss_kind") or "falling")
    if kind != "falling":
        return Abstain(f"{called(kind)} may rise in a good run")
    if _least(trace) < 0:
        return Abstain("losses below 0: whether a rise is good or bad is not known")
    loss = unmasked(trace.series["loss"], witness(trace)) if "loss" in trace.series else None
    resumes = [event.step for event in trace.events if event.kind == "resume"]
    line = curve(loss) if loss is not None else None
    found = evaluations(trace.series["eval_loss"], loss, line, resumes)
    if found is None:
        return Abstain("too few finite evaluations for a course")
    if _turned(found.turn, len(found.steps), limits, lone=found.training is None):
        told = found.training is None or _training_falls(found, limits)
        return [_rise(found, _gains(trace, found), limits)] if told else []
    if worse := _worse(trace, found, limits):
        return [worse]
    return [_stop(found, _gains(trace, found), limits)] if _stopped(found, limits) else []


def _least(trace: Trace) -> float:
    """The lowest finite loss, of training or evaluation."""
    there = [name for name in ("loss", "eval_loss") if name in trace.series]
    values = np.concatenate([trace.series[name].values for name in there])
    return float(values[np.isfinite(values)].min(initial=np.inf))


def _turned(found: Turn, count: int, limits: Limits, *, lone: bool = False) -> bool:
    """Whether `count` values end above their minimum by more than noise and habit."""
    if found.since < limits.since or found.kept < limits.kept or found.rebound < limits.rebound:
        return False
    if found.best >= count - found.tail:
        return False  # the end is not all after the minimum
    if count < ENOUGH and found.chance > limits.gross_chance:
        return False
    errors = limits.errors if count >= ENOUGH else limits.short_errors
    return found.height > _least_rise(found, count, limits, lone) and found.errors > errors


def _least_rise(found: Turn, count: int, limits: Limits, lone: bool = False) -> float:
    if count >= ENOUGH:
        return limits.short_rise if lone else limits.rise
    return limits.short_rise if found.chance <= limits.chance else limits.gross_rise


def _training_falls(found: Evaluations, limits: Limits) -> bool:
    """Whether the training loss falls since the minimum of the evaluation."""
    solved = found.training is not None and found.training.solved
    return (found.fall >= limits.fall or solved) and found.fall_errors >= limits.fall_errors


def _stopped(found: Evaluations, limits: Limits) -> bool:
    """Whether the evaluation loss has stopped while training falls a long way."""
    if len(found.steps) < HALVES or found.later_fall <= limits.stopped_fall:
        return False
    return found.later_errors >= limits.stopped_errors and found.later_share <= limits.stopped_share


def _gains(trace: Trace, found: Evaluations) -> list[Evidence]:
    """What each task metric gained since the minimum of the evaluation loss, most first."""
    told = []
    for metric in courses(trace, len(found.steps)):
        if metric.is_loss or (change := metric.change(found.best_step)) is None:
            continue
        then, now, gain = change
        word = "still improves" if gain > GAINED else "does not improve either,"
        what = f"{metric.name} {word} from {then:.4g} to {now:.4g}{SINCE}"
        told.append(Evidence(metric.channel, what, gain, GAINED, "share"))
    return sorted(told, key=lambda e: -abs(e.observed))[:3]


def _worse(trace: Trace, found: Evaluations, limits: Limits) -> Finding | None:
    """A further evaluation loss that turned, or a metric that did while the loss still falls."""
    notes = []
    for metric in courses(trace, len(found.steps)):
        if len(metric.values) < LEAST or not np.any(metric.values):
            continue
        best = metric.values[np.argmax(metric.sign * metric.values)]
        scale = -metric.sign * float(max(abs(best), softening(np.abs(metric.values))))
        noise = 0.0 if metric.is_loss else noise_of_a_count(metric.values / scale)
        turned, lone = turn(metric.values / scale, noise), not metric.is_loss
        then = float(np.interp(metric.steps[turned.best], found.steps, found.level))
        falls = then - found.turn.end > FELL
        is_worse = _turned(turned, len(metric.values), limits, lone=lone)
        if (falls or metric.is_loss) and is_worse:
            losses = found.loss_at(then), found.loss_at(found.turn.end)
            notes.append(_note(metric, turned, scale, losses, limits))
    return max(notes, key=lambda note: note.evidence[0].observed, default=None)


def _rise(found: Evaluations, gains: list[Evidence], limits: Limits) -> Finding:
    turned, count, lone = found.turn, len(found.steps), found.training is None
    limit = _least_rise(turned, count, limits, lone)
    log = f"rise of log(evaluation loss + {found.soft:.4g}) above its minimum"
    low, end = found.loss_at(turned.low), found.loss_at(turned.end)
    is_harm = not lone and harm(found) > limits.harm  # one number has one limit in a report
    least = limits.harm * _whole(found) if is_harm else math.expm1(limit) * (low + found.soft)
    above = (_percent(end - low, low), _percent(least, low))
    at = f"around step {found.best_step} (mean of three)"
    at = at if count >= ENOUGH else f"at step {found.best_step}"
    rises = (
        f"the evaluation loss rises from {low:.4g} {at} to {end:.4g}, the"
        f" median of the last {turned.tail} evaluations, by {above[0]} (limit {above[1]})"
    )
    jumped = _jumped(found, limits)
    if jumped:
        rises += f", in one jump at step {found.steps[turned.jump_at]}"
    summary = f"Overfitting or a divergence: {rises}; no training loss is logged to tell which."
    severity = Severity.NOTE
    if found.training is not None:
        losses = found.training.losses
        sure = count >= ENOUGH and turned.errors >= limits.grave_errors and not jumped
        grave = turned.height > limits.grave and sure
        severity = Severity.CRITICAL if grave else Severity.WARN
        falls = f"the training loss falls from {losses[turned.best]:.4g} to {losses[-1]:.4g}"
        changed = ": the evaluation set, or the code, may have changed there" if jumped else ""
        name = "Overfitting, or another evaluation" if jumped else "Overfitting"
        summary = f"{name}: {rises}, while {falls}{changed}."
        if not is_harm:
            severity = Severity.NOTE
            summary = f"{name}, as it begins: {rises}, while {falls}{changed}."
        gained = [gain for gain in gains if gain.observed > GAINED]
        if gained and not any(gain.observed < -GAINED for gain in gains):
            severity, better = Severity.NOTE, gained[0].what.removesuffix(SINCE)
            summary = f"Overfitting in the loss alone: {rises}, while {falls} and {better}."
    return Finding(
        severity=severity,
        summary=summary,
        steps=(found.best_step, int(found.steps[-1])),
        evidence=(
            *_of_turn("eval_loss", log, turned, count, limits, lone=lone),
            Evidence("eval_loss", OF_MINIMUM, harm(found), limits.harm, "share"),
            *_of_jump(found, limits),
            *_of_training(found, limits),
            *gains,
        ),
        treatments=(
            _compare(found)
            if jumped
            else against_overfitting(f"of step {found.best_step}, the evaluation minimum")
        ),
    )


def harm(found: Evaluations) -> float:
    """The rise as a share of the minimum, which counts as a fifth of the first evaluation at least.

    Rounded: what is printed was judged.
    """
    low, end = found.loss_at(found.turn.low), found.loss_at(found.turn.end)
    whole = _whole(found)
    return round((end - low) / whole, 3) if whole > 0 else 0.0


def _whole(found: Evaluations) -> float:
    """What the rise is a share of."""
    return max(found.loss_at(found.turn.low), SOLVED * found.loss_at(found.level[0]))


def _percent(part: float, whole: float) -> str:
    share = MOST if whole <= 100 * part / MOST else 100 * part / whole
    return f"{share:,.0f} %" if share >= 100 else f"{share:.3g} %"


def _jumped(found: Evaluations, limits: Limits) -> bool:
    """Whether most of the rise came from one evaluation to the next, and stayed."""
    return len(found.steps) >= ENOUGH and found.turn.jump >= limits.abrupt


def _of_jump(found: Evaluations, limits: Limits) -> list[Evidence]:
    if not _jumped(found, limits):
        return []
    what = f"share of that rise in one jump, at step {found.steps[found.turn.jump_at]}"
    return [Evidence("eval_loss", what, found.turn.jump, limits.abrupt, "share")]


def _compare(found: Evaluations) -> tuple[Treatment, ...]:
    """What tells a model that got worse from an evaluation that changed."""
    at = found.turn.jump_at
    before, after = int(found.steps[at - 1]), int(found.steps[at])
    return (
        Treatment(
            title=f"Evaluate the checkpoints of steps {before} and {after} once more, with one code"
            " on the same data: if they are as far apart, the model did get worse",
            when="check",
            safety="safe",
            source="a model seldom gets so much worse between two evaluations, and stays so, while"
            " its training loss falls",
        ),
        Treatment(
            title=f"Keep the checkpoint of step {before}, the last evaluation before the jump",
            when="now",
            safety="safe",
            source="if the model did get worse, it is the one to go back to",
        ),
    )


def _of_turn(
    channel: str, what: str, turned: Turn, count: int, limits: Limits, *, lone: bool = False
) -> list[Evidence]:
    least = _least_rise(turned, count, limits, lone)
    errors = limits.errors if count >= ENOUGH else limits.short_errors
    seen = [
        Evidence(channel, what, turned.height, least, "1"),
        Evidence(channel, IN_ERRORS, turned.errors, errors, "1"),
    ]
    if count < ENOUGH:
        chance = limits.gross_chance if least == limits.gross_rise else limits.chance
        what = "probability that values after a minimum come in so rising an order by chance"
        seen.append(Evidence(channel, what, turned.chance, chance, "1"))
    return seen


def _of_training(found: Evaluations, limits: Limits) -> list[Evidence]:
    if found.training is None:
        return []
    what = "fall of the logarithm of the training loss since the evaluation minimum"
    fall, least = found.fall, limits.fall
    if found.training.solved:
        what = "fall of the training loss, near zero by now, since the evaluation minimum, in"
        what += " standard errors"
        fall, least = found.fall_errors, limits.fall_errors
    return [Evidence("loss", what, fall, least, "1")]


def _note(
    metric: Course, turned: Turn, scale: float, losses: tuple[float, float], limits: Limits
) -> Finding:
    count, best, lone = len(metric.steps), int(metric.steps[turned.best]), not metric.is_loss
    least = _least_rise(turned, count, limits, lone)
    what = f"what {metric.name} lost since its best, as a share of it"
    by = f"{100 * turned.height:.3g} % (limit {100 * least:.3g} %)"
    return Finding(
        severity=Severity.NOTE,
        summary=(
            f"Overfitting in {metric.name} alone: it worsens from {turned.low * scale:.4g} at step"
            f" {best} to {turned.end * scale:.4g}, the median of the last {turned.tail}, by {by},"
            f" while the evaluation loss goes from {losses[0]:.4g} to {losses[1]:.4g}."
        ),
        steps=(best, int(metric.steps[-1])),
        evidence=tuple(_of_turn(metric.channel, what, turned, count, limits, lone=lone)),
        treatments=against_overfitting(f"of step {best}, the best by {metric.name}"),
    )


def _stop(found: Evaluations, gains: list[Evidence], limits: Limits) -> Finding:
    half = len(found.steps) // 2
    first, last = int(found.steps[half]), int(found.steps[-1])
    then, now = (found.loss_at(np.median(p)) for p in np.array_split(found.level[half:], 2))
    losses = found.training.losses if found.training is not None else np.zeros(half + 1)
    fell, share, most = "fall of the logarithm of the", found.later_share, limits.stopped_share
    solved = found.training is None or found.training.solved
    gained = any(gain.observed > GAINED for gain in gains)
    rises = found.turn.height > FELL and found.turn.errors > limits.hint
    grave = found.later_fall > limits.halved and rises and not solved and not gained
    limit = limits.halved if grave else limits.stopped_fall
    return Finding(
        severity=Severity.WARN if grave else Severity.NOTE,
        summary=(
            f"Overfitting{'' if grave else ', as it begins'}: from step {first} to step {last} the"
            f" training loss falls from {losses[half]:.4g} to {losses[-1]:.4g}, by"
            f" {found.later_fall} in a line through its logarithms (limit {limit}), and the"
            f" evaluation loss has stopped: medians {then:.4g} and then {now:.4g}."
        ),
        steps=(first, last),
        evidence=(
            Evidence("loss", f"{fell} training loss", found.later_fall, limit, "1"),
            Evidence(
                "eval_loss", f"{fell} evaluation loss, over that of training", share, most, "share"
            ),
            *gains,
        ),
        treatments=against_overfitting(f"of the lowest evaluation, step {found.best_step}"),
    )


def _evaluated(rise: float) -> Trace:
    """400 losses and 40 evaluations, which rise by `rise` over the later half."""
    steps = np.arange(10, 401, 10)
    late = np.exp(rise * np.maximum(steps - 200, 0) / 200)
    values = falling_loss(400, noise=0.004, seed=1)[steps - 1] * late
    return make_trace(loss=falling_loss(), eval_loss=values, steps={"eval_loss": steps})


RULE = rule.Rule(
    name="bimodal-gap",
    needs=("eval_loss",),
    uses=("loss", "loss_kind", "grad_norm", *FILTERED_BY, "metric:*", "metric_direction:*"),
    onset="estimated",
    check=check,
    limits=Limits(),
    sick=lambda: _evaluated(0.2),
    healthy=lambda: _evaluated(0.0),
    doc=__doc__ or "",
)
