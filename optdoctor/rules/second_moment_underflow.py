"""Adam's second moment is zero where the first moment is not.

## What it finds
Entries whose mean of squared gradients (the second moment) is exactly 0 although their mean of
gradients (the first) is not: the number format of the optimizer's state cannot hold so small a
square. It is told where they are more than `share` of all entries in more than `passing` sampled
updates in a row, or in the one in which the run breaks. Critical
once the loss or an update is not finite, a warning before. How bad it can get follows from dtype,
beta2 and epsilon: the largest gradient whose square still rounds to 0 in the state, over the
epsilon that the update's dtype keeps, is how many learning rates an entry can move in one step.
## Why it matters
Adam and its kin (NAdam, RAdam, AdaBelief, LAMB, Adan, AdEMAMix, GaLore and more) divide the first
moment by sqrt(second moment) + epsilon. With the second moment at 0 only
epsilon is left: 1e-8 allows steps of 546,000 learning rates, and in float16 arithmetic it is 0
itself. The weights overflow inside the step; the gradient of that step is still finite, and the
loss follows one step later.
## What to do
Keep weights and optimizer state in float32 and run the forward pass in bfloat16 autocast. In an
emergency restart with epsilon 1e-4. An epsilon of 1e-6 is not proposed: it removes the NaN and
leaves steps of up to 5,460 learning rates; 4 of 4 small runs with it ended at more than twice the
loss of their float32 twins. A clamp of the second moment at 1e-8 is not proposed: in float16 it
clamps at 0 and changes nothing, in float32 it makes the steps of small gradients too small.
## When it is fine
Rows of an embedding that no batch has used: both moments are zero; they are not counted. float32
and bfloat16 state: a gradient small enough to vanish there moves its weight by nothing. With a
large epsilon (1e-4 in float16) the step is bounded and the finding is a note. Moments held in
fewer bits (8-bit and 4-bit kinds) have zeros where a block holds far larger entries: up to 4.8 % in
healthy small runs, so they are not judged; nor are moments kept as rows and columns (Adafactor,
CAME) or as sizes in place of squares (Adamax).
## Told apart from
`epsilon-below-precision`: known before step 1; it looks at epsilon, not at the state.
`nan-pulse`: what the loss shows one step later.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.rows import spans
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.moments import PROJECTED, ROOTED, why_uncounted
from optdoctor.knowledge.precision import FORMATS, round_to, short
from optdoctor.knowledge.remedies import float32_state
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Trace

FOLK_CLAMP = 1e-8
"""Where the second moment is often advised to be clamped: refused, as it is 0 in float16."""
TRIED = "4 of 4 small float16 runs recovered: tests/clinic/test_underflow_trainings.py"


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 2
    """Two samples: one alone can be a flicker, and the run may break in the second."""
    share: float = 0.002
    """Largest share of zeroed entries of a healthy run: 9 kinds of small healthy runs had none at
    all, 4 sick ones 67 %."""
    passing: int = 2
    """Most samples in a row above `share` that pass as a flicker of a healthy start, unless the run
    breaks within them: float16 runs with scaled losses showed one at step 1 and trained well."""
    harmless_step: float = 1.0
    """Largest step of a zeroed entry, in learning rates, that is no harm: Adam's usual step."""
    bounded_step: float = 100.0
    """Largest step, in learning rates, that is worth a note only: epsilon 1e-4 in float16 allows 55
    and recovered 4 of 4 small runs, 1e-6 allows 5,460 and recovered none."""
    emergency_eps: float = 1e-4
    """The epsilon to restart with where float32 is out of reach."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    form = trace.facts.get("moment2_form")
    if why := why_uncounted(form):
        return Abstain(why)
    if form == "rooted":
        return Abstain(f"second moments are held {ROOTED}")
    eps, beta2 = trace.facts["eps"], trace.facts["beta2"]
    state_dtype = str(trace.facts["state_dtype"])
    math_dtype = str(trace.facts.get("math_dtype") or "float32")
    if not isinstance(eps, float) or not isinstance(beta2, float):
        return Abstain(f"eps {eps} and beta2 {beta2} are no numbers")
    if not 0 <= eps < math.inf or not 0 <= beta2 < 1:
        return Abstain(f"no step size follows from eps {eps} and beta2 {beta2}")
    if state_dtype not in FORMATS or math_dtype not in FORMATS:
        return Abstain(f"state in {state_dtype}, update in {math_dtype}: no known number format")
    left = round_to(eps, math_dtype) or 0.0
    step = _largest_gradient(state_dtype, beta2) / left if left > 0 else math.inf
    if step <= limits.harmless_step:
        return []
    zero = trace.series["moment2_zero"]
    of_dtype = np.array([t.state_dtype in ("", state_dtype) for t in trace.tensors], bool)  # [P]
    zeroed, measured = _counts(trace, of_dtype)
    share = zeroed / np.maximum(measured, 1)  # [T]
    broke = _broke_at(trace)
    stretches = _lasting(share > limits.share, zero.steps, broke, limits)
    if not stretches:
        return []
    first, last = stretches[0][0], stretches[-1][1]
    worst = max((row for a, b in stretches for row in range(a, b + 1)), key=lambda r: share[r])
    by_tensor = np.where(of_dtype, np.asarray(zero.values[first], np.float64), np.nan)
    harmed = broke is not None and broke >= zero.steps[first]
    bounded = step <= limits.bounded_step
    severity = Severity.NOTE if bounded else Severity.CRITICAL if harmed else Severity.WARN
    about = "About " if trace.has_samples else ""
    counted = f"{about}{round(zeroed[first]):,} of {measured[first]:,} second-moment entries are"
    if form == PROJECTED:
        counted = "Entries of the projected second moments are"
    what = f"entries of {state_dtype} second moment zero, first moment not, at step"
    evidence = [
        _percent(f"{what} {zero.steps[first]}", share[first], limits),
        _step_allowed(eps, math_dtype, step, limits),
    ]
    if round_to(FOLK_CLAMP, state_dtype) == 0:
        clamp = f"a clamp at {short(FOLK_CLAMP)}, which therefore changes nothing"
        kept = f"what {state_dtype} keeps of {clamp}"
        evidence.append(Evidence("state_dtype", kept, 0.0, FOLK_CLAMP, "1"))
    if worst != first:
        evidence.insert(1, _percent(f"{what} {zero.steps[worst]}, the worst", share[worst], limits))
    return [
        Finding(
            severity=severity,
            summary=(
                f"{counted} zero in"
                f" {state_dtype} while the first moment is not:"
                f" {share[first] * 100:.3g} % (limit {limits.share * 100:.2g} %)."
            ),
            steps=(int(zero.steps[first]), int(zero.steps[last])),
            tensors=trace.worst(by_tensor, by_tensor > limits.share),
            evidence=tuple(evidence),
            treatments=_treatments(state_dtype, eps, limits, bounded),
        )
    ]


def _lasting(
    sick: NDArray[np.bool_], steps: IntArray, broke: int | None, limits: Limits
) -> list[tuple[int, int]]:
    """Stretches of sick samples that are long enough, or that the run broke in."""
    breaking = -1 if broke is None else int(np.searchsorted(steps, broke, side="right")) - 1
    return [
        (first, last)
        for first, last in spans(sick)
        if last - first + 1 > limits.passing or first <= breaking <= last
    ]


def _broke_at(trace: Trace) -> int | None:
    """The first step at which an update was not finite, or the loss for good; None if none was.

    A loss that turns finite again, or is not finite while the updates are, is another's fault.
    """
    updates: list[int] = []
    onset = None
    if "loss" in trace.series and not math.isfinite(trace.series["loss"].values[-1]):
        loss = trace.series["loss"]
        finite = np.flatnonzero(loss.bad == 0)
        row = int(finite[-1]) + 1 if finite.size else 0
        onset = int(loss.first_bad[row])
    if "update_nonfinite" in trace.series:
        update = trace.series["update_nonfinite"]
        broken = np.nansum(np.asarray(update.values, np.float64), axis=1) > 0  # [T]
        updates = update.steps[broken][:1].tolist()
        if onset is not None and not updates and (update.steps >= onset).any():
            onset = None
    return min([*updates, *([onset] if onset is not None else [])], default=None)


def _percent(what: str, share: float, limits: Limits) -> Evidence:
    return Evidence("moment2_zero", what, float(share) * 100, limits.share * 100, "%")


def _step_allowed(eps: float, math_dtype: str, step: float, limits: Limits) -> Evidence:
    if math.isinf(step):
        what = f"eps = {short(eps)} as {math_dtype} keeps it, by which such an entry is divided"
        return Evidence("eps", what, 0.0, eps, "1")
    what = f"the most that eps = {short(eps)} lets such an entry move in one step"
    return Evidence("eps", what, step, limits.harmless_step, "learning rates")


def _largest_gradient(state_dtype: str, beta2: float) -> float:
    """The largest gradient g whose (1 - beta2) g^2 still rounds to 0: half the smallest number.

    Its first moment, a mean of gradients, is at most g: the entry moves at most lr * g / eps.
    """
    return math.sqrt(FORMATS[state_dtype].smallest / 2 / (1 - beta2))


def _counts(
    trace: Trace, among: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """[T] each: elements that are zeroed, and elements measured, at each sample."""
    values = np.asarray(trace.series["moment2_zero"].values, np.float64)  # [T, P]
    counted = np.isfinite(values) & among
    zeroed = np.where(counted, values * trace.num_elements, 0).sum(axis=1)
    return zeroed, np.where(counted, trace.num_elements, 0).sum(axis=1)


def _treatments(
    state_dtype: str, eps: float, limits: Limits, bounded: bool
) -> tuple[Treatment, ...]:
    float32 = float32_state(state_dtype, "measured", TRIED)
    larger = Treatment(
        title=f"In an emergency: eps = {short(limits.emergency_eps)}",
        changes={"eps": (eps, limits.emergency_eps)},
        safety="risky",
        basis="measured",
        source=f"{TRIED}; pytorch/pytorch#8860",
    )
    offered = (float32,) if state_dtype != "float32" else ()
    return offered if bounded or eps >= limits.emergency_eps else (*offered, larger)


def _run(dtype: str, zero: float) -> Trace:
    tensors = small_gpt(dtype, math_dtype="float32")
    share = np.zeros((20, len(tensors)), np.float32)
    share[5:, 2:4] = zero
    return make_trace(
        loss=falling_loss(50),
        moment2_zero=share,
        state_dtype=dtype,
        math_dtype="float32",
        eps=1e-8,
        beta2=0.999,
        optimizer_family="adam",
        tensors=tensors,
    )


RULE = rule.Rule(
    name="second-moment-underflow",
    needs=("moment2_zero", "state_dtype", "eps", "beta2"),
    uses=("math_dtype", "loss", "update_nonfinite", "moment2_form"),
    explains=("nonfinite-state", "nan-pulse", "nonfinite-gradient", "divergence", "loss-spike"),
    mechanism=True,
    spares=("sgd",),
    check=check,
    limits=Limits(),
    sick=lambda: _run("float16", 0.6),
    healthy=lambda: _run("float32", 0.6),
    doc=__doc__ or "",
)
