"""The clip threshold is far below the usual gradient, and the optimizer feels it.

## What it finds
Of optimizers whose step is as long as the gradient (SGD, with momentum or without), the factor by
which clipping shortens the gradient: the mean of its logarithm over the last `window` updates whose
rate is half of the peak or more. Above `depth`, ten times on average, the finding is a note; it is
a warning where such updates also move the weights by less than `step` of their size. Of a log,
which has no weights, that is the most that rate, norm and momentum can move weights of a usual size
by.
## Why it matters
Clipping is there for outliers. Below every gradient it sets the length of all steps: the rate acts
as if it were divided by the factor, and a loss that would fall in hundreds of updates takes
thousands. Adam and its kin divide the size out again and do not feel it.
## What to do
Choose a threshold that most updates pass, such as five times the median of the gradient norm before
clipping. To double a threshold that is a hundred times too low is not enough.
## When it is fine
Recipes that take steps of one length on purpose, with a rate that was chosen for it, as language
models trained by SGD at a rate of 20 and a threshold of 0.25. Their steps are not short.
## Told apart from
`step-too-small`: short steps of any cause. A logged gradient norm above the threshold is no fault:
it is taken before the clip.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.rows import lookup, spans
from optdoctor.curves.step_sizes import Floats, step_sizes
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.in_a_log import least_size, longer, steps_by_gradient, weights
from optdoctor.store import FloatArray, IntArray
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace, small_gpt
from optdoctor.trace import Trace

FEELS = frozenset({"sgd", "asgd"})
"""Families whose step is as long as the gradient that they are given."""
LARGEST = 1e9
"""Threshold above which nothing is clipped, or a log is damaged."""
FEW = 30
"""Updates below which a mean of their factors says little: they are like each other."""
LEAST = 10
"""Rows below which it does, however far they lie apart."""
ROOMY = 5.0
"""Multiple of the median norm before clipping that a threshold may be. The norms of a run that
crawls are smaller than those it would have: at twice their median small runs ended 42 % worse than
healthy ones, at four times and more as well as these."""
HALF = 0.5
"""Of the peak so far: in the tail of a schedule steps are short on purpose."""
SPARSE = 10
"""Norms before clipping for each update of which the norm after it is known, from which the latter
are samples."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 10
    """Fewest gradient norms; where each update has one, 30 are needed."""
    window: int = 50
    """Updates over which the factor is averaged, the newest ones."""
    depth: float = 1.0
    """Largest mean of the decadic logarithm of the factor by which clipping shortens: heuristic.
    Healthy families elsewhere had 0.12 on average and 0.5 at most."""
    step: float = 0.001
    """Part of the weights that an update moves, below which steps are short: heuristic. 4 healthy
    small trainings by SGD moved 0.0016 or more in the middle."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    family = trace.facts["optimizer_family"]
    if family not in FEELS:
        return []
    known = _factors(trace)
    if known is None:
        return Abstain("neither the threshold nor the norm after clipping is known")
    steps, factors = known
    full = _at_full_rate(trace, steps)
    steps, factors = steps[full], factors[full]
    enough = _enough(steps)
    if enough is None:
        if trace.series["grad_norm"].rows >= SPARSE * len(steps):
            return Abstain(f"what the clip did is known of {len(steps)} updates near the peak rate")
        return []
    deep = _trailing_means(np.log10(factors), limits.window, enough) > limits.depth
    if not deep[-1]:
        return []
    late = slice(-limits.window, None)
    depth = float(np.log10(factors[late]).mean())
    since = spans(deep)[-1][0]
    first, last = int(steps[0 if since <= enough else since]), int(steps[-1])
    step = _step(trace, first, last)
    is_short = step is not None and step < limits.step
    clipped = 100 * float((factors[late] > 1).mean())
    told = [
        Evidence(
            "grad_norm",
            f"mean logarithm of the factor by which clipping shortens {len(factors[late])} updates",
            depth,
            limits.depth,
            "decades",
        ),
        Evidence("grad_norm", "updates among them that are clipped", clipped, 50.0, "%"),
    ]
    if step is not None:
        what = "part of the weights that an update moves there, median"
        if not trace.tensors:
            what = "part of the weights that an update can move there at most, median"
        channel = "update_rms" if trace.tensors else "grad_norm"
        told.append(Evidence(channel, what, 100 * step, 100 * limits.step, "%"))
    return [
        Finding(
            severity=Severity.WARN if is_short else Severity.NOTE,
            summary=(
                f"Clipping has shortened the gradient {10**depth:.3g} times on average (limit"
                f" {10**limits.depth:.3g}) since step {first}, and"
                f" {trace.facts.get('optimizer') or 'SGD'} feels it."
            ),
            steps=(first, last),
            evidence=tuple(told),
            treatments=_treatments(trace, first, last),
            awaits_symptom=not is_short,
        )
    ]


def _factors(trace: Trace) -> tuple[IntArray, Floats] | None:
    """Steps, and how many times longer the gradient was before the clip, 1 or more.

    By both norms at sampled updates; by the threshold at all of them where those are too few.
    """
    norms, threshold = trace.series["grad_norm"], trace.facts.get("max_grad_norm")
    found: tuple[IntArray, Floats] | None = None
    if "grad_norm_used" in trace.series:
        used = trace.series["grad_norm_used"]
        found = _shortened(used.steps, lookup(norms, used.steps), used.values)
    if found is not None and _enough(found[0]) is not None:
        return found
    if isinstance(threshold, int | float) and 0 < threshold < LARGEST:
        return _shortened(norms.steps, norms.values, np.full(len(norms.steps), float(threshold)))
    return found


def _shortened(steps: IntArray, before: FloatArray, after: FloatArray) -> tuple[IntArray, Floats]:
    wide, narrow = np.asarray(before, np.float64), np.asarray(after, np.float64)
    known = np.isfinite(wide) & np.isfinite(narrow) & (wide > 0) & (narrow > 0)
    return steps[known], np.maximum(wide[known] / narrow[known], 1.0)


def _enough(steps: IntArray) -> int | None:
    """The first row up to which there are enough of them, over enough updates."""
    rows = np.flatnonzero(steps - steps[:1] >= FEW - 1)
    row = max(int(rows[0]), LEAST - 1) if rows.size else len(steps)
    return row if row < len(steps) else None


def _trailing_means(values: Floats, window: int, enough: int) -> Floats:
    """[T]: mean of the last values up to each; NaN before there are enough."""
    means = np.full(len(values), np.nan)
    for row in range(enough, min(window - 1, len(values))):
        means[row] = values[: row + 1].mean()
    if len(values) >= window:
        means[window - 1 :] = sliding_window_view(values, window).mean(axis=1)
        means[:enough] = np.nan
    return means


def _at_full_rate(trace: Trace, steps: IntArray) -> NDArray[np.bool_]:
    """Updates whose rate is at least half of the highest so far; all where no rate is known."""
    if "lr" not in trace.series:
        return np.ones(len(steps), bool)
    rates = trace.series["lr"]
    peak = np.fmax.accumulate(np.where(np.isfinite(rates.high), rates.high, 0.0))
    at = np.clip(np.searchsorted(rates.steps, steps), 0, len(rates.steps) - 1)
    full: NDArray[np.bool_] = rates.values[at] >= HALF * peak[at]
    return full


def _step(trace: Trace, first: int, last: int) -> float | None:
    """The part of the weights that an update between those steps moves, in the middle; of a log
    what it can move at most, with all gradients in the memory of the momentum alike."""
    if not {"update_rms", "param_rms"} <= set(trace.series):
        return None if trace.tensors else _most(trace, first, last)
    sizes = step_sizes(trace)
    inside = (sizes.steps >= first) & (sizes.steps <= last)
    return float(np.median(sizes.ratio[inside])) if inside.any() else None


def _most(trace: Trace, first: int, last: int) -> float | None:
    number = weights(trace)
    if number is None or "lr" not in trace.series:
        return None
    known = steps_by_gradient(trace)
    inside = (known.steps >= first) & (known.steps <= last)
    length = known.rates[inside] * known.norms[inside] * longer(trace.facts.get("momentum"))
    size = least_size(number) * number**0.5
    return float(np.median(length)) / size if inside.any() else None


def _treatments(trace: Trace, first: int, last: int) -> tuple[Treatment, ...]:
    norms, old = trace.series["grad_norm"], trace.facts.get("max_grad_norm")
    inside = (norms.steps >= first) & (norms.steps <= last) & np.isfinite(norms.values)
    new = float(f"{ROOMY * np.median(norms.values[inside]):.2g}")
    is_known = isinstance(old, int | float) and 0 < old < new < LARGEST
    return (
        Treatment(
            title=f"Clip at {new:.2g}, {ROOMY:g} times the median of the norm before clipping",
            changes={"max_grad_norm": (old, new)} if is_known else {},
            when="next",
            safety="risky",
            basis="heuristic",
            source="it still bounds what stands out, and leaves the usual update as it is",
        ),
    )


def _run(threshold: float) -> Trace:
    """SGD whose gradients, of norm 1 in the middle, are clipped from the eightieth update on."""
    norms, tensors = gradient_norms(160), small_gpt()
    used = norms.copy()
    used[80:] = np.minimum(norms[80:], threshold)
    ratio = 0.005 * used / norms
    return make_trace(
        optimizer="SGD",
        optimizer_family="sgd",
        max_grad_norm=threshold,
        grad_norm=norms,
        grad_norm_used=used,
        loss=falling_loss(160),
        update_rms=np.repeat(0.5 * ratio[:, None], len(tensors), axis=1),
        param_rms=np.full((160, len(tensors)), 0.5),
        tensors=tensors,
    )


RULE = rule.Rule(
    name="clipping-too-low",
    needs=("grad_norm", "optimizer_family"),
    uses=(
        *("grad_norm_used", "lr", "max_grad_norm", "momentum", "num_parameters", "optimizer"),
        *("param_rms", "update_rms"),
    ),
    explains=("early-plateau", "step-too-small"),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(0.01),
    healthy=lambda: _run(2.0),
    doc=__doc__ or "",
)
