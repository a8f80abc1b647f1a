"""A gradient norm stands far above those around it.

## What it finds
Norms of the whole gradient more than 8 times the usual ones of the rows before and after them, and
beyond what the norms of this run do by themselves: in standard deviations of their logarithm around
its slow trend, and against the next highest of them. Norms before clipping; where none are known,
those that the optimizer saw, if nothing is known to clip them. A run whose norms reach five times
the usual again and again has no outlier at six. The first tenth of a run has to show twice as much.
A norm that grew over rows, none of which rose by half of its height, is none.
It is an alarm where the loss jumps after it, or with it, unless it is known that the update did not
see it; and where the update saw it. Clipped to about the usual size it is a note, and so it is
where the loss shows nothing and the optimizer bounds its step, as all known ones but plain and
averaged descent do.
## Why it matters
One gradient outweighs the mean of many. Plain descent makes a step of that size. Adam bounds the
step, but the second moment remembers the outlier for about 1 / (1 - beta2) steps, in which the
weights hardly move. A few of them are broken or rare data; many, and ever more, come before a
divergence.
## What to do
Look at the batch of that step, and evaluate it again. Clip the gradient, where it is not clipped:
1.5 times the usual norm leaves all other updates as they are. Record the norm after clipping and
the batch index, if they are not there.
## When it is fine
Norms with a heavy tail, as of small batches: factors of 3 to 5 are their nature and do not count.
Outliers in more than a tenth of the rows are those of a kind of batches, and a note.
Large norms of the first steps and norms that grow or fall slowly are part of the trend. A swing
that builds up over some rows, as at the edge of stability, is the run's own.
## Told apart from
`nonfinite-gradient` and `nan-pulse`: norms that are not finite, and what lies beside them.
`bad-batch`: the loss of the same step is an outlier too, and the batch is named.
`loss-spike`: the loss alone, or a loss that follows.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optdoctor import rule
from optdoctor.curves.deviations import highest, norm_level, resolution, scores
from optdoctor.curves.gradient_norm import UNKNOWN, gradient_norm
from optdoctor.curves.level import Floats, curve
from optdoctor.curves.masked import FILTERED_BY, unmasked, witness
from optdoctor.curves.peaks import Spike
from optdoctor.curves.spikes import NORMS, beside_nan, spikes_of
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.store import IntArray, Series
from optdoctor.synthetic import gradient_norms, make_trace
from optdoctor.trace import Trace

SPREAD = 0.1
"""Least standard deviation of the logarithm of a norm: a smooth series has no outliers at 10 %."""
BLIP = 6.0
"""Deviation of the loss, in standard deviations, from which it jumps with the norm."""
FEELING = frozenset({None, "other", "sgd", "asgd"})
"""Families that make a step as large as the gradient, and those of which that is not known."""
USUAL = 16
"""Rows before an outlier whose median is the usual norm."""
CLIP = 1.5
"""Usual norms at which clipping is proposed."""
LISTED = 5
"""Most outliers whose steps are listed."""
SUDDEN = 0.5
"""Share of its height in logarithms that one row has to rise by: those of broken batches rise by
0.7 and more, the swings of healthy small trainings by a quarter."""
BEFORE = 3
"""Rows before the first high one in which it may have begun."""
OFTEN = 0.1
"""Largest share of rows that are outliers and not a kind of batches."""
DENSE = 6
"""Outliers from which their number in each third of the run is told."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 24
    """Rows from which norms have a spread of their own."""
    factor: float = 8.0
    """Largest norm over those around it that passes: healthy norms with heavy tails reach 5."""
    clearness: float = 1.0
    """Largest outlier that passes, over what the spread and the other peaks of the norm let
    expect. With it none of 4,928 logs of made-up healthy runs is told, and none of 1,456 logs of
    104 healthy small trainings."""
    update: float = 3.0
    """Largest norm after clipping, over the usual one, that the update hardly sees."""


class _Outlier(NamedTuple):
    """One outlier, with what became of it."""

    spike: Spike
    step: int
    usual: float  # norm before it,
    norm: float  # and at it
    used: float  # norm after clipping over the usual one
    after: float
    """Largest deviation of the losses of later updates, two rows away at most."""
    blip: float  # deviations of the loss at most 2 rows away


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    name = gradient_norm(trace)
    if not name:
        return Abstain(UNKNOWN)
    series = trace.series[name]
    rows, level = norm_level(series)
    missing = limits.rows - level.size  # the engine counts those of 0 and NaN too
    if missing > 0:
        return Abstain(f"{level.size} norms are positive numbers, needs {limits.rows}")
    spikes = [
        spike
        for spike in spikes_of(level, NORMS, least_height=1.0, least_spread=SPREAD)
        if round(spike.clearness, 2) > limits.clearness
        and round(_times(spike), 2) > limits.factor
        and round(_steepest(level, spike), 2) >= SUDDEN
        and not beside_nan(series, rows.steps, spike)
    ]
    if not spikes:
        return []
    blips = _blips(trace)
    outliers = [_outlier(trace, rows, spike, blips) for spike in spikes]
    felt = trace.facts.get("optimizer_family") in FEELING
    known = _is_known(trace)
    seen = [one for one in outliers if _tells(one, limits, felt=felt, known=known)]
    worst = max(seen or outliers, key=lambda one: one.norm / one.usual)
    is_kind = len(outliers) > OFTEN * level.size
    back = max(min(spike.known, level.size - 1) for spike in spikes)
    return [
        Finding(
            severity=Severity.WARN if seen and not is_kind else Severity.NOTE,
            summary=_summary(trace, outliers, worst, rows, limits, is_kind=is_kind),
            steps=(outliers[0].step, int(rows.steps[back])),
            evidence=tuple(_evidence(trace, name, outliers, worst, level.size, limits)),
            treatments=_treatments(trace, worst, clipped=not seen),
        )
    ]


def _tells(one: _Outlier, limits: Limits, *, felt: bool, known: bool) -> bool:
    """Whether it was more than a number: the update saw it, or losses after it did, or that of its
    own batch did and nobody knows what the update saw."""
    used = round(one.used, 2) > limits.update
    return (used and felt) or one.after > BLIP or (one.blip > BLIP and (used or not known))


def _times(spike: Spike) -> float:
    """How many times the norm stands above both sides."""
    return math.exp(min(spike.height, 300.0))


def _steepest(level: Floats, spike: Spike) -> float:
    """Share of its height that one row on the way to the top rises by."""
    way = level[max(spike.first - BEFORE, 0) : spike.top + 1]
    return float(np.diff(way).max()) / spike.height


def _blips(trace: Trace) -> tuple[IntArray, Floats] | None:
    """Steps and deviations of the losses; None where they tell nothing."""
    if "loss" not in trace.series:
        return None
    shape = curve(highest(unmasked(trace.series["loss"], witness(trace))))
    if shape is None:
        return None
    floor = np.maximum(resolution(shape), 0.01)
    return shape.steps, scores(shape.level, floor)


def _outlier(
    trace: Trace, rows: Series, spike: Spike, blips: tuple[IntArray, Floats] | None
) -> _Outlier:
    step = int(rows.high_step[spike.top])
    before = slice(max(spike.first - USUAL, 0), spike.first)
    usual, norm = float(np.median(rows.high[before])), float(rows.high[spike.top])
    used = norm / usual
    clip = _clip(trace)
    after = trace.series.get("grad_norm_used")
    if clip:
        used = min(norm, clip) / min(usual, clip)
    if after is not None and after.steps.size:
        at = int(np.searchsorted(after.steps, step))
        start = int(rows.starts[before.start])
        earlier = after.high[(after.steps >= start) & (after.steps < rows.starts[spike.first])]
        earlier = earlier[np.isfinite(earlier) & (earlier > 0)]
        if at < after.steps.size and after.starts[at] <= step and earlier.size:
            now = float(after.high[at])
            used = now / float(np.median(earlier)) if math.isfinite(now) else used
    blip = after_it = 0.0
    if blips is not None:
        steps, deviations = blips
        low, high = rows.starts[max(spike.first - 1, 0)], rows.steps[spike.last]
        at_loss = np.flatnonzero((steps >= low) & (steps <= high))
        if at_loss.size:
            near = slice(at_loss[0], at_loss[-1] + 3)
            blip = float(deviations[near].max())
            after_it = float(deviations[near][steps[near] > step].max(initial=0.0))
    return _Outlier(spike, step, usual, norm, min(used, 1e6), after_it, blip)


def _clip(trace: Trace) -> float:
    """The norm at which gradients are clipped; 0 where they are not, or nobody knows."""
    clip = trace.facts.get("max_grad_norm")
    return float(clip) if isinstance(clip, int | float) and 0 < clip < 1e300 else 0.0


def _is_known(trace: Trace) -> bool:
    """Whether the log tells what the update saw."""
    return trace.has("grad_norm_used") or isinstance(trace.facts.get("max_grad_norm"), int | float)


def _summary(
    trace: Trace,
    outliers: list[_Outlier],
    worst: _Outlier,
    rows: Series,
    limits: Limits,
    *,
    is_kind: bool,
) -> str:
    several = len(outliers) > 1
    doubt = "; so often that a kind of batches has them" if is_kind else ""
    often = f" {len(outliers)} times since step {outliers[0].step}, most" if several else ""
    ratio = worst.norm / worst.usual
    far = f"from {worst.usual:.3g} to {worst.norm:.3g}"
    if ratio < 1e6:
        far += f", {ratio:.3g}-fold,"
    first = int(rows.high_step[worst.spike.first])
    since = f", high since step {first}" if first < worst.step else ""
    fate = ", and nobody recorded whether it was clipped"
    if _is_known(trace):
        fate = f", of which {worst.used:.3g} times the usual reached the update"
    thirds = ""
    if len(outliers) >= DENSE:
        counts = _thirds(outliers, rows)
        thirds = f"; {counts[0]}, {counts[1]} and {counts[2]} in the thirds of the run"
    return (
        f"Gradient outlier{'s' * several}: the norm jumps{often} {far} at step {worst.step}{since}"
        f"{fate}{thirds}{doubt} (limit {limits.factor:g}-fold)."
    )


def _thirds(outliers: list[_Outlier], rows: Series) -> list[int]:
    edges = np.linspace(int(rows.starts[0]), int(rows.steps[-1]) + 1, 4)
    return [int(count) for count in np.histogram([one.step for one in outliers], edges)[0]]


def _evidence(
    trace: Trace, name: str, outliers: list[_Outlier], worst: _Outlier, count: int, limits: Limits
) -> list[Evidence]:
    spike = worst.spike
    what = f"norm at step {worst.step} over the norms around it"
    told = [Evidence(name, what, min(_times(spike), 1e6), limits.factor, "times")]
    what = (
        "height of its logarithm over the norms around it, in standard deviations of their noise;"
        " the limit is what noise and the next highest norms of this run reach"
    )
    reach = limits.clearness * spike.reach
    told.append(Evidence(name, what, spike.deviations, reach, "standard deviations"))
    if spike.rows > 1:
        told.append(
            Evidence(
                name,
                "rows that are high together; a single batch makes one",
                spike.rows,
                1,
                "rows",
            )
        )
    if _is_known(trace):
        channel = "grad_norm_used" if trace.has("grad_norm_used") else "max_grad_norm"
        what = "norm that the update saw over the usual one"
        told.append(Evidence(channel, what, worst.used, limits.update, "times"))
    if trace.has("loss"):
        what = "largest loss at most 2 rows away, above its trend"
        told.append(Evidence("loss", what, worst.blip, BLIP, "standard deviations"))
    if len(outliers) > 1:
        steps = ", ".join(str(one.step) for one in outliers[:LISTED])
        more = ", ..." if len(outliers) > LISTED else ""
        what = f"outliers, at steps {steps}{more}"
        told.append(Evidence(name, what, len(outliers), 0, "outliers"))
        what = "share of the rows that are outliers; beyond the limit they are a note"
        told.append(Evidence(name, what, len(outliers) / count, OFTEN, "share"))
    return told


def _treatments(trace: Trace, worst: _Outlier, *, clipped: bool) -> tuple[Treatment, ...]:
    told = [
        Treatment(
            title=f"Look at the batch of step {worst.step}, and evaluate it again",
            when="check",
            safety="safe",
            source="a broken batch has its norm again, a bad step of the weights does not",
        )
    ]
    wanted = {"grad_norm_used": "the norm after clipping", "batch_index": "the batch index"}
    missing = [word for name, word in wanted.items() if not trace.has(name)]
    if missing:
        told.append(
            Treatment(
                title=f"Record {' and '.join(missing)}",
                when="check",
                safety="safe",
                source="they tell what the update saw, and whether a batch comes again",
            )
        )
    bound, clip = float(f"{CLIP * worst.usual:.2g}"), _clip(trace)
    if not clipped and bound > 0 and not 0 < clip <= bound:
        told.append(
            Treatment(
                title=f"Clip the gradient at {bound:g}, {CLIP:g} times its usual norm, or at such"
                " a multiple of its running median",
                changes={"max_grad_norm": (clip or None, bound)},
                when="now",
                safety="risky",
                source="it bounds the step of a gradient that stands out and leaves all others",
                intervention="" if clip else "adaptive-clipping",
            )
        )
    return tuple(told)


def _sick() -> Trace:
    norm = gradient_norms()
    norm[250] *= 20
    return make_trace(grad_norm=norm)


RULE = rule.Rule(
    name="gradient-outlier",
    needs=("grad_norm|grad_norm_used",),
    uses=(
        "max_grad_norm",
        "batch_index",
        "loss",
        "optimizer_family",
        *FILTERED_BY,
    ),
    explains=("loss-spike", "divergence"),
    transient=True,
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(grad_norm=gradient_norms()),
    doc=__doc__ or "",
)
