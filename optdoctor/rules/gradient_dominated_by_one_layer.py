"""One layer holds nearly all of the gradient's norm.

## What it finds
The layer with the largest share of the squared norm of the gradient that the optimizer consumed,
where that share is above `share` in each of the last `lasting` samples and the same layer has it
each time; of networks with `layers` trained layers or more. Always a note.
## Why it matters
Clipping by the global norm is then clipping by that layer alone: where it jumps, the steps of all
others shrink with it, and the logged norm says nothing of them; a norm that is nearly always above
the clip may be its doing alone. In large language models it is often the embedding, whose rare rows
bring jumps.
## What to do
Nothing, unless the loss spikes when that layer does. Then watch its norm by itself, or clip it in a
group of its own.
## When it is fine
It is common where one layer has a far larger scale, such as a head or a first layer on inputs that
are not normalized, and Adam divides such differences out.
## Told apart from
`gradient-outlier`: one batch whose gradient stands out. `layer-learning-rate-mismatch`: the update
of one layer stands out, whatever its gradient does.
"""

from dataclasses import dataclass

import numpy as np

from optdoctor import rule
from optdoctor.curves.layers_in_order import layers_in_order
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

COMPLETE = 0.9
"""Share of the trained tensors whose gradient a sample must hold."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 16
    """As many samples as it must last."""
    share: float = 0.95
    """Largest share of the squared norm that one layer may have for long: heuristic. 7 healthy
    small trainings of 4 layers or more had 0.61 at most."""
    layers: int = 4
    """Fewest trained layers: of fewer, one has most of anything."""
    lasting: int = 16
    """Fewest samples in a row, the newest included, that it lasts."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    gradients = trace.series["grad_rms"]
    layers = layers_in_order(trace)
    if len(layers) < limits.layers:
        return []
    values = np.asarray(gradients.values, np.float64)
    squares = np.where(np.isfinite(values), values, 0.0) ** 2 * trace.num_elements  # [T, P]
    by_layer = np.array([squares[:, tensors].sum(axis=1) for tensors in layers.values()])
    whole = by_layer.sum(axis=0)  # [T]
    trained = [i for tensors in layers.values() for i in tensors]
    seen = np.isfinite(values[:, trained]).mean(axis=1) >= COMPLETE
    counted = seen & (whole > 0) & np.isfinite(whole)
    if not counted.any():
        return []
    shares, steps = by_layer[:, counted] / whole[counted], gradients.steps[counted]  # [L, T]
    top = int(shares[:, -1].argmax())
    within = np.flatnonzero(~(shares[top] > limits.share))
    first = int(within[-1]) + 1 if within.size else 0
    if len(steps) - first < limits.lasting:
        return []
    name = list(layers)[top]
    typical = float(np.median(shares[top, first:]))
    return [
        Finding(
            severity=Severity.NOTE,
            summary=(
                f"{name} has {100 * typical:.4g} % of the gradient's squared norm (limit"
                f" {100 * limits.share:.3g} %), 1 of {len(layers)} layers, since step"
                f" {steps[first]}."
            ),
            steps=(int(steps[first]), int(steps[-1])),
            tensors=tuple(trace.tensors[i].name for i in layers[name]),
            evidence=(
                Evidence(
                    "grad_rms",
                    f"share of {name} in the squared norm of the gradient, median of"
                    f" {len(steps) - first} samples",
                    100 * typical,
                    100 * limits.share,
                    "%",
                ),
            ),
            treatments=(
                Treatment(
                    title=f"If the loss spikes when {name} does, clip its gradient in a group of"
                    " its own",
                    when="check",
                    safety="manual",
                    basis="heuristic",
                    source="a global norm is that of its largest part",
                ),
            ),
        )
    ]


def _run(factor: float) -> Trace:
    """Six layers alike in twenty samples, and the first at that many times the rest in thirty."""
    tensors = tuple(TensorInfo(f"net.{i}.weight", (64, 64), order=i) for i in range(6))
    gradients = np.full((50, len(tensors)), 1e-3)
    gradients[20:, 0] *= factor
    return make_trace(grad_rms=gradients, tensors=tensors)


RULE = rule.Rule(
    name="gradient-dominated-by-one-layer",
    needs=("grad_rms",),
    explains=("clipping-not-felt",),
    check=check,
    limits=Limits(),
    sick=lambda: _run(100.0),
    healthy=lambda: _run(1.0),
    doc=__doc__ or "",
)
