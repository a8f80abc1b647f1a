"""A network that normalizes after its residual sums begins without warm-up.

## What it finds
Planned warm-up updates below those in which Adam's second moment settles, 2 / (1 - beta2), or below
`share` of the run where that is fewer; of transformers that normalize after the residual sum
(`norm_placement` post) under Adam, AdamW, NAdam or Adamax, at a rate above `rate` sizes of the
weights. Decided before step 1; always a note, which becomes a warning beside a symptom.
## Why it matters
In such a network gradients near the output are large at the start, and a second moment of few
updates is a poor measure of them: first steps can leave it where nothing flows back. Four blocks
on characters without warm-up at a rate of 1e-2 ended badly in 7 of 8 seeds, and in none with 60
updates of it; with blocks that normalize first, in none of 4 (all heuristic: of small runs made
elsewhere).
## What to do
Let the rate rise linearly over that many updates.
## When it is fine
Fine-tuning at 1e-5 to 5e-5: rates are a thousandth of the weights' size, and warm-up changes
little; it is not judged there. Blocks that normalize first, and RAdam, which warms up by itself.
## Told apart from
`learning-rate-absurd`: a rate that is too high with any warm-up.
`learning-rate-jump`: a rate that rises at once in the middle of a run.
"""

import math
from dataclasses import dataclass

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.settings import count, decay, positive
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

FAMILIES = frozenset({"adam", "adamax", "nadam"})


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: decided before step 1."""
    memories: float = 2.0
    """Least warm-up, in memories of the second moment: literature (Ma and Yarats 2021)."""
    share: float = 0.05
    """Share of the planned updates that is warm-up enough in any case: heuristic, as recipes for
    short runs have it."""
    rate: float = 0.002
    """Largest rate, in sizes of the weights, that needs no warm-up: fine-tuning at 5e-5 is near
    0.001, training from scratch at 1e-4 near 0.005; heuristic."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    warmup, beta2 = count(trace.facts["warmup_steps"]), decay(trace.facts["beta2"])
    if trace.facts["norm_placement"] != "post" or trace.facts["optimizer_family"] not in FAMILIES:
        return []
    rate, size = positive(trace.facts["peak_lr"]), positive(trace.facts["weights_rms"])
    if warmup is None or beta2 is None or rate is None or size is None:
        return []
    if not rate / size > limits.rate:
        return []
    wanted, planned = limits.memories / (1 - beta2), count(trace.facts.get("total_steps"))
    if planned:
        wanted = min(wanted, limits.share * planned)
    if not warmup < wanted:
        return []
    new = math.ceil(wanted)
    return [
        Finding(
            severity=Severity.NOTE,
            summary=(
                f"A warm-up of {warmup:,} updates where blocks normalize after their residual sum"
                f" and the second moment takes {limits.memories / (1 - beta2):,.4g} to settle"
                f" (limit {wanted:,.4g})."
            ),
            steps=(0, 0),
            evidence=(
                Evidence("warmup_steps", "planned updates of warm-up", warmup, wanted, "steps"),
            ),
            treatments=(
                Treatment(
                    title=f"Let the learning rate rise over {new:,} updates",
                    changes={"warmup_steps": (warmup, new)},
                    safety="risky",
                    basis="literature",
                    source="Ma and Yarats 2021: 2 / (1 - beta2) updates, linearly",
                ),
            ),
            awaits_symptom=True,
        )
    ]


def _run(warmup: int) -> Trace:
    return make_trace(
        optimizer_family="adam",
        norm_placement="post",
        beta2=0.999,
        warmup_steps=warmup,
        total_steps=100_000,
        peak_lr=1e-3,
        weights_rms=0.02,
    )


RULE = rule.Rule(
    name="warmup-too-short",
    needs=(
        "norm_placement",
        "warmup_steps",
        "beta2",
        "optimizer_family",
        "peak_lr",
        "weights_rms",
    ),
    uses=("total_steps",),
    explains=("divergence", "early-plateau", "loss-spike", "nan-pulse", "nonfinite-gradient"),
    mechanism=True,
    spares=("sgd",),
    check=check,
    limits=Limits(),
    sick=lambda: _run(0),
    healthy=lambda: _run(2_000),
    doc=__doc__ or "",
)
