"""The loss makes no progress while it should.

## What it finds
The loss is at chance, the logarithm of the number of classes or of the vocabulary, or began there
and was never below it, or fell there within its first rows and learned nothing since; where the
number of classes is told, also a restless loss whose later half is no better than that. It is flat
from the start. The learning rate was spent while the loss still fell, and the fall stopped there.
Most weights stand still, and the loss with them. Each is a warning from 100 rows or 8 epochs on, a
note below. Two cases that the loss cannot decide are notes: it left the course that it was on, so
that most of the further fall that this course promised never came; or it is flat since a fast fall
in the first half of the run, converged or stalled. From 8 rows on, a handful of losses is judged by
its range alone, the step of the printed numbers included.
## Why it matters
Each further step costs as much as one that learns.
## What to do
Train on ten batches until their loss is near 0: a model that cannot do that has broken labels,
frozen or dead layers, or no rate. Compare a run with another rate. Where the rate is spent, raise
it, and let the next schedule end with the run. Another beta2 is not proposed for a plateau. What
the log lacks and would decide the rest next time is named.
## When it is fine
The loss has converged: to its noise, or to near zero, where weights may rest. The tail of a cosine.
A plateau that heals: what falls again before the end of the log is judged there, and is silent.
Two halves of a discriminator's loss that add up to the logarithm of 4. Four cases are notes: a loss
that is surely below chance, if barely; a rate that was spent when next to nothing was left of the
first loss; a loss beside which the evaluation loss or a task metric still improves; and one that is
flat in a log that begins in mid-run, unless it stands at chance. A rate that still warms up, and
losses of rewards, adversaries and diffusion are not judged.
## Told apart from
`upward-drift`: the loss rises again. `learning-rate-spent`, `update-lost-to-rounding` and
`second-moment-saturated`: why it stands still.
"""

from dataclasses import dataclass, replace

import numpy as np

from optdoctor import rule
from optdoctor.curves import flatness
from optdoctor.curves.chance import BETTER, Chance, at_chance, nearest, never_better
from optdoctor.curves.flatness import late_fall, loss_near
from optdoctor.curves.level import Curve, Floats
from optdoctor.curves.masked import FILTERED_BY, loss_curve
from optdoctor.curves.rates import rates
from optdoctor.curves.rise import gravest
from optdoctor.curves.shortfall import ROSE, shortfall, spent
from optdoctor.curves.stillness import stands_still, travel
from optdoctor.findings import Abstain, Evidence, Finding, Severity
from optdoctor.knowledge import plateau_remedies as remedies
from optdoctor.knowledge.losses import NOT_FALLING, RESCALED, SUM, called
from optdoctor.knowledge.progress import beside, had_time
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

FEW = 20
"""Rows below which only the range of the losses is judged."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 8
    """Finite losses; below 30 only their range is judged."""
    low_rate: float = 0.15
    """Share of its peak below which a learning rate is spent."""
    spent_share: float = 0.6
    """Least share of the rows with a spent rate; schedules that fit their run have less."""
    late_fall: float = 0.06
    """Largest fall in the last half of the run, in the loss's logarithm, that is no progress."""
    unpaid: float = 0.33
    """Largest share of the expected further fall that came after the rate was spent; expected is
    as much in each doubling of the steps as in the last one before."""
    flat: float = 0.02
    """Largest fall from the first tenth on, in the loss's logarithm, that is no learning."""
    hardly: float = 0.08
    """The same where no fall at all can be told from the noise: a note; 0.6 of it below 40 rows."""
    chance: float = 0.005
    """Largest relative distance from the logarithm of the number of classes that is chance."""
    still: float = 0.7
    """Share of weights that do not move from which the run stands still."""
    travel: float = 0.003
    """Sum of relative updates over the last half of the run below which the weights have not
    moved."""
    shortfall: float = 1.2
    """Least margin by which the loss stayed behind its own course; at 1 each condition of
    `curves/shortfall.py` just holds. Of 1056 views of the healthy development families 1 % reach
    it, all but one of them flat tails."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    kind = trace.facts.get("loss_kind")
    if kind in NOT_FALLING:
        return Abstain(f"{called(str(kind))} need not fall")
    if trace.facts.get("loss_form") == SUM:
        return Abstain("the log shows sums of losses, over stretches that may differ")
    line = loss_curve(trace)
    if line is None or line.level.size < limits.rows:
        return Abstain(f"too few finite losses, needs {limits.rows}")
    rate = rates(trace, line)
    if rate is not None and rate[-1] >= max(rate.max(), 1.5 * rate[rate.size // 2]):
        return Abstain("the learning rate still rises")
    if line.level.size < FEW:
        finding = _few(trace, line, limits)
    elif flatness.is_coarse(line) or flatness.rise(line) > ROSE or gravest(line) is not None:
        finding = _never_better(trace, line)  # what else rises is told as that
    else:
        finding = (
            _spent(line, rate, limits)
            or _at_chance(trace, line, limits)
            or _standing_still(trace, line, limits)
            or _flat(trace, line, limits)
            or _never_better(trace, line)
            or _off_course(trace, line, rate, limits)
            or _flat_tail(trace, line, rate, limits)
        )
    if finding is None:
        return []
    better, evidence = beside(trace, *finding.steps)
    finding = replace(finding, evidence=(*finding.evidence, *evidence))
    if better:
        summary = f"{finding.summary.removesuffix('.')}; yet {better}."
        finding = replace(finding, summary=summary, severity=Severity.NOTE)
    return [finding]


def _few(trace: Trace, line: Curve, limits: Limits) -> Finding | None:
    """A handful of losses that all lie within the smallest range."""
    found = flatness.few(line.losses)
    if found is None or found.spread >= limits.flat:
        return None
    begins, steps = flatness.begins(line), (int(line.steps[0]), int(line.steps[-1]))
    told, unit = trace.facts.get("num_classes"), _unit(trace)
    close = limits.chance if told or begins else BETTER
    classes, known, name, chance = nearest(found.level, told, unit or "nats", close)
    learned_nothing = begins and found.order > flatness.NO_ORDER
    where = "flat from the start" if begins else "flat, converged or stalled"
    if unit and classes:
        learned_nothing = found.spread < limits.chance
        guess = "" if known else ", if that is their number"
        where = f"at chance among {classes:,} classes{guess}, {name} = {chance:.5g}"
    return Finding(
        _gravity(trace, line) if learned_nothing else Severity.NOTE,
        f"Plateau: the loss is {where}: all {line.losses.size} losses from step {steps[0]} to step"
        f" {steps[1]} lie between {found.lowest:.5g} and {found.highest:.5g}"
        f" (limit {100 * limits.flat:.2g} %).",
        steps,
        (_percent("loss", "range of all losses", found.spread, limits.flat),),
        (remedies.nothing_learned if learned_nothing else remedies.undecided)(trace),
    )


def _gravity(trace: Trace, line: Curve) -> Severity:
    return Severity.WARN if had_time(trace, line) else Severity.NOTE


def _unit(trace: Trace) -> str | None:
    """The unit of a loss that can be compared with a logarithm."""
    unit = str(trace.facts.get("loss_base") or "nats")
    rescaled = trace.facts.get("loss_form") in RESCALED
    return None if rescaled or unit not in ("nats", "bits") else unit


def _spent(line: Curve, rate: Floats | None, limits: Limits) -> Finding | None:
    """A rate spent long before the end, while the loss still fell."""
    found = None if rate is None else spent(line, rate, limits.low_rate)
    late = late_fall(line, line.blocks.size // 2)
    if rate is None or found is None or found.share < limits.spent_share:
        return None
    left = shortfall(line)
    if found.falling and found.came <= limits.unpaid and late < limits.late_fall:
        what = "of the fall it was on course for came after"
        proof = _percent("loss", what, max(found.came, 0), limits.unpaid)
    elif left is not None and left.margin >= limits.shortfall and left.begins(line, found.row):
        proof = Evidence("loss", "stop against its course", left.margin, limits.shortfall, "1")
    else:
        return None
    low, since = f"{100 * limits.low_rate:.2g} % of its peak", int(line.steps[found.still])
    what = f"rows at the end with a rate below {low}"
    return Finding(
        Severity.NOTE if flatness.is_solved(line) else Severity.WARN,
        f"Plateau: progress stopped with the learning rate: since step {since} the loss stays near"
        f" {loss_near(line, -1):.4g}, and for the last {100 * found.share:.0f} % of the rows (limit"
        f" {100 * limits.spent_share:.0f} %) the rate is below {low}.",
        (since, int(line.steps[-1])),
        (
            _percent("lr", what, found.share, limits.spent_share),
            _percent("loss", "fall in the last half, at most", late, limits.late_fall),
            proof,
        ),
        remedies.another_schedule(line, rate, found),
    )


def _at_chance(trace: Trace, line: Curve, limits: Limits) -> Finding | None:
    """A loss that stands at the logarithm of the number of classes, or was never below it."""
    told, unit = trace.facts.get("num_classes"), _unit(trace)
    close = limits.chance if told or flatness.begins(line) else BETTER
    found = at_chance(line, told, unit, close, limits.flat) if unit else None
    if found is None:
        return None
    better = "barely" if found.barely else "no"
    guess = "" if found.told else ", if that is their number"
    if found.fell:
        return _fell_to_chance(trace, line, found, guess, limits)
    return Finding(
        Severity.NOTE if found.barely else _gravity(trace, line),
        f"Plateau: the loss is {found.level:.4g} in the last half and began at {found.start:.4g},"
        f" {better} better than chance among {found.classes:,} classes{guess}: {found.name} ="
        f" {found.loss:.4g} (limit {100 * close:.2g} %).",
        (int(line.steps[found.row]), int(line.steps[-1])),
        (_percent("loss", found.what, found.share, close),),
        remedies.nothing_learned(trace),
    )


def _fell_to_chance(
    trace: Trace, line: Curve, found: Chance, guess: str, limits: Limits
) -> Finding:
    """A loss that fell to chance in its first rows, as of a net that dies, and stands there."""
    close = limits.chance if found.told else BETTER
    better = "hardly anything" if found.barely else "nothing"
    is_long = line.level.size >= flatness.LEAST_LEARNING and not found.barely
    rows = f"{found.fell} rows" if found.fell > 1 else "row"
    return Finding(
        Severity.WARN if is_long else Severity.NOTE,
        f"Plateau: the loss fell from {line.losses[:3].max():.4g} to {found.level:.4g} within the"
        f" first {rows} and has learned {better} since: that is chance among {found.classes:,}"
        f" classes{guess}, {found.name} = {found.loss:.4g} (limit {100 * close:.2g} %).",
        (int(line.steps[found.row]), int(line.steps[-1])),
        (_percent("loss", found.what, found.share, close),),
        remedies.nothing_learned(trace),
    )


def _never_better(trace: Trace, line: Curve) -> Finding | None:
    """A loss that swings about chance, or above it, to the end."""
    unit = _unit(trace)
    found = never_better(line, trace.facts.get("num_classes"), unit) if unit else None
    if found is None:
        return None
    level, chance, row = found
    first, last = int(line.steps[row]), int(line.steps[-1])
    return Finding(
        _gravity(trace, line),
        f"Plateau: the loss is {level:.4g} in the last half, where a guess among the classes has"
        f" {chance:.4g} (limit): the run knows nothing after {last:,} steps.",
        (first, last),
        (Evidence("num_classes", "median loss of the last half, and chance", level, chance, "1"),),
        remedies.nothing_learned(trace),
    )


def _standing_still(trace: Trace, line: Curve, limits: Limits) -> Finding | None:
    """A loss without progress beside weights that do not move."""
    late = late_fall(line, line.blocks.size // 2)
    first, last = int(line.steps[line.steps.size // 2]), int(line.steps[-1])
    if flatness.is_solved(line) or flatness.drops_at_the_end(line, limits.flat):
        return None
    found, most = stands_still(trace, limits.still, first), limits.late_fall
    moved = travel(trace, first, last)
    drifts = moved >= limits.travel
    if found is not None:
        first = max(found.first, int(line.steps[0]))
        said = f"since step {first}, {100 * found.share:.3g} % {found.said}"
        what, share = f"{found.said}, median since step {first}", found.share
        proof = _percent(found.channel, what, share, limits.still)
    elif not drifts:
        most = limits.flat
        said = f"all its updates add up to {100 * moved:.2g} % of the weights at most"
        what = "sum of the updates of the last half, relative to the weights, at most"
        proof = _percent("update_ratio", what, moved, limits.travel)
    if late >= most or (found is None and drifts):
        return None
    return Finding(
        Severity.WARN,
        f"Plateau: the loss {_fell(late)} in the last half of the run, near"
        f" {loss_near(line, -1):.4g} (limit {100 * most:.2g} %), and {said}"
        f" (limit {proof.limit:.2g} %).",
        (first, last),
        (proof, _percent("loss", "fall in the last half, at most", late, most)),
        remedies.nothing_learned(trace),
    )


def _flat(trace: Trace, line: Curve, limits: Limits) -> Finding | None:
    """A loss that is flat from its first row."""
    found, limit = flatness.from_the_start(line), limits.flat
    is_flat = found.upper < limits.flat
    if not is_flat:
        limit = limits.hardly * (0.6 if line.level.size < 40 else 1.0)
        if not flatness.hardly_falls(line, found, limit):
            return None
    begins = flatness.begins(line)
    first, tenth, last = (int(line.steps[row]) for row in (0, line.steps.size // 10, -1))
    known = is_flat and begins and not found.declines
    where = "is flat from the start" if is_flat else "shows no fall beyond its noise"
    if not begins:
        where = f"is flat in this log, which begins at step {first}"
    return Finding(
        _gravity(trace, line) if known else Severity.NOTE,
        f"Plateau: the loss {where}: near {loss_near(line, -1):.4g} it"
        f" {_fell(found.upper)} from step {tenth} to step {last} (limit {100 * limit:.2g} %).",
        (tenth, last),
        (_percent("loss", "fall from the first tenth on, at most", found.upper, limit),),
        (remedies.nothing_learned if known else remedies.undecided)(trace),
    )


def _off_course(trace: Trace, line: Curve, rate: Floats | None, limits: Limits) -> Finding | None:
    """A loss that left its own course: a note, since it may have converged there."""
    found = shortfall(line)
    if found is None or found.margin < limits.shortfall:
        return None
    if flatness.drops_at_the_end(line, limits.flat):
        return None
    since, last = int(line.block_ends[found.block]), int(line.steps[-1])
    known = ""
    if rate is not None:
        at = rate[np.searchsorted(line.steps, since)] / rate.max()
        known = f", with the learning rate at {100 * at:.3g} % of its peak"
    return Finding(
        Severity.NOTE,
        f"Plateau: the loss left its course at step {since}{known}, and has stayed near"
        f" {loss_near(line, -1):.4g} since, converged or stalled: of a further fall of"
        f" {100 * found.predicted:.3g} % to step {last}, {100 * max(found.came, 0):.3g} % came"
        f" ({found.margin:.2f} times what shows a stop, limit {limits.shortfall:.2g}).",
        (since, last),
        (Evidence("loss", "stop against its course", found.margin, limits.shortfall, "1"),),
        remedies.undecided(trace),
    )


def _flat_tail(trace: Trace, line: Curve, rate: Floats | None, limits: Limits) -> Finding | None:
    """A fast fall, then at least half of the run without progress: a note."""
    tail = flatness.flat_tail(line, limits.flat / 2)
    if tail is None or tail.late >= limits.flat or flatness.is_solved(line):
        return None
    if rate is not None and np.median(rate[rate.size // 2 :]) < limits.low_rate * rate.max():
        return None
    since, last = int(line.block_steps[tail.block]), int(line.steps[-1])
    return Finding(
        Severity.NOTE,
        f"Plateau: after a fall from {loss_near(line, 0):.4g} the loss is flat at"
        f" {loss_near(line, -1):.4g} since step {since}: it {_fell(tail.late)} from there to step"
        f" {last} (limit {100 * limits.flat:.2g} %), converged or stalled, which the loss alone"
        " does not tell.",
        (since, last),
        (_percent("loss", "fall since then, at most", tail.late, limits.flat),),
        remedies.undecided(trace),
    )


def _fell(upper: float) -> str:
    return f"fell by at most {100 * upper:.2g} %" if upper > 0 else "did not fall"


def _percent(channel: str, what: str, share: float, limit: float) -> Evidence:
    return Evidence(channel, what, 100 * share, 100 * limit, "%")


def _sick() -> Trace:
    """The rate falls a hundredfold at step 121 of 400, and the loss with it stops."""
    loss = falling_loss()
    stop = np.arange(400) >= 120
    loss[stop] *= loss[110:120].mean() / falling_loss(noise=0)[stop]
    return make_trace(loss=loss, lr=np.where(stop, 1e-5, 1e-3))


RULE = rule.Rule(
    name="early-plateau",
    needs=("loss",),
    uses=(
        *("lr", "grad_norm", "eval_loss", "metric:*", "metric_direction:*"),
        *("num_classes", "loss_kind", "loss_base", "loss_form", "epoch", "step_source"),
        *("update_unchanged", "moment2_saturated", "update_ratio", "param_dtype"),
        *FILTERED_BY,
    ),
    onset="estimated",
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss(), lr=np.linspace(1e-3, 1e-5, 400)),
    doc=__doc__ or "",
)
