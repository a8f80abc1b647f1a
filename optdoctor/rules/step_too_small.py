"""The weights hardly move although the learning rate is up.

## What it finds
How far all planned updates together can move the weights, in parts of their own size: the measured
relative update of the middle tensor per unit of the rate, averaged over the samples, times the sum
of the rates, of which those to come count as the mean so far. It is told where that is below
`reach` while the loss stands above `standing` of its start, at a quarter of the plan or later and
at half of the peak rate or more, in the last `lasting` samples. Where no plan is known, ten times
the updates made so far are taken for it, from the hundredth on and once the rate has not risen for
half of them. It is a warning where the network is known to be new, because its first loss is about
that of a guess among the classes; else a note, since a fine-tune looks the same. Of a log it is
what the updates can move weights by at most, that begin as small as any usual start makes them.
## Why it matters
A network that starts from random weights has to move by a good part of their size before it knows
anything. If the whole plan does not get it there, the rest of the run is spent for nothing.
## What to do
Try three times the rate, for a short while first, and again if the loss falls faster for it. Look
for another cause before: a clip far below the gradients, a rate that was divided somewhere, a
gradient that does not arrive.
## When it is fine
Fine-tunes and adapters: weights that know their task already need to move little. A schedule's
warm-up or tail is not judged, nor are weights that do not move at all, nor, without a plan, a run
that was resumed.
## Told apart from
`learning-rate-spent`: the rate came down. `update-lost-to-rounding`: the update is made and lost.
`clipping-too-low`: a threshold shortens it. `frozen-weights`, `parameters-without-optimizer`,
`optimizer-of-another-model`: no update is made.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.rows import lookup
from optdoctor.curves.step_sizes import Floats, StepSizes, step_sizes
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.in_a_log import least_size, longer, steps_by_gradient, weights
from optdoctor.knowledge.losses import NOT_FALLING, called
from optdoctor.store import IntArray, Series
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Trace

Mask = NDArray[np.bool_]

BOUNDED = frozenset({"adam", "adam_mini", "adamax", "lion", "nadam", "radam", "stable_adamw"})
"""Families whose update of a weight is about one rate at most."""
FEELS = frozenset({"sgd", "asgd"})
"""Families whose step is as long as the gradient."""
LARGEST = 1e12
"""Plan above which a fact is damaged."""
QUARTER, HALF = 0.25, 0.5
"""Of the plan, after which it is judged; of the peak rate, at which steps are not small on
purpose."""
TIMES, YOUNG = 10, 100
"""Updates that are taken for the plan where none is known, over those made so far, and fewest made:
from the hundredth on healthy runs of 16 kinds whose loss stood had reached 0.1 of the weights'
size, `reach` of a plan of less than their number."""
ROWS = 5
"""Losses whose median tells where the run stands."""
GUESS = 0.2
"""By how much the first loss may differ from that of a guess, in parts of it."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 3
    """As many samples as it must last."""
    reach: float = 0.08
    """Part of their size that weights must be able to move over the whole plan: heuristic. 19
    healthy small trainings here had 0.5 or more."""
    standing: float = 0.71
    """Loss, in parts of its start, up to which the run is seen to learn: heuristic, half a
    doubling."""
    lasting: int = 3
    """Fewest samples in a row, the newest included, that it lasts: those of the last three quarters
    of a plan, where each comes when the run has grown by half."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    planned = trace.facts.get("total_steps")
    if planned is not None and not (isinstance(planned, int | float) and 0 < planned < LARGEST):
        return Abstain(f"a plan of {planned!s:.40} updates says nothing")
    if planned is None and trace.has("resumed_from"):
        return Abstain("no plan is known, and what came before the run was resumed is not either")
    kind = trace.facts.get("loss_kind")
    if kind in NOT_FALLING:
        return Abstain(f"{called(str(kind))} need not fall in a good run")
    sizes = step_sizes(trace)
    rates = trace.series["lr"]
    at = lookup(rates, sizes.steps)
    sizes, at = sizes.part(at > 0), at[at > 0]
    if not sizes.steps.size:
        return []
    stands = _stands(trace.series["loss"], sizes.steps)
    age = sizes.steps - int(rates.starts[0]) + 1
    plan = np.asarray(TIMES * age if planned is None else np.full(len(age), planned), np.float64)
    reach = _reach(sizes, at, rates, plan)
    old = (age >= YOUNG) & _rested(age, at) if planned is None else age >= QUARTER * plan
    judged = old & (at >= HALF * np.maximum.accumulate(at))
    # Where nothing moves at all no step is short: nothing was asked of the weights, or it was lost.
    short = reach < limits.reach
    ill = judged & (sizes.ratio > 0) & short & (stands > limits.standing)
    stretch = _newest(ill, judged)
    if len(stretch) < limits.lasting:
        return []
    end = int(stretch[-1])
    since = _since(short[: end + 1])  # steps were as small before they were judged
    first, last = int(sizes.steps[since]), int(sizes.steps[end])
    now, loss = float(reach[end]), float(stands[end])
    new = _is_new(trace)
    updates = f"{TIMES} times the {age[end]:,} updates made until step {last:,}"
    if planned is not None:
        updates = f"All {planned:,.0f} planned updates together"
    return [
        Finding(
            severity=Severity.WARN if new else Severity.NOTE,
            summary=(
                f"{updates} would move the weights by {100 * now:.2g} % of their size (limit"
                f" {100 * limits.reach:.2g} %), and the loss stands at {100 * loss:.3g} % of its"
                " start."
            ),
            steps=(first, last),
            evidence=(
                Evidence(
                    "update_rms",
                    "what so many updates move the weights by, in a straight line",
                    100 * now,
                    100 * limits.reach,
                    "%",
                ),
                _standing(last, loss, limits),
            ),
            treatments=_treatments(rates),
            awaits_symptom=not new,
        )
    ]


def check_log(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    """By what all updates together can move the weights at most: by one rate each under Adam and
    Lion, by rate times gradient under SGD, in one direction all the time."""
    planned, number = trace.facts["total_steps"], weights(trace)
    if not isinstance(planned, int | float) or not 0 < planned < LARGEST or number is None:
        return []
    if trace.facts.get("loss_kind") in NOT_FALLING:
        return []
    known = _most(trace, number)
    if known is None or not known[0].size:
        return []
    steps, moved = known
    rates = lookup(trace.series["lr"], steps)
    stands = _stands(trace.series["loss"], steps)
    age = steps - int(steps[0]) + 1
    count = np.arange(1, len(steps) + 1)
    reach = np.cumsum(moved) / count * planned
    judged = (age >= QUARTER * planned) & (rates >= HALF * np.maximum.accumulate(rates))
    ill = judged & (reach < limits.reach) & (stands > limits.standing)
    stretch = _newest(ill, judged)
    if len(stretch) < limits.lasting:
        return []
    first, last = int(steps[stretch[0]]), int(steps[stretch[-1]])
    most, loss = float(reach[stretch[-1]]), float(stands[stretch[-1]])
    new = _is_new(trace)
    return [
        Finding(
            severity=Severity.WARN if new else Severity.NOTE,
            summary=(
                f"All {planned:,.0f} planned updates together can move the weights by"
                f" {100 * most:.2g} % of their size at most (limit {100 * limits.reach:.2g} %), and"
                f" the loss stands at {100 * loss:.3g} % of its start."
            ),
            steps=(first, last),
            evidence=(
                Evidence(
                    "lr",
                    "what the planned updates can move the weights by, in a straight line",
                    100 * most,
                    100 * limits.reach,
                    "%",
                ),
                _standing(last, loss, limits),
            ),
            treatments=_treatments(trace.series["lr"]),
            awaits_symptom=not new,
        )
    ]


def _most(trace: Trace, number: int) -> tuple[IntArray, Floats] | None:
    """Steps, and how far an update can move the weights at most, in parts of their size; None where
    the optimizer bounds no update."""
    family, size = trace.facts["optimizer_family"], least_size(number)
    if family in BOUNDED:
        rates = trace.series["lr"]
        kept = np.isfinite(rates.values) & (rates.values >= 0)
        return rates.steps[kept], np.asarray(rates.values[kept], np.float64) / size
    if family not in FEELS or "grad_norm" not in trace.series:
        return None
    known = steps_by_gradient(trace)
    length = known.rates * known.norms * longer(trace.facts.get("momentum"))
    return known.steps, length / (size * number**0.5)


def _newest(ill: Mask, judged: Mask) -> NDArray[np.intp]:
    """The ill rows after the last that was judged and is not."""
    sound = np.flatnonzero(judged & ~ill)
    return np.flatnonzero(ill & (np.arange(len(ill)) > (sound[-1] if sound.size else -1)))


def _standing(step: int, loss: float, limits: Limits) -> Evidence:
    what = f"the loss at step {step} over that of the first rows"
    return Evidence("loss", what, loss, limits.standing, "times")


def _since(small: Mask) -> int:
    """The first row after the last that was not small."""
    sound = np.flatnonzero(~small)
    return int(sound[-1]) + 1 if sound.size else 0


def _rested(age: IntArray, at: Floats) -> Mask:
    """[T]: whether the rate was as high when the run was half as old: no warm-up goes on."""
    half = np.maximum(np.searchsorted(age, age / 2, side="right") - 1, 0)
    return np.asarray(at <= np.maximum.accumulate(at)[half], bool)


def _reach(sizes: StepSizes, at: Floats, rates: Series, planned: Floats) -> Floats:
    """[T]: the relative update per unit of the rate, its mean over the samples so far, times the
    sum of all planned rates, [T], of which those to come are taken for the mean so far."""
    count = np.arange(1, len(rates.values) + 1)
    means = np.cumsum(np.nan_to_num(rates.values)) / count
    mean = means[np.searchsorted(rates.steps, sizes.steps)]
    pace = _median_per_row(sizes) / at
    reach: Floats = np.cumsum(pace) / count[: len(pace)] * mean * planned
    return reach


def _median_per_row(sizes: StepSizes) -> Floats:
    """[T]: update over weights of the tensor in the middle."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = sizes.update / sizes.weight
    ratios[~np.isfinite(ratios)] = np.nan
    known = np.isfinite(ratios).any(axis=1)
    middle = np.full(len(ratios), np.inf)
    middle[known] = np.nanmedian(ratios[known], axis=1)
    return middle


def _stands(loss: Series, steps: NDArray[np.int64]) -> Floats:
    """[len(steps)]: the loss over that of the first rows; NaN where that tells nothing."""
    known = np.isfinite(loss.values)
    values, at = loss.values[known], loss.steps[known]
    start = float(np.median(values[:ROWS])) if values.size >= 2 * ROWS else 0.0
    ends = np.searchsorted(at, steps, side="right")
    now = [float(np.median(values[e - ROWS : e])) if e >= ROWS else np.nan for e in ends]
    return np.array(now) / start if start > 0 else np.full(len(steps), np.nan)


def _is_new(trace: Trace) -> bool:
    """Whether the first loss is about that of a guess among the classes."""
    classes, base = trace.facts.get("num_classes"), trace.facts.get("loss_base")
    if not isinstance(classes, int | float) or not 1 < classes < LARGEST or base != "nats":
        return False
    values = trace.series["loss"].values
    first = float(np.median(values[np.isfinite(values)][:ROWS]))
    return bool(abs(first - np.log(classes)) <= GUESS * np.log(classes))


def _treatments(rates: Series) -> tuple[Treatment, ...]:
    peak = float(np.nanmax(rates.high))
    return (
        Treatment(
            title="Try three times the learning rate for a short while, and again if the loss falls"
            " faster for it",
            changes={"lr": (peak, float(f"{3 * peak:.3g}"))} if np.isfinite(peak) else {},
            when="next",
            safety="risky",
            basis="heuristic",
            source="an update is the rate times a direction; a factor of three is a coarse search",
        ),
    )


def _run(pace: float) -> Trace:
    """Two hundred of four hundred planned updates, each of which moves the weights by that part,
    but the first at a rate of 0, which do not move them."""
    rates = np.full(200, 1e-3)
    rates[:20] = 0.0
    tensors = small_gpt()
    steps = np.arange(1, 200, 4)
    weights = np.full((len(steps), len(tensors)), 0.5)
    return make_trace(
        {
            "loss": falling_loss(200, end=2.2 if pace > 1e-3 else 4.5),
            "lr": rates,
            "update_rms": weights * pace * (rates[steps - 1, None] > 0),
            "param_rms": weights,
            "total_steps": 400,
            "num_classes": 100,
            "loss_base": "nats",
        },
        tensors=tensors,
        steps=dict.fromkeys(("update_rms", "param_rms"), steps),
    )


RULE = rule.Rule(
    name="step-too-small",
    needs=("update_rms", "param_rms", "lr", "loss"),
    uses=(
        *("grad_norm", "loss_base", "loss_kind", "max_grad_norm", "momentum", "num_classes"),
        *("resumed_from", "total_steps"),
    ),
    explains=("early-plateau",),
    check=check,
    on_log=rule.LogForm(
        ("lr", "loss", "num_parameters", "optimizer_family", "total_steps"), check_log
    ),
    limits=Limits(),
    sick=lambda: _run(1e-4),
    healthy=lambda: _run(3e-3),
    doc=__doc__ or "",
)
