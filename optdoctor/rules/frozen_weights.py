"""Weights have a gradient and a rate, and never move.

## What it finds
Tensors in float32 or finer that an optimizer holds and trains, whose gradient is not 0, whose rate
is above 0 and at least `near_peak` of its highest so far, and whose measured update is exactly 0
in every element, while other tensors moved in the same update. Counted by elements: it fires above
`share` of the trained weights in more than `passing` samples in a row. A warning where the rule of
the optimizer is known and asks for a change of these weights (`update_realized` is 0); where it is
not, a note, which a symptom of the loss makes a warning.
## Why it matters
They cost a forward pass, a backward pass and the optimizer's state, and learn nothing. What the
rest of the network learns bends around weights that stay what they were at the start.
## What to do
Look for what puts the weights back within the step: a hook of the optimizer, a mask, an average
that is copied over them, a step of one's own that leaves a group out. Freeze them by setting
`requires_grad` to False where that is meant; it saves their gradient and their state.
## When it is fine
Groups whose rate is 0 and tensors that are not trained are not counted. Nor are tensors of which
only a part is measured, updates so small that float32 itself swallows them, the end of a schedule,
and updates in which nothing moved at all: an optimizer may gather several before it makes one.
## Told apart from
`update-lost-to-rounding`: weights in 16 bits, of which most stand still and some move.
`gradient-never-arrives`: the weights have no gradient.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.rows import spans
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.precision import FORMATS
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Trace

FINE = frozenset({"float32", "float64"})
MARGIN = 64.0
"""Times half the distance between neighbouring weights that an update must have been asked to be:
then no more than a few of many elements round to nothing."""

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 3
    """As many samples as it must last."""
    share: float = 0.02
    """Largest share of the trained weights that stands still in a healthy run: heuristic."""
    passing: int = 2
    """Most samples in a row above `share` that pass."""
    near_peak: float = 0.5
    """Share of its highest rate so far below which a tensor is not judged: the start and the end of
    a schedule make updates that float32 may not hold."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    if trace.facts.get("optimizer_family") == "lbfgs":
        return Abstain("LBFGS stands still where its search along a line finds nothing better")
    still, moved = _still(trace, limits)
    sizes = trace.num_elements.astype(np.float64)
    measured = (still | moved) @ sizes
    scale = moved.any(axis=1) / np.maximum(measured, 1)  # [T]
    asked = still & (_values(trace, "update_realized") == 0)
    sure = bool(_lasting((asked @ sizes) * scale, limits))
    share = ((asked if sure else still) @ sizes) * scale
    stretches = _lasting(share, limits)
    if not stretches:
        return []
    steps = trace.series["update_rms"].steps
    (first, end), last = stretches[0], stretches[-1][1]
    least = float(max(share[a : b + 1].min() for a, b in stretches))
    names = [trace.tensors[i].name for i in np.flatnonzero(still[first : end + 1].any(axis=0))]
    return [
        Finding(
            severity=Severity.WARN if sure else Severity.NOTE,
            awaits_symptom=not sure,
            summary=(
                f"{100 * least:.2g} % of the trained weights (limit {100 * limits.share:g} %) did"
                f" not move at all from step {steps[first]} to {steps[last]}, though they had a"
                " gradient and a rate."
            ),
            steps=(int(steps[first]), int(steps[last])),
            tensors=tuple(sorted(names, key=lambda name: -_size(trace, name))),
            evidence=(
                Evidence(
                    "update_rms",
                    "trained weights with a gradient and an update of exactly 0, at least",
                    100 * least,
                    100 * limits.share,
                    "%",
                ),
            ),
            treatments=(
                Treatment(
                    title="Look for what puts these weights back within the step: a hook of the"
                    " optimizer, a mask, a copy of an average",
                    when="check",
                    safety="safe",
                    basis="heuristic",
                    source="the optimizer holds them, and their gradient and rate are not 0",
                ),
                Treatment(
                    title="If they are frozen on purpose: requires_grad_(False), which also saves"
                    " their gradients and state",
                    safety="manual",
                    basis="heuristic",
                    source="a tensor that is not trained needs neither",
                ),
            ),
        )
    ]


def _lasting(share: Floats, limits: Limits) -> list[tuple[int, int]]:
    return [(a, b) for a, b in spans(share > limits.share) if b - a + 1 > limits.passing]


def _size(trace: Trace, name: str) -> int:
    return next(tensor.num_elements for tensor in trace.tensors if tensor.name == name)


def _still(trace: Trace, limits: Limits) -> tuple[Mask, Mask]:
    """[T, P] each: tensors that ought to have moved and did not, and those that did."""
    judged = np.array(
        [
            t.in_optimizer and t.trainable and not t.update_sampled and t.dtype in FINE
            for t in trace.tensors
        ],
        bool,
    )
    update, rate = _values(trace, "update_rms"), _values(trace, "tensor_lr")
    gradient = _values(trace, "grad_rms")
    with np.errstate(invalid="ignore"):
        peak = np.fmax.accumulate(rate, axis=0)
        due = judged & (gradient > 0) & (rate > 0) & (rate >= limits.near_peak * peak)
        still = due & (update == 0) & _can_be_held(trace, rate, gradient)
        moved = judged & (update > 0)
    return still, moved


def _can_be_held(trace: Trace, rate: Floats, gradient: Floats) -> Mask:
    """[T, P]: whether the weights are so small that they hold the update that was asked for."""
    asked = rate * gradient
    if trace.facts.get("optimizer_family") == "adam":
        asked = rate * _values(trace, "moment_ratio")
        # With amsgrad the divisor is another than the second moment.
        asked = np.fmin(asked, _values(trace, "effective_lr") * _values(trace, "moment1_rms"))
    elif trace.facts.get("optimizer_family") != "sgd":
        asked = np.fmin(rate, asked)
    weights = _values(trace, "param_rms")
    held: Mask = asked > MARGIN * FORMATS["float32"].step / 2 * weights
    return held


def _values(trace: Trace, name: str) -> Floats:
    """[T, P] at the samples of `update_rms`, NaN where a channel has none."""
    steps = trace.series["update_rms"].steps
    found = np.full((steps.size, len(trace.tensors)), np.nan)
    if name not in trace.series:
        return found
    series = trace.series[name]
    at = np.minimum(np.searchsorted(series.steps, steps), series.steps.size - 1)
    same = series.steps[at] == steps
    found[same] = series.values[at[same]]
    return np.where(np.isfinite(found), found, np.nan)


def _run(frozen: bool) -> Trace:
    """20 samples, in the second half of which one block of two stands still."""
    tensors = small_gpt()
    shape = (20, len(tensors))
    update = np.full(shape, 1e-3)
    if frozen:
        update[10:, [i for i, t in enumerate(tensors) if t.layer == "h.1"]] = 0.0
    return make_trace(
        update_rms=update,
        update_realized=(update > 0).astype(float),
        grad_rms=np.full(shape, 1e-3),
        tensor_lr=np.full(shape, 1e-3),
        param_rms=np.full(shape, 0.02),
        moment_ratio=np.full(shape, 0.5),
        effective_lr=np.full(shape, 1.0),
        moment1_rms=np.full(shape, 5e-4),
        optimizer_family="adam",
        loss=falling_loss(20),
        tensors=tensors,
    )


RULE = rule.Rule(
    name="frozen-weights",
    needs=("update_rms", "grad_rms", "tensor_lr", "param_rms"),
    uses=("effective_lr", "moment1_rms", "moment_ratio", "optimizer_family", "update_realized"),
    explains=("early-plateau", "step-too-small"),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(frozen=True),
    healthy=lambda: _run(frozen=False),
    doc=__doc__ or "",
)
