"""Each update moves the weights by a large part of their own size.

## What it finds
The root mean square of the update over that of the weights, all matrices of 64 elements or more
pooled, above `ratio` in `lasting` samples in a row, or in fewer during which the weights grow more
than `grown` times. Between two samples their growth tells how large the updates were at least.
While the run is young the limit is higher: weights that grow from 0 at an even pace move by 1 over
their age, and when they speed up evenly by twice that, so it is never less than 3 over the updates
since the first sample; where the first update is more than half of the weights, which began near 0
then, nor less than 1.5 over the root of that, as steps without a direction have 1. Norms, biases,
adapters and frozen tensors are not counted. It is a note where the loss stands below `fallen` of
its start, else a warning, and critical where the loss stands above its start.
## Why it matters
A network that is rewritten within ten updates cannot keep what it learnt: the gradient of one
batch no longer tells what the weights of the next one need.
## What to do
Compare the rate with one that is known to work for this optimizer, and try a third of it. Look
for another cause first where one is found: gradients that were never cleared, losses that were
added up and not averaged, a decay that shrinks the weights all make steps too large.
## When it is fine
Weights that begin near 0 and grow, in the first updates. Some recurrent networks take steps of
this size for a while and learn all the same, which is why a falling loss makes it a note.
## Told apart from
`layer-learning-rate-mismatch`: one layer among others. `decay-shrinks-weights`: the weights shrink,
so that ordinary updates become large beside them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.rows import spans
from optdoctor.curves.step_sizes import Floats, StepSizes, step_sizes
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import NOT_FALLING
from optdoctor.store import Series
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Trace

GROWING = 3.0
"""Over its age in updates: the largest relative update of weights that grow from 0. An even pace
has 1, an even acceleration 2."""
BEGUN = 0.5
"""Relative update of the first sample above which the weights began near 0."""
WANDERING = 1.5
"""Over the root of its age in updates: the largest relative update of weights that grow from 0 by
steps without a direction, which have 1."""
ROWS = 5
"""Losses whose median tells where the run stands."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 3
    """As many samples as it must last."""
    ratio: float = 0.1
    """Largest part of the weights that one update may move: heuristic; ten updates of it rewrite
    the network. In 19 healthy small trainings the largest that lasted was 0.041."""
    lasting: int = 3
    """Fewest samples in a row above it: one can be an outlier's."""
    grown: float = 4.0
    """Growth of the weights' norm during fewer samples that tells as much. In 19 healthy small
    trainings the weights grew 2.2 times in all."""
    fallen: float = 0.71
    """Loss, in parts of its start, below which the run is seen to learn in spite of it: heuristic,
    half a doubling."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    sizes = step_sizes(trace)
    if not sizes.steps.size:
        return []
    pace, beyond = _pace(sizes, limits)
    stretches = [
        (a, b)
        for a, b in spans(beyond)
        if b - a + 1 >= limits.lasting or sizes.size[b] > limits.grown * sizes.size[max(a - 1, 0)]
    ]
    if not stretches:
        return []
    first, last = stretches[0][0], stretches[-1][1]
    inside = np.concatenate([np.arange(a, b + 1) for a, b in stretches])
    typical = float(np.median(pace[inside]))
    steps = (int(sizes.steps[first]), int(sizes.steps[last]))
    stands = _stands(trace)
    told = [
        Evidence(
            "update_rms",
            f"update over weights, all matrices pooled, median of {len(inside)} samples",
            100 * typical,
            100 * limits.ratio,
            "%",
        ),
        *_growth(sizes, last),
    ]
    if stands is not None:
        what = "the newest loss over that of the first rows"
        told.append(Evidence("loss", what, stands, limits.fallen, "times"))
    is_note = stands is None or stands < limits.fallen
    severity = Severity.NOTE if is_note else Severity.WARN
    if stands is not None and stands > 1:
        severity = Severity.CRITICAL
    return [
        Finding(
            severity=severity,
            summary=(
                f"Each update moves the weights by {100 * typical:.3g} % of their size (limit"
                f" {100 * limits.ratio:.3g} %), in {len(inside)} samples from step {steps[0]} on."
            ),
            steps=steps,
            tensors=trace.worst(_by_tensor(sizes, first)),
            evidence=tuple(told),
            treatments=_treatments(trace),
            awaits_symptom=is_note,
        )
    ]


def _pace(sizes: StepSizes, limits: Limits) -> tuple[Floats, NDArray[np.bool_]]:
    """[T], [T]: part of the weights that an update moves, measured or what their growth since the
    last sample asks for at least; and where that is too large for weights of any origin.

    Both parts are of the weights after the update: one that multiplies them by g moves 1 - 1/g.
    """
    age = np.asarray(sizes.steps - sizes.steps[0] + 1, np.float64)
    growth = np.diff(np.log(sizes.size), prepend=np.log(sizes.size[0]))
    older = np.diff(np.log(age), prepend=0.0)
    apart = np.maximum(np.diff(sizes.steps, prepend=sizes.steps[0] - 1), 1)
    grown = -np.expm1(-growth / apart)
    pace = np.maximum(sizes.ratio, grown)
    unsteady = (sizes.ratio > GROWING / age) | (growth > GROWING * older)
    if sizes.ratio[0] > BEGUN:
        unsteady &= sizes.ratio > WANDERING / np.sqrt(age)
    return pace, (pace > limits.ratio) & unsteady


def _stands(trace: Trace) -> float | None:
    """The newest loss over that of the first rows; None where it tells nothing."""
    loss: Series | None = trace.series.get("loss")
    if loss is None or trace.facts.get("loss_kind") in NOT_FALLING:
        return None
    values = loss.values[np.isfinite(loss.values)]
    if values.size < 2 * ROWS:
        return None
    start, now = float(np.median(values[:ROWS])), float(np.median(values[-ROWS:]))
    return now / start if start > 0 and np.isfinite(now / start) else None


def _growth(sizes: StepSizes, row: int) -> list[Evidence]:
    """How the weights have grown since the first sample: those that run away do."""
    grown = float(sizes.size[row] / sizes.size[0])
    what = f"norm of these weights at step {sizes.steps[row]} over that of the first sample"
    return [Evidence("param_rms", what, grown, 2.0, "times")]


def _by_tensor(sizes: StepSizes, row: int) -> Floats:
    """[P]: update over weights in that sample, of those that move at half the common pace at
    least."""
    weight, update = sizes.weight[row], sizes.update[row]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(2 * update >= sizes.ratio[row] * weight, update / weight, np.nan)


def _treatments(trace: Trace) -> tuple[Treatment, ...]:
    rate = trace.series.get("lr")
    changes = {}
    if rate is not None and np.isfinite(peak := float(np.nanmax(rate.high))) and peak > 0:
        changes = {"lr": (peak, float(f"{peak / 3:.3g}"))}
    return (
        Treatment(
            title="Try a third of the learning rate, and a third of that if it stays",
            changes=changes,
            when="next",
            safety="risky",
            basis="heuristic",
            source="an update is the rate times a direction; a third is a coarse search",
        ),
        Treatment(
            title="Check that gradients are set to zero before each update, and that the loss is"
            " a mean over examples and micro-batches",
            when="check",
            safety="safe",
            basis="heuristic",
            source="both make updates larger at the same rate",
        ),
    )


def _run(ratio: float) -> Trace:
    """Sixty samples, the last forty of them with updates of that part of the weights."""
    tensors = small_gpt()
    weights = np.full((60, len(tensors)), 0.5)
    updates = weights * 0.01
    updates[20:] = weights[20:] * ratio
    rising = np.concatenate([np.full(20, 4.0), np.linspace(4.0, 6.0, 40)])
    loss = falling_loss(60) if ratio < 0.1 else rising  # the loss of a run that is driven off
    return make_trace(
        update_rms=updates,
        param_rms=weights,
        loss=loss,
        tensors=tensors,
        steps={name: np.arange(1, 240, 4) for name in ("update_rms", "param_rms", "loss")},
    )


RULE = rule.Rule(
    name="step-too-large",
    needs=("update_rms", "param_rms"),
    uses=("loss", "loss_kind", "lr"),
    explains=(
        "divergence",
        "early-plateau",
        "gradient-outlier",
        "loss-scale-collapse",
        "loss-spike",
        "nan-pulse",
        "nonfinite-gradient",
        "staircase-oscillation",
        "upward-drift",
    ),
    check=check,
    limits=Limits(),
    sick=lambda: _run(0.25),
    healthy=lambda: _run(0.02),
    doc=__doc__ or "",
)
