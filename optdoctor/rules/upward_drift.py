"""The training loss creeps up from its best, jumps and stays up, or ends far above its start.

## What it finds
The level of the training loss, as medians of 40 blocks of the logarithm of the loss plus 5 % of the
first losses, ends above its best by more than a small limit and by more than its own noise allows:
less is asked of a rise whose slope is steady. At least half of the highest rise must still stand at
the end. Second, a loss that ends far above its very first value: it exploded before any level could
be measured, as with a rate far too high. A rise that is large, or that comes mostly in one jump, is
named a divergence. The evidence says how much of the progress is lost, where the largest jump lies,
and what the evaluation loss, the learning rate and the norm of the weights did meanwhile. It is
critical where the loss ends above its start, or where most of the progress is lost and the
evaluation loss rises too; otherwise a warning, since the curve alone cannot tell a damaged model
from harder data.
## Why it matters
The updates since the best step made the model worse, or the data or the objective have changed.
Each further step at this setting costs compute and buys nothing.
## What to do
First tell the causes apart: evaluate an early checkpoint on today's batches. If that one is worse
today too, the data changed. Now: go back to the checkpoint before the rise, or lower the rate from
the next step on. Next: a lower peak rate. A run that never got below its start has no checkpoint
worth going back to: restart it with a tenth of the rate.
Writing decayed weights back to half precision is not proposed: it changes nothing. Weight decay is
named only where there is one and the weights themselves grew or shrank.
## When it is fine
A rate that rises again, as in a warm restart or a cycle: the loss is compared with its level at an
equal rate before. A rate that still warms up, by plan or in a straight line: the rule waits. A
search for a rate, which grows by a constant factor over four decades or more: the rise is its
purpose, and the rule does not judge. A loss near zero: the rise is measured against the progress
made. Harder data or a harder objective on purpose: where the evaluation loss clearly falls
meanwhile, the finding is a note. So is a small jump at a resume. A large rise is told in each of
these cases, a search excepted. Losses below 0 are not judged: nobody knows whether a rise is bad.
## Told apart from
`bimodal-gap`: the evaluation loss rises alone.
`loss-spike`: it comes back; here the rise still stands at the end.
`nan-pulse`: no finite loss is left.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optdoctor import rule
from optdoctor.curves.level import HUGE, Curve, Floats
from optdoctor.curves.masked import FILTERED_BY, loss_curve
from optdoctor.findings import Abstain, Evidence, Finding, Knob, Severity, Treatment
from optdoctor.knowledge.losses import SUM
from optdoctor.store import IntArray, Series
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

ABRUPT = 0.6
"""Share of a rise in one jump of three blocks from which it is called abrupt."""
RATE_ROSE = 1.5
"""Factor by which a rate above that of the best step has risen."""
EQUAL_RATES = (0.7, 1.4)
"""Factors within which two rates count as equal."""
ABOVE_EQUAL = 0.06
"""Rise in logarithms above the level at an equal rate that a restart explains."""
CLEARLY_FELL, CLEARLY_ROSE = 0.95, 1.05
"""Factors on the evaluation loss below which the model became better, whatever training says, and
above which it became worse."""
DECADES = 4.0
"""Powers of ten over which a rate that grows by a constant factor is a search for one: Lightning's
covers eight, and no warm-up begins at a ten thousandth of its peak."""
PROGRESS = 0.04
"""Least fall below the start, in logarithms, that left a checkpoint worth going back to."""
DIVERGED = 0.3
"""Rise in logarithms that is named a divergence."""
FARTHEST = 1e6
"""Largest factor between evaluation losses or norms that is told."""
NORM_MOVED = 0.2
"""Change of the norm of all weights, as a share, from which weight decay is named."""
A_RESUME = "a resume that restores everything goes on at the level it left"


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 20
    """Rows, and so blocks: fewer give no level with an error."""
    rise: float = 0.04
    """Largest rise above the best level, in logarithms, that passes."""
    errors: float = 4.5
    """Largest rise in standard errors of a block's level that passes as noise. With these limits at
    most 1 of 120 healthy curves of 20 made-up families alarms in each of five ways to log them."""
    steady_errors: float = 3.5
    """The same for a rise with a steady slope."""
    slope_errors: float = 4.6
    """Largest slope since the best level, in its own standard errors, that is not steady."""
    lost: float = 0.03
    """Largest share of the progress lost that passes: near zero a logarithm exaggerates."""
    kept: float = 0.5
    """Least share of the highest rise that still stands at the end; below, it is coming back."""
    large: float = 0.3
    """Rise in logarithms that is a divergence: told even while it is coming back, or while the rate
    still rises, and after a resume or beside a falling evaluation loss. Also the largest rise of
    the end above the very first loss that passes."""
    large_errors: float = 10.0
    """Errors that such a large rise needs."""
    most: float = 0.5
    """Share of the progress lost above which it is critical, if the evaluation loss rises too."""


class Rise(NamedTuple):
    """From the best level of a curve, or its first loss, to its end. Figures are rounded: judged as
    printed."""

    best: int  # block: the middle one of the lowest three, 0 for the first loss
    height: float  # end above best
    errors: float  # height in its standard errors, over the leeway
    slope_errors: float  # slope since the best, likewise; 0 from the first loss
    kept: float  # height over the highest rise since
    jump: float  # largest rise over three blocks, over height
    jump_steps: tuple[int, int]
    onset: int  # step from which it rises
    low: float  # loss that has the level of the best,
    end: float  # and of the end,
    since: int  # which is measured from this step on
    lost: float  # share of the progress from the first block to the best that is lost
    fell: float  # start, the higher of the first block and the first losses, above best
    over: float  # end above start
    from_start: bool = False


def rise_of(line: Curve) -> Rise | None:
    """The rise of a curve from its best level; None where it ends at its best, or nearly."""
    blocks, count = line.blocks, len(line.blocks)
    three = _of_three(blocks)
    at = int(np.argmin(three))
    end = _end(line)
    height = float(end - three[at])
    since = blocks[at + 2 :]
    if height <= 0 or len(since) < 3:  # a best level so fresh can still be the trend's
        return None
    slope = float(np.polyfit(np.arange(len(since)), since, 1)[0])
    slope_error = line.block_error * float(np.sqrt(12 / len(since))) / len(since)
    start = max(float(blocks[0]), float(np.median(line.level[:3])))
    low, now = line.loss_at(float(three[at])), line.loss_at(end)
    progress = line.loss_at(float(blocks[0])) - low
    lost = min(now - low, 10 * progress) / progress if progress > 0 else 10.0
    jump, jump_steps = _jump(line, three[at:], at + 1, height)
    return Rise(
        best=at + 1,
        height=round(height, 3),
        errors=round(float(height / (0.82 * line.block_error) / line.leeway), 2),
        slope_errors=round(float(slope / slope_error / line.leeway), 2),
        kept=round(height / max(float(three[at:].max() - three[at]), height), 2),
        jump=jump,
        jump_steps=jump_steps,
        onset=int(line.block_ends[at + 1]),
        low=low,
        end=now,
        since=int(line.block_steps[count - _tail(line)]),
        lost=round(lost, 3),
        fell=round(start - float(three[at]), 3),
        over=round(end - start, 3),
    )


def rise_from_start(line: Curve) -> Rise | None:
    """The rise of the end above the very first loss: some runs explode within the first block."""
    first, end = float(line.level[0]), _end(line)
    height = end - first
    if height <= 0:
        return None
    later = np.concatenate(([first], _of_three(line.blocks)))
    error = float(np.hypot(line.noise, 0.82 * line.block_error))
    jump, jump_steps = _jump(line, later, 0, height)
    return Rise(
        best=0,
        height=round(height, 3),
        errors=round(height / error / line.leeway, 2),
        slope_errors=0.0,
        kept=round(height / max(float(later.max()) - first, height), 2),
        jump=jump,
        jump_steps=jump_steps,
        onset=int(line.steps[max(int(np.argmax(line.level > first + height / 2)) - 1, 0)]),
        low=float(line.losses[0]),
        end=line.loss_at(end),
        since=int(line.block_steps[len(line.blocks) - _tail(line)]),
        lost=10.0,
        fell=0.0,
        over=round(height, 3),
        from_start=True,
    )


def _of_three(blocks: Floats) -> Floats:
    """[K - 2]: mean of each block and its neighbours."""
    return np.convolve(blocks, np.ones(3) / 3, "valid")


def _tail(line: Curve) -> int:
    """Blocks that are the end."""
    return max(2, len(line.blocks) // 13)


def _end(line: Curve) -> float:
    return float(np.median(line.blocks[-_tail(line) :]))


def _jump(
    line: Curve, levels: Floats, first_block: int, height: float
) -> tuple[float, tuple[int, int]]:
    """The largest rise over three blocks as a share of the height, and its steps."""
    span = min(3, len(levels) - 1)
    jumps = levels[span:] - levels[:-span]
    at = int(np.argmax(jumps))
    block = first_block + at
    last = min(block + span, len(line.blocks) - 1)
    steps = int(line.block_steps[block]), int(line.block_ends[last])
    return round(min(float(jumps[at]) / height, 1.0), 2), steps


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    kind = trace.facts.get("loss_kind") or "falling"
    if kind != "falling":
        return Abstain(f"a loss of kind {kind} may rise in a good run")
    if trace.facts.get("loss_form") == SUM:
        return Abstain("the log shows sums of losses, over stretches that may differ")
    line = loss_curve(trace)
    if line is None:
        return Abstain("too few finite losses for a curve")
    if line.losses.min() < 0:
        return Abstain("losses below 0: whether a rise is good or bad is not known")
    rise = _gravest(line, limits)
    if rise is None:
        return []
    if _searches(trace, line):
        return Abstain(
            "the rate grows by a constant factor, a search for one: the loss has to rise"
        )
    rate, excused = _rate(trace, line, rise)
    large = _large(rise, limits)
    if excused and not large:
        return []
    first, last = rise.onset, int(line.steps[-1])
    evaluation, times = _evaluation(trace, first)
    softened = times is not None and times < CLEARLY_FELL
    worse = times is not None and times > CLEARLY_ROSE
    joint = [e.step for e in trace.events if e.kind == "resume" and _within(rise, e.step)]
    joint = [step for step in joint if rise.jump > ABRUPT]
    above = rise.over > limits.rise
    wasted = worse and rise.lost > limits.most
    severity = Severity.CRITICAL if (above and large) or wasted else Severity.WARN
    if (softened or joint) and not large:
        severity = Severity.NOTE
    return [
        Finding(
            severity=severity,
            summary=_summary(line, rise, bool(joint), limits),
            steps=(first, last),
            evidence=(
                *_measured(line, rise, above, limits.most if wasted else limits.lost, limits),
                *_place(trace, rise, joint, large),
                *rate,
                *evaluation,
                *_norm(trace, first),
            ),
            treatments=_treatments(trace, line, rise, severity, joint, limits),
        )
    ]


def _gravest(line: Curve, limits: Limits) -> Rise | None:
    """The rise that is beyond the limits; from the first loss, where that is no lower."""
    best, start = rise_of(line), rise_from_start(line)
    if best is not None and not _beyond(best, limits):
        best = None
    if start is None or (best is not None and best.height > start.height):
        return best
    exploded = _high(start, limits) and _loud(start, limits) and _stands(start, limits)
    return start if exploded else best


def _summary(line: Curve, rise: Rise, joined: bool, limits: Limits) -> str:
    jumped = rise.jump > ABRUPT and rise.height > DIVERGED / 2 and not joined
    diverged = rise.height > DIVERGED or jumped
    word = "Drift, a divergence" if diverged else "Drift"
    low = (
        f"its first value, {rise.low:.4g} at step {line.steps[0]},"
        if rise.from_start
        else f"a level of {rise.low:.4g} at step {rise.onset}"
    )
    limit = limits.large if rise.from_start else limits.rise
    return (
        f"{word}: the training loss rises from {low} to a level of {rise.end:.4g} from step "
        f"{rise.since} on, by {rise.height} in {_scale(line)} (limit {limit})."
    )


def _scale(line: Curve) -> str:
    return f"log(loss + {line.soft:.4g})"


def _searches(trace: Trace, line: Curve) -> bool:
    """Whether the rate grows by a constant factor over decades: a search for a rate."""
    series = trace.series.get("lr")
    if series is None:
        return False
    rate = _latest(series, line.block_ends)
    if not np.isfinite(rate).all() or rate.min() <= 0:
        return False
    decades = np.log10(rate)
    ends = line.block_ends
    straight = np.interp(ends, ends[[0, -1]], decades[[0, -1]])
    grown = float(decades[-1] - decades[0])
    return grown >= DECADES and bool(np.abs(decades - straight).max() <= 0.05 * grown)


def _high(rise: Rise, limits: Limits) -> bool:
    return rise.height > limits.large


def _large(rise: Rise, limits: Limits) -> bool:
    return _high(rise, limits) and rise.errors > limits.large_errors


def _loud(rise: Rise, limits: Limits) -> bool:
    """Whether it exceeds its noise, however it came about."""
    return rise.errors > limits.errors


def _stands(rise: Rise, limits: Limits) -> bool:
    return rise.kept >= limits.kept


def _beyond(rise: Rise, limits: Limits) -> bool:
    if rise.height <= limits.rise or rise.lost <= limits.lost:
        return False
    steady = rise.slope_errors > limits.slope_errors and rise.errors > limits.steady_errors
    if not steady and not _loud(rise, limits):
        return False
    return _stands(rise, limits) or _large(rise, limits)


def _within(rise: Rise, step: int) -> bool:
    return rise.jump_steps[0] <= step <= rise.jump_steps[1]


def _latest(series: Series, steps: IntArray) -> Floats:
    """[len(steps)]: the value recorded last at or before each step, the first for earlier ones."""
    at = np.maximum(np.searchsorted(series.steps, steps, "right") - 1, 0)
    return np.asarray(series.values[at], np.float64)


def _rate(trace: Trace, line: Curve, rise: Rise) -> tuple[list[Evidence], bool]:
    """What the rate did since the best step, and whether that excuses the rise."""
    series = trace.series.get("lr")
    if series is None or not np.isfinite(series.values).all():
        return [], False
    ends = line.block_ends
    rate = _latest(series, ends)  # [K]
    best, since = float(rate[rise.best]), rate[rise.best :]
    if since.max() <= RATE_ROSE * best:
        return [], False
    tail = max(2, len(rate) // 13)
    now = float(np.median(rate[-tail:]))
    times = round(now / best, 2) if best > 0 else 0.0
    what = f"the rate at the end, {now:.3g}, over that of the best step, {best:.3g}"
    told = [Evidence("lr", what, times, RATE_ROSE, "times")]
    before = rate[: rise.best + 1]
    equal = (before >= EQUAL_RATES[0] * now) & (before <= EQUAL_RATES[1] * now)
    if not equal.any():
        return told, _warming_up(trace, ends, rate)
    level = float(np.median(line.blocks[: rise.best + 1][equal][-3:]))
    above = round(float(np.median(line.blocks[-tail:])) - level, 3)
    allowed = round(max(ABOVE_EQUAL, 0.3 * rise.height), 3)
    what = "rise above the level at an equal rate before the best step"
    return [*told, Evidence("loss", what, above, allowed, "log")], above <= allowed


def _warming_up(trace: Trace, ends: IntArray, rate: Floats) -> bool:
    """Whether a rate never as high before rises by plan: as stated, or in a straight line."""
    planned = trace.facts.get("warmup_steps")
    if isinstance(planned, int | float) and ends[-1] <= planned:
        return True
    line = np.interp(ends, ends[[0, -1]], rate[[0, -1]])
    return bool(np.abs(rate - line).max() <= 0.05 * rate[-1])


def _measured(line: Curve, rise: Rise, above: bool, lost: float, limits: Limits) -> list[Evidence]:
    scale = _scale(line)
    low = "its first value" if rise.from_start else "its best level"
    limit = limits.large if rise.from_start else limits.rise
    told = [Evidence("loss", f"rise of {scale} above {low}", rise.height, limit, "1")]
    steady = not _loud(rise, limits)
    noise = limits.steady_errors if steady else limits.errors
    told.append(Evidence("loss", "the rise over its standard error", rise.errors, noise, "1"))
    if steady:
        what = "the slope since the best level over its standard error"
        told.append(Evidence("loss", what, rise.slope_errors, limits.slope_errors, "1"))
    if above:
        word = "" if rise.fell > PROGRESS else "; it never fell clearly below its start"
        what = f"{scale} at the end above that of the start{word}"
        return [*told, Evidence("loss", what, rise.over, limits.rise, "1")]
    what = "share of the progress made before that is lost again"
    return [*told, Evidence("loss", what, rise.lost, lost, "share")]


def _place(trace: Trace, rise: Rise, joint: list[int], large: bool) -> list[Evidence]:
    """Whether the rise is one jump, and what happened there."""
    first, last = rise.jump_steps
    abrupt = rise.jump > ABRUPT
    word = "one jump" if abrupt else "no single jump" if large else "no single jump, a creep"
    what = f"share of the rise that comes between step {first} and step {last}: {word}"
    told = [Evidence("loss", what, rise.jump, ABRUPT, "share")]
    if not abrupt:
        return told
    if joint:
        told.append(Evidence("loss", "step at which the run was resumed", joint[0], first, "step"))
    if (step := _epoch_end(trace, first, last)) is not None and not joint:
        what = "step at which an epoch ends: a change of data there looks the same"
        told.append(Evidence("epoch", what, step, first, "step"))
    return told


def _epoch_end(trace: Trace, first: int, last: int) -> int | None:
    """The only step within first to last at which an epoch ends, if there is one."""
    ends = [event.step for event in trace.events if event.kind == "epoch"]
    series = trace.series.get("epoch")
    if not ends and series is not None:
        turned = np.diff(np.floor(np.nan_to_num(series.values))) > 0
        ends = [int(step) for step in series.steps[1:][turned]]
    within = [step for step in ends if first <= step <= last]
    return within[0] if len(within) == 1 else None


def _evaluation(trace: Trace, first: int) -> tuple[list[Evidence], float | None]:
    """What the evaluation loss did since `first`, as a factor."""
    series = trace.series.get("eval_loss")
    if series is None:
        return [], None
    finite = np.isfinite(series.values)
    steps, values = series.steps[finite], np.asarray(series.values[finite], np.float64)
    before, since = values[steps <= first], values[steps > first]
    if not before.size or since.size < 3 or before[-1] <= 0 or since.min() < 0:
        return [], None
    times = round(_times(float(np.median(np.minimum(since[-3:], HUGE))), float(before[-1])), 3)
    limit, word = CLEARLY_ROSE, "it rises too" if times > CLEARLY_ROSE else "it hardly moves"
    if times < CLEARLY_FELL:
        limit, word = CLEARLY_FELL, "it falls: the training data or objective became harder"
    what = f"the evaluation loss at the end over that of step {first}; {word}"
    return [Evidence("eval_loss", what, times, limit, "times")], times


def _times(now: float, before: float) -> float:
    """`now` over a positive `before`, at most `FARTHEST`."""
    return FARTHEST if now / FARTHEST >= before else now / before


def _norm(trace: Trace, first: int) -> list[Evidence]:
    times = _norm_change(trace, first)
    if times is None or abs(times - 1) <= NORM_MOVED:
        return []
    what = f"the norm of all weights over that of step {first}"
    limit = 1 + NORM_MOVED if times > 1 else 1 - NORM_MOVED
    return [Evidence("param_rms", what, times, limit, "times")]


def _norm_change(trace: Trace, first: int) -> float | None:
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
    return round(_times(float(since[-1]), float(before[-1])), 2)


def _treatments(
    trace: Trace,
    line: Curve,
    rise: Rise,
    severity: Severity,
    joint: list[int],
    limits: Limits,
) -> tuple[Treatment, ...]:
    first = rise.onset
    progress = rise.fell > PROGRESS and first > line.steps[2]
    replay = Treatment(
        title=f"Replay an early checkpoint, from before step {first}, on today's batches"
        if progress
        else "Evaluate the model as it was at the start on today's batches",
        when="check",
        safety="safe",
        source="if it is worse today as well, the data changed and not the model",
    )
    told = _back(trace, first, rise, limits) if progress else _restart(trace)
    told += _decay(trace, first)
    told = [*told, replay] if severity is Severity.CRITICAL else [replay, *told]
    if joint:
        title = (
            f"Compare weights, optimizer state and data position before and after step {joint[0]}"
        )
        told.insert(0, Treatment(title=title, when="check", safety="safe", source=A_RESUME))
    return tuple(told)


def _restart(trace: Trace) -> list[Treatment]:
    """Where no progress was made there is nothing to go back to."""
    return [
        Treatment(
            title="Restart with a tenth of the rate",
            changes=_rate_times(trace, 0.1),
            when="next",
            source="the loss never fell clearly below its start: no checkpoint is worth keeping",
        ),
        Treatment(
            title="Run the first updates again at several rates, each a third of the one before",
            when="check",
            safety="safe",
            source="the highest rate at which the loss falls from the start shows itself there",
        ),
    ]


def _back(trace: Trace, first: int, rise: Rise, limits: Limits) -> list[Treatment]:
    now = [
        Treatment(
            title=f"Go back to the last checkpoint at or before step {first}, with half the rate",
            when="now",
            safety="risky",
            source="the best level was there; steps after it only raised the loss",
        ),
        Treatment(
            title="Or halve the learning rate from the next step on, and see if the level falls",
            when="now",
            safety="risky",
            source="a level that follows the rate down shows that the rate was too high",
        ),
    ]
    if _large(rise, limits):  # a lower rate does not bring back what an explosion destroyed
        now = now[:1]
    return [
        *now,
        Treatment(
            title="Plan half the peak rate, or a schedule that has decayed by this step",
            changes=_rate_times(trace, 0.5),
            when="next",
            source="a rate that was right early can be too high once the loss is low",
        ),
        Treatment(
            title=f"Replay the batches since step {first} from its checkpoint with half the rate",
            when="check",
            safety="safe",
            source="same data, other rate: a level that stays down acquits the data",
        ),
    ]


def _rate_times(trace: Trace, factor: float) -> dict[str, tuple[Knob, Knob]]:
    """The change of the peak rate by a factor, where the rate is known."""
    series = trace.series.get("lr")
    if series is None or not np.isfinite(series.values).all():
        return {}
    peak = float(f"{series.values.max():.6g}")
    new = float(f"{factor * peak:.3g}")
    return {"lr": (peak, new)} if 0 < new < peak else {}


def _decay(trace: Trace, first: int) -> list[Treatment]:
    """Weight decay, where there is one and the weights moved."""
    decay, times = trace.facts.get("weight_decay"), _norm_change(trace, first)
    if not isinstance(decay, int | float) or not decay > 0:
        return []
    if times is None or abs(times - 1) <= NORM_MOVED:
        return []
    title = f"Examine weight decay: the weights {'grew' if times > 1 else 'shrank'} to {times:.2f}"
    half = str(trace.facts.get("param_dtype")) in ("float16", "bfloat16")
    keep = "; keep master weights in float32, where a small decay is not rounded away"
    return [
        Treatment(
            title=f"{title} of their norm{keep if times > 1 and half else ''}",
            when="check",
            source="decay shrinks a weight by rate times decay a step, gradients grow it",
        )
    ]


def _sick() -> Trace:
    loss = falling_loss(400)
    loss[200:] *= np.exp(np.linspace(0, 0.25, 200))
    return make_trace(loss=loss)


RULE = rule.Rule(
    name="upward-drift",
    needs=("loss",),
    uses=(
        "lr",
        "eval_loss",
        "grad_norm",
        "epoch",
        "param_rms",
        "param_dtype",
        "warmup_steps",
        "weight_decay",
        "loss_kind",
        "loss_form",
        *FILTERED_BY,
    ),
    onset="estimated",
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss()),
    doc=__doc__ or "",
)
