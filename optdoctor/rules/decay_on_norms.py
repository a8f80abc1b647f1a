"""Weight decay pulls the scales of norms to zero.

## What it finds
Norms, by the class of their module, in a group whose weight decay is above 0, where rate times
decay times planned updates is `shrink` or more: about the share by which decay alone could shrink a
scale over the run. Always a note, decided before step 1.
## Why it matters
A scale that is pulled to zero weakens what comes after it, and is no measure of complexity that
decay was meant to bound. Common recipes leave norms and biases out of the decay; how much that
gains depends on the run and is small in most.
## What to do
Give norms and biases a group of their own with weight_decay 0. Choose it by the class of the
module: lists of names miss the norms of many models.
## When it is fine
Scales that are held as a distance from 1, as in Gemma, are pulled to 1, not to zero. A decay that
is too weak for the length of the run does nothing.
## Told apart from
Decay that is too strong for all weights, which no choice of groups mends.
"""

from dataclasses import dataclass, replace

from optdoctor import rule
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.settings import positive
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

MANY = 1e12
"""What no rate, decay or number of updates is: the number is damaged."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: decided before step 1."""
    shrink: float = 0.05
    """Peak rate times decay times planned updates from which it is told. By about this share decay
    alone can shrink a scale, by less under a schedule that falls; less is not worth a note."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    if not trace.tensors:
        return Abstain("no tensors are known")
    usual, rate, steps = (positive(trace.facts[name]) or 0.0 for name in RULE.needs)
    if not usual:
        return []
    given = [t for t in trace.tensors if t.in_optimizer and t.trainable and t.weight_decay > 0]
    norms = [t for t in given if t.kind == "norm"]
    biases = [t for t in given if t.kind == "bias"]
    if not norms:
        return []
    decay = max(t.weight_decay for t in norms)
    reach = rate * decay * steps
    if not limits.shrink <= reach < MANY:
        return []
    also = f" and {len(biases)} bias{'es'[: 2 * (len(biases) != 1)]}" if biases else ""
    norm = "1 tensor of norms" if len(norms) == 1 else f"{len(norms)} tensors of norms"
    decayed = "is decayed" if len(norms) + len(biases) == 1 else "are decayed"
    return [
        Finding(
            severity=Severity.NOTE,
            summary=(
                f"{norm}{also} {decayed}, by a weight decay of up to {decay:.3g}: rate times decay"
                f" times updates is {reach:.3g} (limit {limits.shrink:.3g})."
            ),
            steps=(0, 0),
            tensors=tuple(t.name for t in (*norms, *biases)),
            evidence=(
                Evidence(
                    "weight_decay",
                    "peak rate times the decay of norms times planned updates",
                    reach,
                    limits.shrink,
                    "1",
                ),
            ),
            treatments=(
                Treatment(
                    title="Give norms and biases a group of their own with weight_decay 0",
                    when="next",
                    safety="risky",
                    basis="literature",
                    source="transformers' Trainer leaves norms and biases out of the decay",
                    intervention="decay-groups",
                ),
            ),
        )
    ]


def _run(decay: float) -> Trace:
    tensors = tuple(
        replace(t, kind="norm", weight_decay=decay) if ".ln_" in t.name else t for t in small_gpt()
    )
    return make_trace(weight_decay=0.1, peak_lr=1e-3, total_steps=1000, tensors=tensors)


RULE = rule.Rule(
    name="decay-on-norms",
    needs=("weight_decay", "peak_lr", "total_steps"),
    check=check,
    limits=Limits(),
    sick=lambda: _run(0.1),
    healthy=lambda: _run(0.0),
    doc=__doc__ or "",
)
