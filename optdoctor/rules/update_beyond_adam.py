"""An Adam moves weights further than the two means of its gradients can.

## What it finds
A tensor whose measured update is more than `times` the largest that Adam's rule can make, in one
sample. With moments m = mean of g and v = mean of g^2, weighted by beta1 and beta2, no gradients
whatever give |m| / sqrt(v) more than (1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2)): 7.3
learning rates for 0.9 and 0.999, 1.0 for 0.9 and 0.9. To this comes what the decay takes, and what
float32 rounds. Of Adam and AdamW of torch, bitsandbytes, torchao (8 bits) and DeepSpeed, of weights
in float32, and of the first group, whose decays are those that are known; after a resume or a
change of tensors from the 32nd update on, as decays may have changed too.
## Why it matters
The bound is arithmetic and holds for any data, rate or clip. Beyond it the two moments are not of
the same gradients, most often since one has lost small numbers: a map of 8 bits that rounds second
moments to 0 leaves a first moment divided by almost nothing.
## What to do
Keep the moments in float32 and see whether it ends. Where they are: look for what writes to the
moments, or to weights within the step.
## When it is fine
Never for the rule of Adam itself. In 140 small trainings, healthy and sick, updates came to 1.0
times the bound at most, and in healthy ones of 8 bits to 0.14 times. A hook of the step that moves
weights in its own right, as one that sets back an average, is measured with it.
## Told apart from
`second-moment-stale`: gradients that grow faster than the moment follows, within the bound.
`second-moment-underflow`: zeros that are counted in the moment. `step-too-large`: updates beside
the weights, whatever the optimizer can make.
"""

import math
from dataclasses import dataclass

import numpy as np

from optdoctor import rule
from optdoctor.curves.samples import at_samples
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.settings import decay
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

KINDS = frozenset(
    (
        *("Adam", "AdamW", "Adam8bit", "AdamW8bit", "Adam32bit", "AdamW32bit"),
        *("PagedAdam", "PagedAdamW", "PagedAdam8bit", "PagedAdamW8bit"),
        *("PagedAdam32bit", "PagedAdamW32bit", "DeepSpeedCPUAdam"),
    )
)
"""Classes that move weights by the rule of Adam and by nothing else. Those of torchao that keep
moments in 4 bits or float8 do as well, and round them so coarsely that a healthy run went 4.6 times
beyond."""
ROUNDED = 2.0**-22
"""Share of the weights by which rounding in float32 may change an update: two units in the last
place."""
SETTLED = 32
"""Updates after which what other decays have left in the moments weighs nothing."""
CHANGES = ("resume", "tensors-changed", "fact-changed")


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 1
    """What cannot be needs no second sample."""
    times: float = 2.0
    """Largest update that passes, in those that Adam can make: 1 by arithmetic; a schedule that
    moves beta1 from 0.95 to 0.85, as one-cycle schedules do, adds a factor of 1.8."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    if trace.facts["optimizer"] not in KINDS:
        return []
    beta1, beta2 = decay(trace.facts["beta1"]), decay(trace.facts["beta2"])
    if beta1 is None or beta2 is None or not beta1**2 < beta2:
        return Abstain("no bound is known for these decays of the moments")
    most = (1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1**2 / beta2))
    steps = trace.series["update_rms"].steps
    steps = steps[steps >= _settled(trace)]
    updates, rates, weights = (
        at_samples(trace, name, steps) for name in ("update_rms", "tensor_lr", "param_rms")
    )
    decays = np.array([t.weight_decay for t in trace.tensors])
    allowed = rates * (most + decays * weights) + ROUNDED * weights  # [T, P]
    judged = np.array([_is_judged(t) for t in trace.tensors], bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where(judged & (rates > 0), updates / allowed, np.nan)
    times = np.where(np.isfinite(times), times, 0.0)
    impossible = times > limits.times  # [T, P]
    rows, beyond = (np.flatnonzero(impossible.any(axis=axis)) for axis in (1, 0))
    if not rows.size:
        return []
    first = rows[0]
    worst = int(times[first].argmax())
    name, reached = trace.tensors[worst].name, min(float(times[first, worst]), 1e30)
    return [
        Finding(
            severity=Severity.WARN,
            summary=(
                f"{trace.facts['optimizer']} moved {name} by {reached:.3g} times the most that its"
                f" rule can make of any gradients (limit {limits.times:g}) at step"
                f" {steps[first]:,}: its moments are not of the same gradients, or something else"
                " moves weights within the step."
            ),
            steps=(int(steps[first]), int(steps[rows[-1]])),
            tensors=tuple(trace.tensors[i].name for i in beyond),
            evidence=(
                Evidence(
                    "update_rms",
                    f"update of {name} over the largest of Adam, {most:.3g} learning rates",
                    reached,
                    limits.times,
                    "times",
                ),
            ),
            treatments=_treatments(trace),
        )
    ]


def _is_judged(tensor: TensorInfo) -> bool:
    return tensor.dtype == "float32" and tensor.in_optimizer and tensor.group == 0


def _settled(trace: Trace) -> int:
    """The first step at which the moments are those of the decays that are known."""
    return max((e.step + SETTLED for e in trace.events if e.kind in CHANGES), default=0)


def _treatments(trace: Trace) -> tuple[Treatment, ...]:
    look = Treatment(
        title="Look for what writes to the moments, or to weights in a hook of the step",
        when="check",
        safety="safe",
        source="arithmetic: Cauchy-Schwarz bounds m by the root of v",
    )
    if trace.facts.get("moment2_form") != "quantized":
        return (look,)
    return (
        Treatment(
            title="Keep the moments in 32 bits, or take another release of the 8-bit optimizer",
            safety="manual",
            source="bitsandbytes-foundation/bitsandbytes#152: another release cured it",
        ),
        look,
    )


def _run(update: float) -> Trace:
    """Twelve samples of one matrix at a rate of 0.001; the eighth update is of that size."""
    updates = np.full((12, 1), 5e-4)
    updates[7] = update
    return make_trace(
        optimizer="AdamW",
        beta1=0.9,
        beta2=0.999,
        update_rms=updates,
        tensor_lr=np.full((12, 1), 1e-3),
        param_rms=np.full((12, 1), 0.05),
        tensors=(TensorInfo("fc.weight", (8, 8), dtype="float32", weight_decay=0.01),),
    )


RULE = rule.Rule(
    name="update-beyond-adam",
    needs=("update_rms", "tensor_lr", "param_rms", "optimizer", "beta1", "beta2"),
    uses=("moment2_form",),
    explains=(
        "divergence",
        "layer-learning-rate-mismatch",
        "loss-spike",
        "nan-pulse",
        "nonfinite-gradient",
        "nonfinite-state",
        "step-too-large",
    ),
    mechanism=True,
    spares=("sgd",),
    check=check,
    limits=Limits(),
    sick=lambda: _run(1.0),
    healthy=lambda: _run(7e-3),
    doc=__doc__ or "",
)
