"""Nearly every gradient is clipped, under an optimizer that does not feel how large it is.

## What it finds
The share of updates whose gradient norm was above `max_grad_norm`, from some update to the newest
one, over `rows` rows or more: above `share` it is a note. Of optimizers that divide by the size of
past gradients or take their sign: Adam, AdamW, NAdam, RAdam, Adamax, StableAdamW, Adam-mini, Lion.
Always a note: nothing is harmed by it.
## Why it matters
Where every gradient is clipped, all have the same norm, and these optimizers divide that norm out
again: another threshold would give the same updates. The clip bounds nothing then: the size of a
step is set by the learning rate alone, and a threshold that was tuned was tuned for nothing. What
remains of it is that each batch counts alike, and that epsilon weighs more against smaller
gradients.
## What to do
Nothing, if the run trains well. To make steps smaller, lower the learning rate. To bound outliers
alone, put the threshold above the usual gradient norm.
## When it is fine
Large language models are often trained so at their beginning. A clip that binds now and then does
bound what one batch does to the second moment; that is not told here.
## Told apart from
`gradient-outlier`: single norms far above the rest.
`accumulation-not-normalised`: why all norms may be too large.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.precision import short
from optdoctor.knowledge.settings import positive
from optdoctor.synthetic import gradient_norms, make_trace
from optdoctor.trace import Trace

BLIND = frozenset({"adam", "adam_mini", "adamax", "lion", "nadam", "radam", "stable_adamw"})
"""Families whose update is the same where all gradients are multiplied by one number."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 50
    """Fewest rows that show how a run is clipped."""
    share: float = 0.95
    """Largest share of clipped updates that is not worth a note: so few remain that the clip tells
    nothing apart. Physical is 1; rows in between are for norms that scatter."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    largest = positive(trace.facts["max_grad_norm"])
    if trace.facts["optimizer_family"] not in BLIND or largest is None:
        return []
    series = trace.series["grad_norm"]
    known = np.isfinite(series.values)
    norms, steps = np.asarray(series.values, np.float64)[known], series.steps[known]
    first = _since(norms > largest, limits)
    if first is None:
        return []
    share = float(np.mean(norms[first:] > largest))
    usual = float(np.median(norms[first:]))
    return [
        Finding(
            severity=Severity.NOTE,
            summary=(
                f"{share * 100:.3g} % of the gradients since step {steps[first]:,} were clipped to"
                f" a norm of {short(largest)} (limit {limits.share * 100:.2g} %), which"
                f" {trace.facts.get('optimizer') or 'this optimizer'} divides out again."
            ),
            steps=(int(steps[first]), int(steps[-1])),
            evidence=(
                Evidence(
                    "grad_norm",
                    "updates whose gradient was clipped",
                    share * 100,
                    limits.share * 100,
                    "%",
                ),
                Evidence(
                    "grad_norm",
                    "median gradient norm before the clip, beside the clip",
                    usual,
                    largest,
                    "loss/weight",
                ),
            ),
            treatments=(
                Treatment(
                    title="Leave it, or turn the learning rate instead: the clip sets no step here",
                    when="check",
                    safety="safe",
                    basis="heuristic",
                    source="arithmetic: a factor of all gradients cancels in m / sqrt(v) and sign",
                ),
            ),
        )
    ]


def _since(clipped: NDArray[np.bool_], limits: Limits) -> int | None:
    """The first clipped row from which on more than the share are, up to the newest."""
    lengths = np.arange(clipped.size, 0, -1)
    shares = np.cumsum(clipped[::-1])[::-1] / lengths
    good = np.flatnonzero(clipped & (shares > limits.share) & (lengths >= limits.rows))
    return int(good[0]) if good.size else None


def _run(largest: float) -> Trace:
    norms = gradient_norms(200)
    norms[:60] *= 0.05
    return make_trace(
        optimizer="AdamW", optimizer_family="adam", grad_norm=norms, max_grad_norm=largest
    )


RULE = rule.Rule(
    name="clipping-not-felt",
    needs=("grad_norm", "max_grad_norm", "optimizer_family"),
    uses=("optimizer",),
    mechanism=True,
    spares=("sgd",),
    check=check,
    limits=Limits(),
    sick=lambda: _run(0.25),
    healthy=lambda: _run(2.0),
    doc=__doc__ or "",
)
