"""The forward pass computes with copies of the weights that autocast made once and kept.

## What it finds
Autocast that was on at two updates in a row and cast no weight anew for the second: the doctor's
own small weight gave the same copy again. Told by the first three updates; of trained float32
matrices, the only weights that autocast keeps copies of. Not told of compiled models, which cast in
their graph.
## Why it matters
Autocast casts a float32 weight to 16 bits at its first use and keeps the copy until its outermost
context is left. A context around the whole loop is never left: the optimizer moves the weights, and
the forward pass does not see it. What autocast computes in float32, as norms and embeddings, goes
on learning, so that the loss falls and stays high: a small language model came to 3.9 so, and to
2.6 as it should be.
## What to do
Enter autocast anew for each forward pass and loss, and leave it before the backward pass.
## When it is fine
A forward pass that enters `autocast(enabled=False)` or `cache_enabled=False` of its own has no such
copies; what it does is not seen from outside.
## Told apart from
`update-lost-to-rounding`: the weights themselves stay where they are. `early-plateau`: that the
loss stands, whatever keeps it.
"""

from dataclasses import dataclass

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import TensorInfo, Trace


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """It decides from one fact."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    if trace.facts["casts_kept"] != "yes":
        return []
    trained = [t for t in trace.tensors if t.in_optimizer and t.trainable]
    kept = [t for t in trained if _is_cast(t)]
    if not kept:
        return []
    elements, whole = (sum(t.num_elements for t in some) for some in (kept, trained))
    return [
        Finding(
            severity=Severity.WARN,
            summary=(
                "Autocast is not left between updates and keeps the copies it has made of weights:"
                f" of {elements:,} trained weights in float32 matrices the forward pass need not"
                " see an update."
            ),
            steps=(0, 0),
            tensors=tuple(t.name for t in kept),
            evidence=(
                Evidence(
                    "casts_kept",
                    "trained weights that autocast may hold an old copy of",
                    100 * elements / whole,
                    0,
                    "%",
                ),
            ),
            treatments=(
                Treatment(
                    title="Enter autocast around the forward pass and the loss of each batch alone",
                    safety="manual",
                    source="torch keeps casts of weights until the outermost autocast is left",
                ),
                Treatment(
                    title="Or stay in it and let it cast anew: autocast(..., cache_enabled=False)",
                    safety="manual",
                    source="cache_enabled of torch.autocast; each use of a weight casts it then",
                ),
            ),
        )
    ]


def _is_cast(tensor: TensorInfo) -> bool:
    """What autocast multiplies by in 16 bits: no embedding, no norm, no bias."""
    return tensor.dtype == "float32" and len(tensor.shape) > 1 and tensor.kind != "embedding"


RULE = rule.Rule(
    name="weights-cast-once",
    needs=("casts_kept",),
    explains=("divergence", "early-plateau", "training-loss-floor", "upward-drift"),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: make_trace(casts_kept="yes", tensors=small_gpt("float32")),
    healthy=lambda: make_trace(casts_kept="no", tensors=small_gpt("float32")),
    doc=__doc__ or "",
)
