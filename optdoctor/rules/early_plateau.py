"""The loss makes no progress while it should.

## What it finds
Four cases that the loss and what stands beside it can prove, and one that it cannot:
the learning rate was spent while the loss still fell, and the fall stopped there; the loss is at
chance, the logarithm of the number of classes, or began there and was never below it; most weights
stand still, and the loss with them; the loss is flat from the start. Where a fast fall ends in the
first half of the run, and from there on the loss stays at its last level to 1 % and its noise, that
is a note: converged or stalled is not decidable from the loss alone. A loss that creeps on by more
is not noted.
## Why it matters
Each further step costs as much as one that learns.
## What to do
Train on ten batches until their loss is near 0: a model that cannot do that has broken labels,
frozen or dead layers, or no rate. Compare a run with another rate. Where the rate is spent, raise
it, and let the next schedule end with the run. Another beta2 is not proposed for a plateau.
## When it is fine
The loss has converged: to its noise, or to near zero, where weights may rest. The tail of a cosine.
Two halves of a discriminator's loss that add up to the logarithm of 4. A loss that is surely
below chance, if barely, is a note. A shelf before a late drop looks the same until the drop comes.
Nothing learned in fewer than 100 rows is a note. A rate that still warms up, a log that begins in
mid-run, and losses of rewards, adversaries and diffusion are not judged.
## Told apart from
`upward-drift`: the loss rises again. `learning-rate-spent`, `update-lost-to-rounding` and
`second-moment-saturated`: why it stands still.
"""

import math
from dataclasses import dataclass

import numpy as np

from optdoctor import rule
from optdoctor.curves.level import FIRST_JUMP, Curve, Floats
from optdoctor.curves.masked import FILTERED_BY, loss_curve
from optdoctor.curves.rates import rates
from optdoctor.findings import Abstain, Evidence, Finding, Safety, Severity, Treatment, When
from optdoctor.knowledge.losses import NOT_FALLING, RESCALED, SUM
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

USUAL_CLASSES = (2, 3, 10, 100, 1000)
"""Numbers of classes that are guessed where nobody told the number. The logarithm of 4 is what the
two halves of a discriminator's loss add up to in a good run."""
BETTER = 0.001
"""Share below chance from which a loss that is surely below it is better than chance, if barely."""
COARSE = 0.01
"""Step of the printed loss, relative to it, beyond which flatness cannot be seen."""
RISE = 0.1
"""Rise over the best level, in the loss's logarithm, from which it is no plateau."""
LEAST_BEFORE = 12
"""Rows before the rate was spent in which the fall can be measured."""
LEAST_FALL = 0.02
"""Fall in the last doubling of the steps, in the loss's logarithm, that is one."""
NEARLY_NOTHING = 0.03
"""Share of its peak down to which a rate still moves something: the plateau begins below it."""
LEAST_LEARNING = 100
"""Rows below which a run that has learned nothing yet is a note."""
NO_GAIN = 1.15
"""Most that a run that ends at chance began above it."""
SIGNIFICANT = 3.0
"""Standard errors from which even a small fall is one."""
UNSEEN = 6e-8
"""Relative update that float32 does not see."""
STILL = {
    "update_unchanged": "of the weights with a gradient do not move",
    "moment2_saturated": "of the second moments of one tensor are saturated",
    "update_ratio": "of the weights get updates that float32 does not see",
}
"""What each channel says of weights that stand still."""
MOSTLY = 0.5
"""Share of still weights beyond which the number format is what the treatment changes."""
HALF = ("bfloat16", "float16")
"""Number formats in which updates are lost that are none too small."""
CONVERGED = 0.025
"""Share of the first loss below which a flat tail, or weights at rest, are a solved task."""
TWO_DECIMALS = 0.1
"""Loss above which two decimals are enough to see that it never changed by a tenth."""


def _do(title: str, when: When, source: str, safety: Safety = "manual") -> Treatment:
    return Treatment(title=title, when=when, safety=safety, basis="heuristic", source=source)


TEN_BATCHES = _do(
    "Train on ten batches until their loss is near 0; if it does not get there, the model, the"
    " labels or the rate are at fault",
    "check",
    "whatever can learn can learn ten batches by heart",
)
OTHER_RATE = _do(
    "Run a few hundred steps with three times the rate and with a third: if the loss falls"
    " faster, it was the rate",
    "check",
    "a comparison of two runs that differ in one number",
)
IN_FLOAT32 = _do(
    "Keep the weights and the optimizer's state in float32",
    "next",
    "the format loses what the updates would change",
)
NOTHING_LEARNED = (
    _do("Stop the run: further steps cost as much and teach nothing", "now", "the loss", "safe"),
    _do(
        "Look at the labels, the trainable layers and the rate before a restart: one does not act",
        "next",
        "the weights or the loss did not move from where they were",
    ),
    TEN_BATCHES,
    OTHER_RATE,
)


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 30
    """Three rows in each tenth of the run."""
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
    chance: float = 0.005
    """Largest relative distance from the logarithm of the number of classes that is chance."""
    still: float = 0.7
    """Share of weights that do not move from which the run stands still."""
    travel: float = 0.003
    """Sum of relative updates over the last half of the run below which the weights have not
    moved."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    kind = trace.facts.get("loss_kind")
    if kind in NOT_FALLING:
        return Abstain(f"a loss of kind {kind} need not fall")
    if trace.facts.get("loss_form") == SUM:
        return Abstain("the log shows sums of losses, over stretches that may differ")
    shape = loss_curve(trace)
    if shape is None or shape.level.size < limits.rows:
        return Abstain(f"{shape.level.size if shape else 0} finite losses, needs {limits.rows}")
    if _too_coarse(shape) or _rises(shape):
        return []
    rate = rates(trace, shape)
    if rate is not None and _warming_up(rate):
        return Abstain("the learning rate still rises")
    finding = (
        _spent(shape, rate, limits)
        or _at_chance(trace, shape, limits)
        or (None if _solved(shape) else _standing_still(trace, shape, limits))
        or _flat(trace, shape, limits)
        or _tail(shape, rate, limits)
    )
    return [finding] if finding else []


def _too_coarse(shape: Curve) -> bool:
    """Whether the losses are printed with so few digits that equal ones need not be equal.

    A loss that never changes does not show its digits: logs print two decimals or more.
    """
    middle = float(np.median(np.abs(shape.losses[shape.losses.size // 2 :])))
    if np.ptp(shape.losses) == 0 and shape.losses.size >= LEAST_LEARNING:
        return middle < TWO_DECIMALS
    places = next((d for d in range(7) if (np.round(shape.losses, d) == shape.losses).all()), None)
    return middle == 0 or (places is not None and 10.0**-places > COARSE * middle)


def _solved(shape: Curve) -> bool:
    """Whether next to nothing is left of the first loss."""
    end = float(np.median(shape.losses[-max(shape.losses.size // 6, 2) :]))
    return end < CONVERGED * float(shape.losses[0])


def _smooth(shape: Curve) -> Floats:
    return np.convolve(shape.blocks, np.ones(3) / 3, "valid")


def _rises(shape: Curve) -> bool:
    last = max(2, shape.blocks.size // 13)
    return bool(np.median(shape.blocks[-last:]) - _smooth(shape).min() > RISE)


def _fall(shape: Curve, since: int) -> tuple[float, float]:
    """(fall, its upper bound) from the first to the last third of the blocks from `since` on.

    The bound is rounded, so that what is printed was judged.
    """
    third = max((shape.blocks.size - since) // 3, 1)
    blocks = shape.blocks[since:]
    fall = float(np.median(blocks[:third]) - np.median(blocks[-third:]))
    return fall, round(fall + 2 * shape.block_error * math.sqrt(2 / third), 4)


def _warming_up(rate: Floats) -> bool:
    return bool(rate[-1] >= rate.max() and rate[-1] > 1.5 * rate[rate.size // 2])


def _spent(shape: Curve, rate: Floats | None, limits: Limits) -> Finding | None:
    """A rate spent long before the end, while the loss still fell."""
    if rate is None:
        return None
    at = int(np.flatnonzero(rate >= limits.low_rate * rate.max())[-1]) + 1
    share = (rate.size - at) / rate.size
    if round(share, 4) < limits.spent_share or at < LEAST_BEFORE:
        return None
    width = max(at // 8, 2)
    level = float(np.median(shape.level[at - 2 * width : at]))
    before = float(np.median(shape.level[at // 2 - width : at // 2 + width])) - level
    after = level - float(np.median(shape.blocks[-max(shape.blocks.size // 6, 2) :]))
    if before < max(2 * shape.noise / math.sqrt(width), LEAST_FALL):
        return None
    came = after / (before * math.log2(rate.size / at))
    late = _fall(shape, shape.blocks.size // 2)[1]
    if late >= limits.late_fall or round(came, 3) > limits.unpaid:
        return None
    nothing = np.flatnonzero(rate >= NEARLY_NOTHING * rate.max())[-1] + 1  # it still falls
    step = int(shape.steps[nothing if nothing < rate.size else at])
    low = f"{100 * limits.low_rate:.2g} % of its peak"
    again = (
        f"Set the learning rate to {rate[at // 2]:.2g}, as at step {shape.steps[at // 2]}, and take"
        " the scheduler out, or it sets the rate back"
    )
    fit = "Give the scheduler all updates of the run: its rate was spent after {:.0f} % of them"
    return Finding(
        severity=Severity.WARN,
        summary=(
            f"Plateau: the loss has stood still since step {step}, with a learning rate below {low}"
            f" for the last {100 * share:.0f} % of the rows"
            f" (limit {100 * limits.spent_share:.0f} %)."
        ),
        steps=(step, int(shape.steps[-1])),
        evidence=(
            _percent("lr", f"rows at the end with a rate below {low}", share, limits.spent_share),
            _late(late, limits.late_fall),
            _percent(
                "loss", "of the fall it was on course for came after", max(came, 0), limits.unpaid
            ),
        ),
        treatments=(
            _do(again, "now", "a rate that is spent moves nothing", "risky"),
            _do(fit.format(100 * at / rate.size), "next", "the same"),
            OTHER_RATE,
        ),
    )


def _at_chance(trace: Trace, shape: Curve, limits: Limits) -> Finding | None:
    """A loss that stands at the logarithm of the number of classes, or was never below it."""
    told, unit = trace.facts.get("num_classes"), trace.facts.get("loss_base") or "nats"
    if unit not in ("nats", "bits") or trace.facts.get("loss_form") in RESCALED:
        return None
    known = (int(told),) if type(told) is int and 2 <= told < 2**53 else ()
    half, blocks = shape.losses.size // 2, np.array_split(shape.losses, shape.blocks.size)
    level, start = float(np.median(shape.losses[half:])), float(np.median(shape.losses[:3]))
    lowest = float(min(np.median(block) for block in blocks))
    late = _fall(shape, shape.blocks.size // 2)[1]
    for classes in known or USUAL_CLASSES:
        name = f"{'log2' if unit == 'bits' else 'ln'} {classes}"
        chance = math.log(classes) / (math.log(2) if unit == "bits" else 1)
        off, below = abs(level / chance - 1), 1 - lowest / chance
        began = min(abs(float(shape.losses[0]) / chance - 1), abs(start / chance - 1))
        if start > NO_GAIN * chance or level > NO_GAIN * chance:
            continue
        error = shape.block_error / math.sqrt(shape.blocks.size / 2)
        barely = 1 - level / chance > max(BETTER, SIGNIFICANT * error)
        if round(off, 4) <= limits.chance and late < limits.flat:
            evidence = _percent("loss", f"off {name} in the last half", off, limits.chance)
        elif round(max(began, below), 4) <= limits.chance:
            evidence = _percent("loss", f"below {name} at its lowest", below, limits.chance)
        else:
            continue
        far = np.abs(np.log(np.maximum(shape.losses, 1e-300) / level)) > COARSE + 4 * shape.noise
        tenth = shape.steps.size // 10  # what holds it there had to be seen first
        first = int(shape.steps[max(tenth, min(np.flatnonzero(far).max(initial=-1) + 1, half))])
        better = "barely" if barely else "no"
        guess = "" if known else ", if that is their number"
        return Finding(
            severity=Severity.NOTE if barely else _gravity(shape),
            summary=(
                f"Plateau: the loss is {level:.4g} in the last half and began at {start:.4g},"
                f" {better} better than chance among {classes:,} classes{guess}: {name} ="
                f" {chance:.4g} (limit {100 * limits.chance:.2g} %)."
            ),
            steps=(first, int(shape.steps[-1])),
            evidence=(evidence,),
            treatments=_nothing_learned(trace),
        )
    return None


def _gravity(shape: Curve) -> Severity:
    return Severity.WARN if shape.steps.size >= LEAST_LEARNING else Severity.NOTE


def _standing_still(trace: Trace, shape: Curve, limits: Limits) -> Finding | None:
    """A loss without progress beside weights that do not move."""
    late = _fall(shape, shape.blocks.size // 2)[1]
    middle = int(shape.steps[shape.steps.size // 2])
    last = int(shape.steps[-1])
    for name, what in STILL.items():
        if name not in trace.series or late >= limits.late_fall:
            continue
        steps, share = _share_still(trace, name)
        moving = np.flatnonzero(np.round(share, 4) < limits.still)
        first = int(steps[0 if not moving.size else min(moving[-1] + 1, steps.size - 1)])
        if first > middle or (moving.size and moving[-1] == steps.size - 1):
            continue
        typical = float(np.median(share[steps >= first]))
        begun = max(first, int(shape.steps[0]))
        evidence = _percent(name, f"{what}, median since step {begun}", typical, limits.still)
        said = (
            f"since step {begun}, {100 * typical:.3g} % {what} (limit {100 * limits.still:.2g} %)"
        )
        return _still_finding(trace, (begun, last), said, evidence, late, limits.late_fall, limits)
    if "update_ratio" not in trace.series or late >= limits.flat:
        return None
    steps = trace.series["update_ratio"].steps
    ratio = _mean(np.asarray(trace.series["update_ratio"].values, np.float64), trace)
    seen = (steps >= middle) & (steps <= last) & np.isfinite(ratio)
    travel = float(ratio[seen].mean()) * (last - middle) if seen.any() else math.inf
    if round(travel, 5) >= limits.travel:
        return None
    what = "sum of the updates of the last half, relative to the weights, at most"
    evidence = _percent("update_ratio", what, travel, limits.travel)
    said = f"all its updates add up to {100 * travel:.2g} % of the weights"
    said = f"{said} at most (limit {100 * limits.travel:.2g} %)"
    return _still_finding(trace, (middle, last), said, evidence, late, limits.flat, limits)


def _still_finding(
    trace: Trace,
    steps: tuple[int, int],
    said: str,
    evidence: Evidence,
    late: float,
    limit: float,
    limits: Limits,
) -> Finding:
    return Finding(
        severity=Severity.WARN,
        summary=(
            f"Plateau: the loss {_fell(late)} in the last half of the run"
            f" (limit {100 * limit:.2g} %), and {said}."
        ),
        steps=steps,
        evidence=(evidence, _late(late, limit)),
        treatments=_nothing_learned(trace),
    )


def _nothing_learned(trace: Trace) -> tuple[Treatment, ...]:
    """What to do, which is another thing where the number format holds the weights."""
    for name in ("update_unchanged", "moment2_saturated"):
        if name in trace.series and trace.facts.get("param_dtype") in HALF:
            _, share = _share_still(trace, name)
            if share.size and np.median(share) > MOSTLY:
                return IN_FLOAT32, OTHER_RATE
    return NOTHING_LEARNED


def _mean(values: Floats, trace: Trace) -> Floats:
    """[T]: of [T, P], over all weights that were measured; NaN where none was."""
    weight = np.where(np.isfinite(values), trace.num_elements, 0.0)
    total = weight.sum(axis=1)
    mean = np.where(weight > 0, values * weight, 0).sum(axis=1) / np.maximum(total, 1)
    return np.where(total > 0, mean, np.nan)


def _share_still(trace: Trace, name: str) -> tuple[IntArray, Floats]:
    """Steps [T] and the share [T] of weights that do not move, by one channel."""
    steps, values = trace.series[name].steps, np.asarray(trace.series[name].values, np.float64)
    measured = np.isfinite(values)  # [T, P]
    if name == "moment2_saturated":  # one tensor that cannot move holds up what it is part of
        share = np.where(measured, values, 0).max(axis=1, initial=0)
    else:
        still = values < UNSEEN if name == "update_ratio" else values
        share = _mean(np.where(measured, still, np.nan), trace)
    known = np.isfinite(share) & measured.any(axis=1)
    return steps[known], share[known]


def _flat(trace: Trace, shape: Curve, limits: Limits) -> Finding | None:
    """A loss that is flat from its first row."""
    blocks, rows = shape.blocks, shape.level.size
    k = blocks.size
    first = float(np.median(blocks[: max(k // 10, 1)]))
    middle, end = blocks[int(0.4 * k) : int(0.7 * k)], blocks[-int(0.3 * k) :]
    fall = first - min(float(np.median(middle)), float(np.median(end)))
    error = shape.block_error * math.sqrt(10 / k + 1 / (0.3 * k))
    begin = shape.level
    if FIRST_JUMP * shape.losses[0] < np.median(shape.losses[:3]):  # what shot up is no fall
        begin = np.minimum(begin, begin[0])
    early = max(
        float(begin[:w].mean()) - first - 2.5 * shape.noise / math.sqrt(w)
        for w in (3, max(rows // 100, 3), max(3 * rows // 100, 3))
    )
    upper = fall + 2.2 * error + max(early, 0.0)
    if round(upper, 4) >= limits.flat:
        return None
    begun, tenth, last = (int(shape.steps[row]) for row in (0, rows // 10, -1))
    spacing = int(np.median(np.diff(shape.steps)))
    known = fall < SIGNIFICANT * error and begun <= 2 * spacing
    return Finding(
        severity=_gravity(shape) if known else Severity.NOTE,
        summary=(
            f"Plateau: the loss is flat from the start: it {_fell(upper)} from step {tenth}"
            f" to step {last} (limit {100 * limits.flat:.2g} %)."
        ),
        steps=(tenth, last),
        evidence=(_percent("loss", "fall from the first tenth on, at most", upper, limits.flat),),
        treatments=_nothing_learned(trace) if known else (TEN_BATCHES, OTHER_RATE),
    )


def _tail(shape: Curve, rate: Floats | None, limits: Limits) -> Finding | None:
    """A fast fall, then at least half of the run without progress: a note."""
    blocks, level = shape.blocks, _smooth(shape)
    if _solved(shape):
        return None
    if rate is not None and np.median(rate[rate.size // 2 :]) < limits.low_rate * rate.max():
        return None
    last = float(np.median(blocks[-max(blocks.size // 6, 2) :]))
    away = np.round(np.abs(level - last) - 2 * shape.block_error, 4)
    outside = np.flatnonzero(away > limits.flat / 2)
    kink = max(int(outside[-1]) + 1 if outside.size else 0, 2)
    before = float(blocks[kink // 4] - level[min(kink, level.size - 1)])
    late = _fall(shape, kink)[1]
    if kink > blocks.size // 2 or late >= limits.flat or before < RISE:
        return None
    since = int(shape.block_steps[kink])
    return Finding(
        severity=Severity.NOTE,
        summary=(
            f"Plateau: after a fast fall the loss is flat since step {since}: it {_fell(late)} from"
            f" there to the end (limit {100 * limits.flat:.2g} %), converged or stalled, which the"
            " loss alone does not tell."
        ),
        steps=(since, int(shape.steps[-1])),
        evidence=(_percent("loss", "fall since then, at most", late, limits.flat),),
        treatments=(TEN_BATCHES, OTHER_RATE),
    )


def _fell(upper: float) -> str:
    return f"fell by at most {100 * upper:.2g} %" if upper > 0 else "did not fall"


def _percent(channel: str, what: str, share: float, limit: float) -> Evidence:
    return Evidence(channel, what, 100 * share, 100 * limit, "%")


def _late(late: float, limit: float) -> Evidence:
    return _percent("loss", "fall in the last half, at most", late, limit)


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
        "lr",
        "grad_norm",
        "num_classes",
        "loss_kind",
        "loss_base",
        "loss_form",
        "update_unchanged",
        "moment2_saturated",
        "update_ratio",
        "param_dtype",
        *FILTERED_BY,
    ),
    onset="estimated",
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss(), lr=np.linspace(1e-3, 1e-5, 400)),
    doc=__doc__ or "",
)
