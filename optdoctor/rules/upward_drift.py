"""The training loss creeps up from its best, or jumps and stays up.

## What it finds
The level of the training loss, as medians of 40 blocks on a log scale, ends above its best by more
than `rise` and by more than its own noise allows: `errors` standard errors of a block, or
`steady_errors` where the slope since exceeds `slope_errors`. At least `kept` of the highest rise
must still stand at the end. The evidence says how much of the progress is lost, whether most of it
came in one jump, and what the evaluation loss, the learning rate and the norm of the weights did
meanwhile. An abrupt divergence is reported here too, and named so.
## Why it matters
The updates since the best step made the model worse, or the data or the objective have changed.
Each further step at this setting costs compute and buys nothing.
## What to do
Now: go back to the checkpoint before the rise, or lower the rate from the next step on. Next: a
lower peak rate. First tell the causes apart: replay the same batches with half the rate, and
evaluate an early checkpoint on today's batches. If that one is worse today too, the data changed.
Writing decayed weights back to half precision is not proposed: it changes nothing. Weight decay is
named only where the weights themselves grew or shrank.
## When it is fine
A rate that rises again, as in a warm restart or a cycle: the loss is compared with its level at an
equal rate before. A rate that still warms up, by plan or in a straight line: the rule waits. A loss
near zero: the rise is measured against the progress made. Harder data or a harder objective on
purpose: where the evaluation loss clearly falls meanwhile, the finding is a note. So is a small
jump at a resume. A `large` rise is told in each of these cases.
## Told apart from
`bimodal-gap`: the evaluation loss rises alone.
`loss-spike`: it comes back; here the rise still stands at the end.
`nan-pulse`: no finite loss is left.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optdoctor import rule
from optdoctor.curves import Curve, Floats, curve, unmasked
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
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
CLEARLY_FELL = 0.95
"""Factor on the evaluation loss below which the model became better, whatever training says."""
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
    """Rise in logarithms that is told even while it is coming back, or while the rate still rises,
    and after a resume or beside a falling evaluation loss."""
    large_errors: float = 10.0
    """Errors that such a large rise needs."""
    most: float = 0.5
    """Share of the progress lost above which the run is lost: critical."""


class Rise(NamedTuple):
    """From the best level of a curve to its end. Figures are rounded: judged as printed."""

    best: int  # block: the middle one of the lowest three
    height: float  # end above best
    errors: float  # height in its standard errors, over the leeway
    slope_errors: float  # slope since the best, likewise
    kept: float  # height over the highest rise since
    jump: float  # largest rise over three blocks, over height
    jump_steps: tuple[int, int]
    low: float  # losses: median at the best,
    end: float  # at the end,
    lost: float  # share of the progress from the first block to the best that is lost


def rise_of(line: Curve) -> Rise | None:
    """The rise of a curve from its best level; None where it ends at its best, or nearly."""
    blocks, count = line.blocks, len(line.blocks)
    three = np.convolve(blocks, np.ones(3) / 3, "valid")  # [K - 2]
    at = int(np.argmin(three))
    tail = max(2, count // 13)
    height = float(np.median(blocks[-tail:]) - three[at])
    since = blocks[at + 2 :]
    if height <= 0 or len(since) < 3:  # a best level so fresh can still be the trend's
        return None
    slope = float(np.polyfit(np.arange(len(since)), since, 1)[0])
    slope_error = line.block_error * float(np.sqrt(12 / len(since))) / len(since)
    later = three[at:]
    span = min(3, len(later) - 1)
    jumps = later[span:] - later[:-span]
    jump = int(np.argmax(jumps))
    groups = np.array_split(line.losses, count)
    low = float(np.median(np.concatenate(groups[at : at + 3])))
    end = float(np.median(np.concatenate(groups[-tail:])))
    progress = float(np.median(groups[0])) - low
    lost = (end - low) / progress if progress > 0 else np.inf
    return Rise(
        best=at + 1,
        height=round(height, 3),
        errors=round(float(height / (0.82 * line.block_error) / line.leeway), 2),
        slope_errors=round(float(slope / slope_error / line.leeway), 2),
        kept=round(height / max(float(later.max() - three[at]), height), 2),
        jump=round(min(float(jumps[jump]) / height, 1.0), 2),
        jump_steps=(
            int(line.block_steps[at + 1 + jump]),
            int(line.block_ends[min(at + 1 + jump + span, count - 1)]),
        ),
        low=low,
        end=end,
        lost=round(min(lost, 10.0), 3),
    )


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    kind = trace.facts.get("loss_kind") or "falling"
    if kind != "falling":
        return Abstain(f"a loss of kind {kind} may rise in a good run")
    line = curve(unmasked(trace.series["loss"], trace.series.get("grad_norm")))
    if line is None:
        return Abstain("too few finite losses for a curve")
    rise = rise_of(line)
    if rise is None or not _beyond(rise, limits):
        return []
    rate, excused = _rate(trace, line, rise)
    large = _large(rise, limits)
    if excused and not large:
        return []
    first, last = int(line.block_ends[rise.best]), int(line.steps[-1])
    evaluation, softened = _evaluation(trace, first)
    joint = [e.step for e in trace.events if e.kind == "resume" and _within(rise, e.step)]
    joint = [step for step in joint if rise.jump >= ABRUPT]
    grave = Severity.CRITICAL if rise.lost > limits.most else Severity.WARN
    return [
        Finding(
            severity=Severity.NOTE if (softened or joint) and not large else grave,
            summary=(
                f"Drift: the training loss rises from {rise.low:.4g} at step {first} to "
                f"{rise.end:.4g} at step {last}, by {rise.height} on a log scale "
                f"(limit {limits.rise})."
            ),
            steps=(first, last),
            evidence=(
                *_measured(rise, limits),
                *_place(trace, rise, joint),
                *rate,
                *evaluation,
                *_norm(trace, first),
            ),
            treatments=_treatments(trace, rise, first, joint, limits),
        )
    ]


def _large(rise: Rise, limits: Limits) -> bool:
    return rise.height > limits.large and rise.errors > limits.large_errors


def _beyond(rise: Rise, limits: Limits) -> bool:
    if rise.height <= limits.rise or rise.lost <= limits.lost:
        return False
    steady = rise.slope_errors > limits.slope_errors and rise.errors > limits.steady_errors
    if not steady and rise.errors <= limits.errors:
        return False
    return rise.kept >= limits.kept or _large(rise, limits)


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


def _measured(rise: Rise, limits: Limits) -> list[Evidence]:
    return [
        Evidence("loss", "rise above the best level", rise.height, limits.rise, "log"),
        Evidence("loss", "the rise over its standard error", rise.errors, limits.errors, "errors"),
        Evidence("loss", "of the progress before it is lost again", rise.lost, limits.lost, "1"),
    ]


def _place(trace: Trace, rise: Rise, joint: list[int]) -> list[Evidence]:
    """Whether the rise is one jump, and what happened there."""
    first, last = rise.jump_steps
    word = "an abrupt divergence or change" if rise.jump >= ABRUPT else "no single jump, a creep"
    what = f"of the rise in one jump between step {first} and step {last}: {word}"
    told = [Evidence("loss", what, rise.jump, ABRUPT, "1")]
    if rise.jump < ABRUPT:
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


def _evaluation(trace: Trace, first: int) -> tuple[list[Evidence], bool]:
    """What the evaluation loss did since `first`, and whether it fell."""
    series = trace.series.get("eval_loss")
    if series is None:
        return [], False
    finite = np.isfinite(series.values)
    steps, values = series.steps[finite], series.values[finite]
    before, since = values[steps <= first], values[steps > first]
    if not before.size or since.size < 3 or before[-1] <= 0:
        return [], False
    times = round(float(np.median(since[-3:]) / before[-1]), 3)
    rose = "rises too" if times > 1 else "falls: the training data or objective became harder"
    what = f"the evaluation loss at the end over that of step {first}; it {rose}"
    return [Evidence("eval_loss", what, times, 1.0, "times")], times < CLEARLY_FELL


def _norm(trace: Trace, first: int) -> list[Evidence]:
    times = _norm_change(trace, first)
    if times is None:
        return []
    what = f"the norm of all weights over that of step {first}"
    return [Evidence("param_rms", what, round(times, 2), 1 + NORM_MOVED, "times")]


def _norm_change(trace: Trace, first: int) -> float | None:
    series = trace.series.get("param_rms")
    if series is None or not trace.tensors:
        return None
    squares = trace.num_elements * np.asarray(series.values, np.float64) ** 2  # [T, P]
    whole = np.isfinite(squares).all(axis=1)
    steps, norms = series.steps[whole], np.sqrt(squares[whole].sum(axis=1))
    before, since = norms[steps <= first], norms[steps > first]
    if not before.size or not since.size or before[-1] <= 0:
        return None
    return float(since[-1] / before[-1])


def _treatments(
    trace: Trace, rise: Rise, first: int, joint: list[int], limits: Limits
) -> tuple[Treatment, ...]:
    undone = "the best level was there; steps after it only raised the loss"
    now = [
        Treatment(
            title=f"Go back to the last checkpoint at or before step {first}, with half the rate",
            when="now",
            safety="risky",
            source=undone,
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
    if joint:
        title = (
            f"Compare weights, optimizer state and data position before and after step {joint[0]}"
        )
        now.insert(0, Treatment(title=title, when="check", safety="safe", source=A_RESUME))
    check = [
        Treatment(
            title=f"Replay the batches since step {first} from its checkpoint with half the rate",
            when="check",
            safety="safe",
            source="same data, other rate: a level that stays down acquits the data",
        ),
        Treatment(
            title=f"Evaluate a checkpoint from before step {first} on today's batches",
            when="check",
            safety="safe",
            source="if it is worse today as well, the data changed and not the model",
        ),
    ]
    following = [
        Treatment(
            title="Plan a lower peak rate, or a schedule that has decayed by this step",
            when="next",
            source="a rate that was right early can be too high once the loss is low",
        )
    ]
    if (times := _norm_change(trace, first)) is not None and abs(times - 1) > NORM_MOVED:
        grew = times > 1
        title = f"Examine weight decay: the weights {'grew' if grew else 'shrank'} to {times:.2f}"
        half = str(trace.facts.get("param_dtype")) in ("float16", "bfloat16")
        keep = "; keep master weights in float32, where a small decay is not rounded away"
        following.append(
            Treatment(
                title=f"{title} of their norm{keep if grew and half else ''}",
                when="check",
                source="decay shrinks a weight by rate times decay a step, gradients grow it",
            )
        )
    return (*now, *following, *check)


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
        "loss_kind",
    ),
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss()),
    doc=__doc__ or "",
)
