"""The gradient scaler skips update after update, and its scale collapses.

## What it finds
Skipped updates, from rows that say so and from the halvings of the scale between two rows. Once the
scaler has found its scale: 5 skipped updates within 25 while the scale falls by 4 halvings, 10
within 100 at any scale, or a scale below 128 that is 8 halvings below one that it held. Critical
where no update follows 10 skipped ones up to the end, at a scale of 1.2e-4 and below, and where the
scaler ended the run at its least scale. A log of nothing but skipped updates is a note while it may
be a search, which is over after 44 of them. Skipped is what the scaler says of an update: a loss
that is finite at the first of them and never after says that the weights moved all the same.
## Why it matters
A scale halves where a scaled gradient is not finite, and that update is left out. A scaler whose
gradients only grew finds a lower scale after one or two of them. Halving again and again means that
the gradient is NaN or infinite at any scale: the run uses compute and learns nothing. Far below the
scale that it held, small gradients round to 0 in float16.
## What to do
Find what is not finite first: the loss, an activation or a gradient. An activation or a loss beyond
65504 overflows before the scale is applied; bfloat16 autocast holds it, and softmax, logarithms and
attention logits in float32. If the norm of the gradient grew first, a lower rate. In DeepSpeed
`initial_scale_power` shortens the search and cures nothing else; a floor under the scale
(`min_loss_scale`) ends the halving, not the overflow. The scale protects the backward pass and has
no part in the update. Clipping is not enough: it cannot make a NaN finite.
## When it is fine
A scaler starts far too high, at 2 to the 16 or the 32, and halves its way down in the first tens of
updates; a resumed one does it again. Every 1,000 or 2,000 updates it doubles its scale and skips
one or two.
## Told apart from
`nan-pulse`: the loss itself is not finite. `nonfinite-gradient`: the optimizer took such a gradient
in. `second-moment-underflow`: the gradient is finite, and the update is not.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from optdoctor import rule
from optdoctor.curves.scaler import NOTHING, TELLS_OF_UPDATES, Scaler, scaler
from optdoctor.curves.skips import Stretch, crowded, falling, most_within
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.loss_scaling import READ_ON, remedies
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

WITHIN = 100
"""Updates within which skipped ones are counted."""
CLOSE = 25
"""Updates within which they count as close together."""
HALVINGS = 4.0
"""Halvings among them: a scale that grows back meanwhile falls by one or two."""
PASSAGE = 5
"""Skipped updates in a row, up to the end, from which a search is told of at all."""
SEARCH_SKIPS, SEARCH_SCALE = 8, 4.0
"""Skipped updates and logarithm of the scale from which a search has come too low to be one: above
16 a gradient of a mean loss that overflows is larger than 4,000."""
LONGEST = 44
"""Skipped updates in a row after which no search is left: from 2 to the 32, the highest scale that
trainings begin with, as many halvings lead to 2 to the -12, `least_scale`."""
HARMLESS = 7.0
"""Logarithm of the scale, 128, above which a fall is that of gradients that grew."""
HEEDED = Treatment(
    title="Compare a weight before and after an update that the scaler skips: a fused step, or one"
    " of your own, may not heed the scaler",
    when="check",
    safety="safe",
    source="pytorch/pytorch#95781",
)
LATELY = 5
"""Rows before the first skipped update in which the gradient norm may have grown."""
PACE = 0.02
"""Share of skipped updates below which a low scale is that of gradients that grew slowly."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 5
    """Five rows: fewer skipped updates in a row tell nothing."""
    skips: int = 5
    """Fewest updates skipped within 25 while the scale falls by 4 halvings: simulated scalers over
    gradients with heavy tails, or that grow by a factor of 100, stay below it."""
    share: int = 10
    """Fewest updates skipped within 100 at any scale: one that doubles every 20 updates skips 5."""
    standstill: int = 10
    """Fewest updates skipped in a row up to the end from which the run stands still."""
    depth: float = 8.0
    """Halvings below a scale that was held from which it has collapsed, where it is below 128."""
    least_scale: float = 2.0**-12
    """Scale below which the run is lost: at 2 to the -13, 1.2e-4, fairseq ends it, icefall soon
    after."""


Kind = Literal["ended", "still", "least", "search", "fall", "depth", "share", "slow", "passage"]
ORDER: tuple[Kind, ...] = get_args(Kind)
"""Worst first."""


class _Collapse(NamedTuple):
    """What is wrong, and the first and the last skipped update of it."""

    kind: Kind
    stretch: Stretch
    highest: float = 0.0
    """Logarithm of the scale from which it fell, where the last row decides."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    scale = scaler(trace)
    several = _found(scale, limits)
    if not several:
        return []
    worst = min(several, key=lambda one: ORDER.index(one.kind))
    since, until = int(scale.told[worst.stretch[0]]), int(scale.shown[worst.stretch[1]])
    if scale.trailing and worst.stretch[1] == scale.steps.size - 1:
        until = trace.steps[1]
    return [
        Finding(
            severity=_severity(scale, worst),
            summary=_summary(trace, scale, worst, (since, until), limits),
            steps=(since, until),
            evidence=_evidence(scale, worst, since, limits),
            treatments=_treatments(trace, scale, worst, since),
        )
    ]


def _found(scale: Scaler, limits: Limits) -> list[_Collapse]:
    found = [_search(scale, limits), _low(scale, limits)]
    trailing, end = scale.steps.size - scale.trailing, scale.steps.size - 1
    if scale.has_ended and scale.trailing:
        found.append(_Collapse("ended", (trailing, end)))
    is_search = scale.searching[trailing:].all() and not scale.used[trailing:].all()
    if scale.trailing >= limits.standstill and not is_search:
        found.append(_Collapse("still", (trailing, end)))
    if stretch := falling(scale, limits.skips, CLOSE, HALVINGS):
        found.append(_Collapse("fall", stretch))
    if stretch := crowded(scale, limits.share, WITHIN):
        found.append(_Collapse("share", stretch))
    return [one for one in found if one is not None]


def _severity(scale: Scaler, worst: _Collapse) -> Severity:
    at_one = worst.kind == "search" and (scale.last <= 0 or scale.trailing >= LONGEST)
    if worst.kind in ("ended", "still", "least") or at_one:
        return Severity.CRITICAL
    return Severity.NOTE if worst.kind in ("slow", "passage") else Severity.WARN


def _search(scale: Scaler, limits: Limits) -> _Collapse | None:
    """A search up to the end that came too low, or of which nobody knows how it ended."""
    first = scale.steps.size - scale.trailing
    if scale.trailing < PASSAGE or not scale.searching[first]:
        return None
    lowest = float(np.nanmin(scale.scales[first:], initial=np.inf))
    too_low = scale.trailing >= SEARCH_SKIPS and lowest <= SEARCH_SCALE
    too_low = too_low or scale.trailing >= LONGEST
    if not too_low and scale.made.size:
        return None
    return _Collapse("search" if too_low else "passage", (first, scale.steps.size - 1))


def _low(scale: Scaler, limits: Limits) -> _Collapse | None:
    """The run ends at a scale far below the one that it held, or began with where it is 1."""
    levels = scale.levels
    if not scale.steps.size or not levels.size or scale.last >= HARMLESS:
        return None
    counts = np.flatnonzero(scale.held | (scale.last <= 0))
    highest = float(levels[counts].max(initial=-np.inf))
    if highest - scale.last < limits.depth:
        return None
    since = scale.rows[counts[levels[counts] > highest - 0.5][-1]]
    first = min(int(np.searchsorted(scale.told, since)), scale.steps.size - 1)
    kind: Kind = "depth"
    if 2.0**scale.last < limits.least_scale:
        kind = "least"
    elif scale.steps.size - first < PACE * (scale.rows[-1] - since):
        kind = "slow"
    return _Collapse(kind, (first, scale.steps.size - 1), highest)


def _scale(level: float) -> str:
    if level <= NOTHING:
        return "0"
    return f"{2.0**level:,.0f}" if level > -0.5 else f"{2.0**level:.2g}"


def _course(scale: Scaler, stretch: Stretch) -> str:
    """From which scale to which it went."""
    known = scale.scales[stretch[0] : stretch[1] + 1]
    known = known[np.isfinite(known)]
    if not known.size:
        return ""
    within = (scale.rows >= scale.told[stretch[0]]) & (scale.rows <= scale.shown[stretch[1]])
    lowest = float(min(known.min(), scale.levels[within].min(initial=np.inf)))
    if stretch[1] == scale.steps.size - 1:
        lowest = min(lowest, scale.last)
    row = int(np.searchsorted(scale.rows, scale.told[stretch[0]]))
    highest = max(float(known[0]), float(scale.levels[row - 1]) if row else -np.inf)
    if highest - lowest < 0.5:
        return f" at a scale of {_scale(highest)}"
    return f" while the scale fell from {_scale(highest)} to {_scale(lowest)}"


def _row_before(trace: Trace, scale: Scaler, step: int) -> int | None:
    """The last row of an update that was made, where skipped ones have no number of their own."""
    if trace.facts.get("step_source") != "counted rows":
        return None
    before = scale.made[: np.searchsorted(scale.made, step)]
    return int(before[-1]) if before.size else None


def _summary(trace: Trace, scale: Scaler, one: _Collapse, steps: Stretch, limits: Limits) -> str:
    row = _row_before(trace, scale, steps[0])
    count = one.stretch[1] - one.stretch[0] + 1
    course = _course(scale, one.stretch)
    where = f"from step {steps[0]:,} to {steps[1]:,}"
    if row is not None and scale.trailing == scale.steps.size - one.stretch[0]:
        where = f"after step {row:,}"
    if one.kind == "ended":
        return (
            f"Loss scale: the scaler ended the run, its scale could fall no further: {count:,}"
            f" updates skipped in a row {where}{course}."
        )
    if one.kind == "still":
        since = int(scale.told[scale.told.size - scale.trailing])
        time = f"from step {since:,} to the end, {steps[1]:,}" if row is None else where
        return (
            f"Loss scale: the scaler skipped every update {time}: {scale.trailing:,} in a row"
            f" (limit {limits.standstill}){course}{_moved(trace, scale)}."
        )
    if one.kind in ("fall", "share"):
        limit = (
            f"{limits.skips} in {CLOSE}" if one.kind == "fall" else f"{limits.share} in {WITHIN}"
        )
        return f"Loss scale: {count:,} updates skipped {where}{course} (limit {limit} updates)."
    if one.kind in ("search", "passage"):
        hope = "; a search for the first scale looks like this too, and the next updates tell"
        hope = hope if one.kind == "passage" else ", and none that was made follows"
        return f"Loss scale: all {count:,} updates {where} were skipped{course}{hope}."
    now = scale.last
    return (
        f"Loss scale: {_scale(now)} at step {int(scale.rows[-1]):,}, after {_scale(one.highest)}"
        f" until step {steps[0]:,}: {one.highest - now:.0f} halvings (limit {limits.depth:.0f}),"
        f" and {count:,} updates skipped."
    )


def _went_on(trace: Trace, scale: Scaler) -> int:
    """Losses after the first of the skipped updates up to the end, where it is the last with a
    finite one: weights that stay as they are do not bring that about. 0 where not."""
    loss = trace.series.get("loss")
    since = int(scale.told[scale.told.size - scale.trailing])
    if loss is None or since not in loss.steps or not scale.made.size:
        return 0
    after = np.isfinite(loss.values[loss.steps > since])
    at = np.isfinite(loss.values[loss.steps == since])
    return int(after.size) if at.all() and not after.any() else 0


def _moved(trace: Trace, scale: Scaler) -> str:
    """The end of the sentence where the weights moved in spite of the scaler."""
    losses = _went_on(trace, scale)
    if not losses:
        return ""
    return (
        f"; yet the loss is finite at the first of them and at none of the {losses:,} after it:"
        " the weights moved all the same, or every later batch is bad"
    )


def _treatments(trace: Trace, scale: Scaler, one: _Collapse, since: int) -> tuple[Treatment, ...]:
    if one.kind == "passage":
        return (READ_ON,)
    row = _row_before(trace, scale, since)
    usual = remedies(since, trace.facts.get("compute_dtype"), _growth(trace, since), row)
    heeds = one.kind == "still" and _went_on(trace, scale)
    return (HEEDED, *usual) if heeds else usual


def _evidence(scale: Scaler, one: _Collapse, since: int, limits: Limits) -> tuple[Evidence, ...]:
    channel = "loss_scale" if scale.rows.size else "step_skipped"
    what = f"most updates skipped within {WITHIN}, of {one.stretch[1] - one.stretch[0] + 1:,} since"
    most = most_within(scale, one.stretch, WITHIN)
    evidence = [Evidence(channel, f"{what} step {since:,}", most, limits.share, "updates")]
    if scale.levels.size:
        held = float(scale.levels[scale.held].max(initial=-np.inf))
        what, limit = "newest scale", 1.0
        if np.isfinite(held):
            what += f"; the highest that was held is {_scale(held)}"
            limit = 2.0 ** min(held - limits.depth, HARMLESS)
        last = 2.0**scale.last
        evidence.append(Evidence("loss_scale", what, last, limit, "times"))
    return tuple(evidence)


def _growth(trace: Trace, step: int) -> float:
    """How many times the norm just before that step is the usual one; 1 where it is not known."""
    if "grad_norm" not in trace.series:
        return 1.0
    norm = trace.series["grad_norm"]
    known = norm.values[(norm.steps < step) & np.isfinite(norm.values) & (norm.values > 0)]
    if known.size < 4 * LATELY:
        return 1.0
    return min(float(np.median(known[-LATELY:]) / np.median(known)), 1e9)


def _run(broken_at: int) -> Trace:
    """400 updates of a scaler at 2 to the 16; from `broken_at` on every gradient is NaN."""
    since = np.maximum(np.arange(1, 401) - broken_at, 0)
    skipped = np.arange(broken_at, 401)
    return make_trace(
        loss=falling_loss(),
        loss_scale=2.0 ** np.maximum(16 - since, 0),
        step_skipped=np.ones(skipped.size),
        steps={"step_skipped": skipped},
    )


RULE = rule.Rule(
    name="loss-scale-collapse",
    needs=("loss_scale|step_skipped",),
    uses=(*TELLS_OF_UPDATES, "compute_dtype", "step_source"),
    explains=("early-plateau",),
    check=check,
    limits=Limits(),
    sick=lambda: _run(301),
    healthy=lambda: _run(400),
    doc=__doc__ or "",
)
