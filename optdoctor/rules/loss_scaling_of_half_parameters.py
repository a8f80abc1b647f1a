"""A gradient scaler multiplies the loss of weights that are float16 themselves.

## What it finds
A gradient scaler of torch that is on while trained weights of the optimizer are float16. Decided
before step 1. Critical where the optimizer is not fused; a note where it is.
## Why it matters
Gradients have the dtype of their weights, and torch's GradScaler refuses to divide float16 ones:
`scaler.unscale_` raises "Attempting to unscale FP16 gradients", and so does `scaler.step`, which
calls it. So it was at the first update of Adam, AdamW, NAdam, SGD, Adagrad, Adafactor and
bitsandbytes' AdamW in torch 2.13. A fused Adam, AdamW, SGD or Adagrad divides in its own step:
`scaler.step` alone runs. There `scaler.unscale_` still raises, so that a clip by norm can only see
gradients that are multiplied by the scale; and what a loss scale protects in the backward pass the
weights lose again, as they are rounded to float16 at every update.
## What to do
Keep the trained weights in float32 and run the forward pass in float16 autocast: that is what a
scaler is made for. With adapters, cast the trained weights alone. Or train without a scaler in
bfloat16 autocast.
## When it is fine
Frozen weights in float16 under trained ones in float32. Scalers of other makers, as of sharded
trainings or DeepSpeed, divide float16 gradients in a way of their own and are not judged.
## Told apart from
`loss-scale-collapse`: the scaler runs, and finds gradients that are not finite.
`epsilon-below-precision`: what Adam itself does in float16.
"""

from dataclasses import dataclass

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

FUSED = frozenset({"Adagrad", "Adam", "AdamW", "SGD"})
"""Optimizers of torch that have a fused step."""
SEEN = "run with torch 2.13: tests/clinic/test_scaled_half_weights.py"


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: decided before step 1."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    if trace.facts["scaler"] != "on" or trace.facts["param_dtype"] != "float16":
        return []
    half = [t for t in trace.tensors if t.in_optimizer and t.trainable and t.dtype == "float16"]
    trained = [t for t in trace.tensors if t.in_optimizer and t.trainable]
    if trained and not half:
        return []
    elements = sum(t.num_elements for t in half)
    share = 100 * elements / max(sum(t.num_elements for t in trained), 1) if half else 100.0
    fused = _is_fused(trace)
    what = "runs in the fused step alone" if fused else "raises at the first update"
    counted = f"{elements:,} trained weights are" if half else "100 % of the trained weights are"
    return [
        Finding(
            severity=Severity.NOTE if fused else Severity.CRITICAL,
            summary=f"{counted} float16 under a gradient scaler, which {what}.",
            steps=(0, 0),
            tensors=tuple(t.name for t in half),
            evidence=(
                Evidence("param_dtype", "trained weights in float16, with a scaler", share, 0, "%"),
            ),
            treatments=(
                Treatment(
                    title="Keep the trained weights in float32, the forward pass under autocast",
                    changes={"param_dtype": ("float16", "float32")},
                    safety="safe",
                    basis="measured",
                    source=SEEN,
                ),
                Treatment(
                    title="Or train in bfloat16 autocast without a scaler",
                    safety="manual",
                    basis="heuristic",
                    source="bfloat16 has the range of float32: nothing needs a scale",
                ),
            ),
        )
    ]


def _is_fused(trace: Trace) -> bool:
    """Whether the step divides by itself: it computes in float32 and keeps no float32 state."""
    if trace.facts.get("optimizer") not in FUSED or trace.facts.get("math_dtype") != "float32":
        return False
    return trace.facts.get("state_dtype") in (None, "float16")


def _run(dtype: str) -> Trace:
    return make_trace(
        optimizer="AdamW",
        scaler="on",
        param_dtype=dtype,
        state_dtype=dtype,
        math_dtype=dtype,
        tensors=small_gpt(dtype),
    )


RULE = rule.Rule(
    name="loss-scaling-of-half-parameters",
    needs=("scaler", "param_dtype"),
    uses=("optimizer", "math_dtype", "state_dtype"),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run("float16"),
    healthy=lambda: _run("float32"),
    doc=__doc__ or "",
)
