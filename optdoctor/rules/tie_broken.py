"""Weights that the model's configuration calls one are two tensors.

## What it finds
Pairs that a transformers model declares tied, as its input and its output embedding, and that share
neither tensor nor storage, counted when watching begins. Two frozen tensors that hold the same
values, and parts that peft trains as copies of their own, are not counted.
## Why it matters
The two drift apart: each is trained on half of the gradient that the tied weight was to get, and
where one of them was made anew it begins from chance. The library ties them again when a checkpoint
is loaded, and what one of them had learnt is then gone.
## What to do
Call `model.tie_weights()` after whatever made new tensors: materializing from the meta device,
sharding, resizing, replacing a head. If two tensors are wanted, set `tie_word_embeddings` to False,
so that the checkpoint keeps both.
## When it is fine
There is none that the configuration could not say.
## Told apart from
`weights-held-twice`: one tensor, listed twice. `parameters-without-optimizer`: a tensor that nobody
trains, as one end of a broken tie may be.
"""

from dataclasses import dataclass

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

MANY = 1e9
"""Ties that no model has: the number is damaged."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: decided before step 1."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    broken = trace.facts["ties_broken"]
    if isinstance(broken, bool) or not isinstance(broken, int | float):
        return []
    if not 0 < broken < MANY:
        return []
    pairs = f"{broken:g} pair{'s'[: broken != 1]}"
    return [
        Finding(
            severity=Severity.WARN,
            summary=f"{pairs} of weights that the configuration calls tied are two tensors each.",
            steps=(0, 0),
            evidence=(
                Evidence("ties_broken", "ties that are broken", float(broken), 0.0, "pairs"),
            ),
            treatments=(
                Treatment(
                    title="Call model.tie_weights(), then build the optimizer; or, if two tensors"
                    " are wanted, set tie_word_embeddings to False",
                    when="next",
                    safety="manual",
                    basis="literature",
                    source="pytorch/torchtitan#3775, facebookresearch/lingua#75",
                ),
            ),
        )
    ]


def _run(broken: int) -> Trace:
    return make_trace(ties_broken=broken, tensors=small_gpt())


RULE = rule.Rule(
    name="tie-broken",
    needs=("ties_broken",),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(1),
    healthy=lambda: _run(0),
    doc=__doc__ or "",
)
