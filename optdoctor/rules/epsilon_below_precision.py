"""The optimizer's epsilon is zero in the dtype in which the update is computed.

## What it finds
An epsilon above 0 that rounds to 0 in `math_dtype`: float32 where the optimizer is fused or keeps
its moments in float32, else the dtype of the weights; of optimizers that divide by a root plus
epsilon: Adam, AdamW, NAdam, RAdam, Adamax, RMSprop, Adagrad, AdaBelief, Adan, AdEMAMix, SOAP and
schedule-free kinds. Decided before step 1 from three facts; no row is needed. The default 1e-8
is 0 in float16, whose smallest number above 0 is 5.96e-8. Critical; a warning where a gradient
scaler of torch is on, which refuses such gradients before any update.
## Why it matters
They divide by sqrt(second moment) + epsilon. Without epsilon an entry whose
second moment is 0 divides by 0: its update is infinite, or NaN where its gradient is 0 too, as in
the row of an embedding that no token of the batch used. In 2 of 2 small runs of AdamW the loss
was NaN at step 2; of the other families 1 small run each was NaN by step 7 and sound with 1e-4.
## What to do
Keep weights and optimizer state in float32, with bfloat16 autocast for speed. In an emergency
restart with epsilon 1e-4, which float16 holds. An epsilon of 1e-6 is not proposed: it survives the
rounding, but small runs with it ended at more than twice the loss of their float32 twins. A clamp
of the second moment at 1e-8 is not proposed: in float16 that clamps at 0.
## When it is fine
An epsilon of exactly 0 was chosen by the user and is not judged here. A fused optimizer computes in
float32 and keeps epsilon; its stored second moment can underflow all the same, which is
`second-moment-underflow`. bfloat16 holds 1e-8.
## Told apart from
`second-moment-underflow`: counted in the state of the running optimizer, not foretold.
`nan-pulse`: what follows when an entry divides by 0.
`loss-scaling-of-half-parameters`: what comes first where a scaler is on.
"""

import math
from dataclasses import dataclass

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.precision import round_to, short
from optdoctor.knowledge.remedies import in_float32
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

DIVIDING = frozenset(
    {
        "adabelief",
        "adagrad",
        "adam",
        "adamax",
        "adan",
        "ademamix",
        "nadam",
        "radam",
        "rmsprop",
        "schedule_free",
        "soap",
    }
)
"""Families that were seen to break in float16 with their default epsilon and not with 1e-4."""
TRIED = "2 of 2 small unfused float16 runs recovered: tests/clinic/test_underflow_trainings.py"

EPSILON_TRIED = (
    "in the clinic 2 of 12 runs came within 5 % of healthy ones, the others were better by half"
)
TRIED_OF_OTHERS = (
    "1 small float16 run of each family kept a finite loss:"
    " tests/clinic/test_epsilon_of_every_optimizer.py"
)


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: decided before step 1."""
    emergency_eps: float = 1e-4
    """The epsilon to restart with where float32 is out of reach."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    eps, dtype = trace.facts["eps"], str(trace.facts["math_dtype"])
    family = trace.facts["optimizer_family"]
    if family not in DIVIDING or not isinstance(eps, float):
        return []
    if not 0 < eps < math.inf:
        return []
    rounded = round_to(eps, dtype)
    if rounded is None or rounded > 0:
        return []
    weights = str(trace.facts.get("param_dtype") or dtype)
    optimizer = trace.facts.get("optimizer") or "Adam"
    tried = TRIED if family == "adam" else TRIED_OF_OTHERS
    refused = trace.facts.get("scaler") == "on" and weights == "float16"
    reached = tuple(t.name for t in trace.tensors if t.math_dtype == dtype and t.in_optimizer)
    return [
        Finding(
            severity=Severity.WARN if refused else Severity.CRITICAL,
            summary=f"eps = {short(eps)} of {optimizer} is 0 in {dtype}, the dtype of its update.",
            steps=(0, 0),
            tensors=reached,
            evidence=(Evidence("eps", f"eps after rounding to {dtype}", rounded, eps, "1"),),
            treatments=(
                Treatment(
                    title="Keep weights and optimizer state in float32, with bfloat16 autocast",
                    changes={
                        knob: (old, "float32")
                        for knob, old in (("param_dtype", weights), ("math_dtype", dtype))
                        if old != "float32"
                    },
                    safety="safe",
                    basis="measured",
                    source=tried,
                    intervention=in_float32(dtype),
                ),
                Treatment(
                    title=f"In an emergency: eps = {short(limits.emergency_eps)}",
                    changes={"eps": (eps, limits.emergency_eps)},
                    safety="risky",
                    basis="measured",
                    source=f"{tried}; {EPSILON_TRIED}; pytorch/pytorch#8860",
                ),
            ),
        )
    ]


def _run(dtype: str) -> Trace:
    return make_trace(
        optimizer="AdamW",
        optimizer_family="adam",
        eps=1e-8,
        param_dtype=dtype,
        state_dtype=dtype,
        math_dtype=dtype,
        tensors=small_gpt(dtype),
    )


RULE = rule.Rule(
    name="epsilon-below-precision",
    needs=("eps", "math_dtype", "optimizer_family"),
    uses=("optimizer", "param_dtype", "scaler"),
    explains=("nonfinite-state", "nan-pulse", "nonfinite-gradient", "divergence", "loss-spike"),
    mechanism=True,
    spares=("sgd",),
    check=check,
    limits=Limits(),
    sick=lambda: _run("float16"),
    healthy=lambda: _run("bfloat16"),
    doc=__doc__ or "",
)
