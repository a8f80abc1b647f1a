"""Adam's second moment has overflowed: such entries never move again.

## What it finds
The share of second-moment entries that are infinite, NaN or above half the largest number of their
dtype, among tensors of `state_dtype`. It fires where any are in more than `passing` samples in a
row, and only where no gradient was NaN or infinite by then: such a gradient puts NaN into the
second moment too, and is another's fault.
## Why it matters
float16 ends at 65504, and the second moment holds squares: a gradient of 8,100 overflows it at once
with beta2 0.999, one of 256 if it lasts. Adam divides by its root, and the update is 0. Infinity
times beta2 is infinity: the entry stays frozen for the rest of the run, while its gradient, its
first moment and the loss look ordinary.
## What to do
Keep weights and optimizer state in float32, with bfloat16 autocast for the forward pass, and
restart from before the first such step. Look at the gradients as the optimizer sees them: squares
that large come from a loss scale that was not taken out again, or a loss that was summed.
## When it is fine
Never by itself; the number of entries decides. Up to `few` of all entries it is a note.
float32 and bfloat16 hold squares of 1e19: there it takes gradients that no healthy run has.
Moments held in fewer bits or as rows and columns are not judged: they are decoded to be looked at.
## Told apart from
`second-moment-underflow`: squares that are too small; the step is too large, not 0.
`nonfinite-gradient`: the gradient was not finite first.
`update-lost-to-rounding`: the step is not 0, the weights are too coarse for it.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.rows import spans
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.moments import PROJECTED, why_uncounted
from optdoctor.knowledge.precision import FORMATS, Format, short
from optdoctor.knowledge.remedies import float32_state
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Trace

COUNTS = ("grad_nonfinite_raw", "grad_nonfinite")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 3
    """As many samples as have to agree."""
    healthy: float = 0.0
    """Share of saturated entries of a healthy run: a physical limit, no entry may overflow."""
    passing: int = 2
    """Most samples in a row with such entries that pass: one that is above half of the largest
    number, and still finite, can come down again."""
    few: float = 0.01
    """Largest share that is a note only: so few frozen weights are made up for by the rest."""
    most: float = 0.5
    """Largest share at which the run still learns with the larger part of its weights."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    dtype, form = str(trace.facts["state_dtype"]), trace.facts.get("moment2_form")
    if why := why_uncounted(form):
        return Abstain(why)
    if dtype not in FORMATS:
        return Abstain(f"state in {dtype}: no known number format")
    saturated = trace.series["moment2_saturated"]
    of_dtype = np.array([t.state_dtype in ("", dtype) for t in trace.tensors], bool)  # [P]
    values = np.asarray(saturated.values, np.float64)  # [T, P]
    counted = np.isfinite(values) & of_dtype
    elements = np.where(counted, trace.num_elements, 0)
    entries = (np.where(counted, values, 0) * elements).sum(axis=1)  # [T]
    share = entries / np.maximum(elements.sum(axis=1), 1)
    sound = saturated.steps < _first_nonfinite(trace)
    stretches = [
        (first, last)
        for first, last in spans((share > limits.healthy) & sound)
        if last - first + 1 > limits.passing
    ]
    if not stretches:
        return []
    first, last = stretches[0][0], stretches[-1][1]
    worst = max((row for a, b in stretches for row in range(a, b + 1)), key=lambda r: share[r])
    severity = Severity.WARN if share[worst] > limits.few else Severity.NOTE
    severity = Severity.CRITICAL if share[worst] > limits.most else severity
    about = "About " if trace.has_samples else ""
    counted = f"{about}{max(round(entries[first]), 1):,} of {elements[first].sum():,}"
    counted += " second-moment entries"
    if form == PROJECTED:
        counted = f"{about}{share[first] * 100:.3g} % of the projected second-moment entries"
    largest = _largest(FORMATS[dtype])
    what = f"of {dtype} second-moment entries infinite or above {short(largest / 2)} at step"
    rows = [first] if worst == first else [first, worst]
    by_tensor = np.where(of_dtype, values[first], np.nan)
    return [
        Finding(
            severity=severity,
            summary=(
                f"{counted} are saturated in {dtype} at step"
                f" {saturated.steps[first]} (limit {limits.healthy:g})."
            ),
            steps=(int(saturated.steps[first]), int(saturated.steps[last])),
            tensors=trace.worst(by_tensor, by_tensor > 0),
            evidence=tuple(
                Evidence(
                    "moment2_saturated",
                    f"{what} {saturated.steps[row]}",
                    share[row] * 100,
                    limits.healthy * 100,
                    "%",
                )
                for row in rows
            ),
            treatments=_treatments(dtype, int(saturated.steps[first])),
        )
    ]


def _first_nonfinite(trace: Trace) -> float:
    """The first step known to have had a gradient that was not finite; infinity if none had."""
    steps: list[float] = []
    for name in COUNTS:
        if name in trace.series:
            series = trace.series[name]
            counts = np.nansum(np.asarray(series.values, np.float64), axis=1)  # [T]
            steps += series.steps[counts > 0].tolist()
    if "first_nonfinite_step" in trace.series:
        first = np.asarray(trace.series["first_nonfinite_step"].values, np.float64)
        steps += first[np.isfinite(first) & (first > 0)].tolist()
    return min(steps, default=math.inf)


def _largest(form: Format) -> float:
    """The largest finite number, 65504 in float16."""
    return math.ldexp(2 - form.step, 2 ** (form.exponent_bits - 1) - 1)


def _treatments(dtype: str, since: int) -> tuple[Treatment, ...]:
    source = "arithmetic: float32 holds the square of every float16 number"
    float32 = float32_state(dtype, "heuristic", source)
    scale = Treatment(
        title=f"Print the gradient norm of step {since} beside the loss scale: is it taken out?",
        when="check",
        safety="manual",
        basis="heuristic",
        source="a loss scale of 65536 multiplies squares by 4.3e9",
    )
    return (float32, scale) if dtype == "float16" else (scale,)


def _run(dtype: str, share: float) -> Trace:
    tensors = small_gpt(dtype, math_dtype="float32")
    saturated = np.zeros((20, len(tensors)))
    saturated[5:, 2:4] = share
    return make_trace(
        loss=falling_loss(50), moment2_saturated=saturated, state_dtype=dtype, tensors=tensors
    )


RULE = rule.Rule(
    name="second-moment-saturated",
    needs=("moment2_saturated", "state_dtype"),
    uses=(*COUNTS, "first_nonfinite_step", "moment2_form"),
    explains=("early-plateau",),
    mechanism=True,
    spares=("sgd",),
    check=check,
    limits=Limits(),
    sick=lambda: _run("float16", 0.6),
    healthy=lambda: _run("float32", 0.0),
    doc=__doc__ or "",
)
