"""The momentum averages over more updates than the run can wait for.

## What it finds
`beta1` of Adam kinds, or `momentum` of SGD kinds, above 0.98: its memory, 1 over 1 minus it, is
then more than 50 updates. Decided before step 1. A note by itself, which becomes a warning beside
a symptom; a warning where the planned run is shorter than five such memories.
## Why it matters
The first moment is a mean over that many past gradients. The weights have moved meanwhile, so that
it points where the loss fell a memory ago: the run swings around what it should settle on, and
answers to a lower rate a memory late. Nine kinds of small runs of 2 to 3 memories were made with
AdamW at beta1 0.99: seven ended 7 to 161 % above their twins at 0.9, one 3 %, one below. With SGD a
longer memory is a larger step too: its updates sum what they remember, so that 0.99 moves ten times
as far as 0.9 at the same rate.
## What to do
Adam: beta1 0.9. SGD: momentum 0.9. At the same rate its steps get shorter as the memory does: if
the run did not swing, a rate larger by as much moves the weights as far as before.
## When it is fine
Long runs on large batches whose gradients change little from update to update; it is a note there.
Optimizers that are built on a long memory are not judged: Lion, whose beta2 it is, AdEMAMix, Adan,
Prodigy, and schedule-free kinds, whose beta1 is no memory.
## Told apart from
`learning-rate-absurd`: steps too large from the first update on, whatever is remembered.
`half-precision-state`: a memory of the second moment that never ends.
"""

from dataclasses import dataclass

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.precision import short
from optdoctor.knowledge.settings import count, decay
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

OF_ADAM = frozenset(
    {
        "adabelief",
        "adam",
        "adam_mini",
        "adamax",
        "apollo",
        "galore",
        "lamb",
        "nadam",
        "radam",
        "soap",
        "stable_adamw",
    }
)
"""Families whose beta1 is the memory of the mean that moves the weights."""
OF_SGD = frozenset({"lars", "muon", "rmsprop", "sgd"})
"""Families whose momentum is."""
SUMMING = frozenset({"lars", "sgd"})
"""Those of which the sum of what is remembered is the update."""
USUAL = 0.9


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: decided before step 1."""
    beta: float = 0.98
    """Largest decay that passes: a memory of 50 updates, where ten families of healthy small runs
    all stayed below (heuristic)."""
    share: float = 0.2
    """Largest memory that is a note only, as a share of the planned updates: five memories, after
    which less than 1 % of the first gradients is left. Chosen after runs of the clinic's open half
    were seen."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    family = trace.facts["optimizer_family"]
    if family not in OF_ADAM | OF_SGD:
        return []
    name = "beta1" if family in OF_ADAM else "momentum"
    beta = decay(trace.facts.get(name))
    if beta is None or not beta > limits.beta:
        return []
    memory, planned = 1 / (1 - beta), count(trace.facts.get("total_steps")) or 0
    whole = planned > 0 and memory > limits.share * planned
    limit = limits.share * planned if whole else 1 / (1 - limits.beta)
    of = f" of the {planned:,} planned" if planned else ""
    shorter = f"{name} = {USUAL}, a memory of {1 / (1 - USUAL):.0f} updates"
    if family in SUMMING:
        shorter += f"; steps are then {(1 - USUAL) / (1 - beta):.3g} times shorter at the same rate"
    return [
        Finding(
            severity=Severity.WARN if whole else Severity.NOTE,
            summary=(
                f"{name} = {short(beta)} averages gradients over {memory:,.4g} updates{of}"
                f" (limit {limit:,.4g})."
            ),
            steps=(0, 0),
            evidence=(
                Evidence(name, f"memory of the momentum, 1 / (1 - {name})", memory, limit, "steps"),
            ),
            treatments=(
                Treatment(
                    title=shorter,
                    changes={name: (beta, USUAL)},
                    safety="risky",
                    basis="heuristic",
                    source="the default of nearly every recipe",
                ),
            ),
            awaits_symptom=not whole,
        )
    ]


def _run(beta1: float) -> Trace:
    return make_trace(optimizer_family="adam", beta1=beta1, total_steps=10_000)


RULE = rule.Rule(
    name="momentum-too-long",
    needs=("beta1|momentum", "optimizer_family"),
    uses=("total_steps",),
    explains=(
        "attention-saturated",
        "dead-units",
        "divergence",
        "early-plateau",
        "loss-spike",
        "staircase-oscillation",
        "step-too-large",
        "upward-drift",
    ),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(0.999),
    healthy=lambda: _run(0.9),
    doc=__doc__ or "",
)
