"""A parameter stands more than once in the optimizer's groups: each step moves it more than once.

## What it finds
Trainable tensors that the groups of the optimizer list twice or more. Decided before step 1 from
the table of tensors. A warning where that is true of all trained elements, a note where of a part
until a symptom stands beside it.
## Why it matters
Torch only warns of duplicates in one group, and makes one update for each entry. Over 50 updates
with a constant gradient a weight held twice went 2.0 times as far with Adam, AdamW and plain SGD,
2.2 to 2.3 times with a momentum of 0.9, and 1.4 to 1.5 times with RMSprop and Adagrad; the step
count in the state is doubled, and the loop, foreach and fused paths of torch differ. The learning
rate that was set is not the one that acts.
## What to do
Give the optimizer each parameter once: `model.parameters()` names a tied weight once, while lists
put together from parts name it once a part.
## When it is fine
There is no recipe that lists a parameter twice on purpose; torch announces an error for it.
## Told apart from
`layer-learning-rate-mismatch`: one entry, at a rate of its own. `tie-broken`: two tensors where one
was meant.
"""

from dataclasses import dataclass, replace

from optdoctor import rule
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.settings import positive
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: decided before step 1."""
    share: float = 1.0
    """Share of the trained elements, held more than once, from which it is more than a note: all of
    them, as then the rate of the run is another one than the one set."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    if not trace.tensors:
        return Abstain("no tensors are known")
    trained = positive(trace.facts["num_parameters"])
    if trained is None:
        return []
    given = [t for t in trace.tensors if t.in_optimizer and t.trainable and t.num_elements]
    several = [t for t in given if t.times_held > 1]
    if not several:
        return []
    several.sort(key=lambda t: (-t.times_held, t.order))
    most = several[0].times_held
    share = sum(t.num_elements for t in several) / trained
    whole = share >= limits.share
    verb = "stands" if len(several) == 1 else "stand"
    return [
        Finding(
            severity=Severity.WARN if whole else Severity.NOTE,
            awaits_symptom=not whole,
            summary=(
                f"{len(several)} of {len(given)} trained tensors, {100 * share:.3g} % of the"
                f" trained elements, {verb} up to {most} times in the optimizer (limit 1): each"
                " step moves such a tensor as often."
            ),
            steps=(0, 0),
            tensors=tuple(t.name for t in several),
            evidence=(
                Evidence(
                    "num_parameters",
                    "elements held more than once, of those being trained",
                    share,
                    0.0,
                    "share",
                ),
            ),
            treatments=(
                Treatment(
                    title="Give the optimizer each parameter once",
                    when="next",
                    safety="manual",
                    basis="heuristic",
                    source="tests/rules/test_weights_held_twice.py measures how far such a weight"
                    " goes",
                ),
            ),
        )
    ]


def _run(times: int) -> Trace:
    tensors = tuple(replace(t, times_held=times) for t in small_gpt())
    return make_trace(num_parameters=sum(t.num_elements for t in tensors), tensors=tensors)


RULE = rule.Rule(
    name="weights-held-twice",
    needs=("num_parameters",),
    explains=(
        "step-too-large",
        "dead-units",
        "divergence",
        "loss-spike",
        "early-plateau",
        "nonfinite-gradient",
        "nan-pulse",
    ),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(2),
    healthy=lambda: _run(1),
    doc=__doc__ or "",
)
