"""The second moment is kept in a number format too coarse for its own decay.

## What it finds
Moments that are kept whole in bfloat16 or float16, before step 1. A decay of beta2 takes 1 - beta2
of an entry at each update. Where that is at most a quarter of the format's step, less than half of
the way to the next number everywhere, the entry is rounded back to what it was: from beta2 0.99805
in bfloat16, from 0.99976 in float16. In float16 also: squares of gradients that round to 0 on their
way into the state. Judged of Adam, AdamW, NAdam, RAdam, AdaBelief, Adan, AdEMAMix, LAMB, Prodigy,
SOAP and schedule-free AdamW.
## Why it matters
A second moment that cannot fall keeps the size of the largest gradients so far. As gradients
shrink, steps shrink with them, as if the learning rate fell: after a thousandfold fall of the
gradient and 2,000 updates the second moment in float32 had come down from 0.182 to 0.0246, that in
bfloat16 stood at 0.196, and steps were a third. Each family above was run so at beta2 0.999 over
100 updates: not one entry of 2,048 had fallen.
## What to do
Keep weights and state in float32, with bfloat16 autocast for the forward pass. Where memory forbids
it, a beta2 of 0.99 or below decays in bfloat16, or an optimizer whose state is quantized with sizes
in float32.
## When it is fine
Short runs, and those whose gradients keep their size; hence a note: what it does to a run is
counted by `second-moment-stalled`. Master weights in float32 bring state in float32. State in 8 or
4 bits, and as rows and columns, is not judged; nor is StableAdamW, whose entries still fell after
150 updates.
## Told apart from
`epsilon-below-precision`: epsilon is 0 too, which breaks the run; then this is silent on float16.
`second-moment-underflow`: the zeros, counted in the running state.
`update-lost-to-rounding`: the weights are too coarse for their updates.
"""

import math
import re
from dataclasses import dataclass

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.precision import FORMATS, round_to, short
from optdoctor.knowledge.remedies import float32_state
from optdoctor.knowledge.settings import decay as decay_of
from optdoctor.knowledge.settings import positive
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

FAMILIES = frozenset(
    {
        "adabelief",
        "adam",
        "adan",
        "ademamix",
        "lamb",
        "nadam",
        "prodigy",
        "radam",
        "schedule_free",
        "soap",
    }
)
"""Families that were seen to stall."""
HALF = ("bfloat16", "float16")
WHOLE = (None, "full", "projected")
"""Forms with an entry for each weight, or not known yet."""
QUANTIZED = re.compile(r"(8bit|4bit|Fp8)$")
"""Names of classes whose state is kept in fewer bits: the form is known after the first sample."""
DECAYING = 0.99
"""A beta2 that decays in bfloat16: 1 % of an entry is more than the way to the next number."""
TRIED = (
    "the float32 twin of a bfloat16 state fell from 0.182 to 0.0246:"
    " tests/clinic/test_precision_cases.py"
)


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: decided before step 1."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    dtype, beta2 = str(trace.facts["state_dtype"]), decay_of(trace.facts["beta2"])
    optimizer = str(trace.facts.get("optimizer") or "The optimizer")
    if trace.facts["optimizer_family"] not in FAMILIES or dtype not in HALF:
        return []
    if trace.facts.get("moment2_form") not in WHOLE or QUANTIZED.search(optimizer):
        return []
    if beta2 is None:
        return []
    decay, coarse = 1 - beta2, FORMATS[dtype].step / 4
    if decay <= coarse:
        half = f"{coarse * 100:.2g} to {coarse * 200:.2g} %"
        said = (
            f"The second moment of {optimizer} cannot fall: its decay of {decay * 100:.2g} % an"
            f" update is less than half the spacing of {dtype}, {half}."
        )
        evidence = Evidence(
            "beta2",
            f"decay of the second moment an update, beside what {dtype} rounds away everywhere",
            decay * 100,
            coarse * 100,
            "%",
        )
    elif dtype == "float16" and _keeps_eps(trace):
        least = math.sqrt(FORMATS[dtype].smallest / 2 / decay)
        said = (
            f"{optimizer} keeps squares of gradients in float16, where those of gradients up to"
            f" {least:.2g} are 0 at beta2 = {short(beta2)}."
        )
        evidence = Evidence(
            "state_dtype",
            "largest gradient whose part of a second moment of 0 rounds to 0",
            least,
            0.0,
            "loss/weight",
        )
    else:
        return []
    treatments = [float32_state(dtype, "measured", TRIED)]
    if dtype == "bfloat16":
        treatments.append(
            Treatment(
                title=f"Where float32 does not fit: beta2 = {DECAYING}",
                changes={"beta2": (beta2, DECAYING)},
                safety="risky",
                basis="heuristic",
                source="arithmetic: a decay of 1 % is more than the spacing of bfloat16",
            )
        )
    return [
        Finding(
            severity=Severity.NOTE,
            summary=said,
            steps=(0, 0),
            tensors=tuple(
                t.name for t in trace.tensors if t.in_optimizer and t.state_dtype == dtype
            ),
            evidence=(evidence,),
            treatments=tuple(treatments),
        )
    ]


def _keeps_eps(trace: Trace) -> bool:
    """Whether epsilon is more than 0 in the arithmetic: else another rule tells the worse."""
    eps = positive(trace.facts.get("eps"))
    return eps is not None and bool(round_to(eps, str(trace.facts.get("math_dtype"))))


def _run(dtype: str, beta2: float = 0.999) -> Trace:
    return make_trace(
        optimizer="AdamW",
        optimizer_family="adam",
        beta2=beta2,
        eps=1e-8,
        state_dtype=dtype,
        math_dtype="float32",
        tensors=small_gpt(dtype, "float32"),
    )


RULE = rule.Rule(
    name="half-precision-state",
    needs=("state_dtype", "beta2", "optimizer_family"),
    uses=("optimizer", "moment2_form", "eps", "math_dtype"),
    explains=("early-plateau", "second-moment-stalled"),
    mechanism=True,
    spares=("sgd",),
    check=check,
    limits=Limits(),
    sick=lambda: _run("bfloat16"),
    healthy=lambda: _run("float32"),
    doc=__doc__ or "",
)
