"""Weights or optimizer state are NaN or infinite while the gradients are finite.

## What it finds
Elements of the trained weights that were NaN or infinite when watching began; a sample in which the
update of some weights is NaN or infinite although every element of the gradients of that step is
finite; and second moments that are not finite in such a sample, where a gradient that was not
finite came in before. Saturated moments in float16 are left to `second-moment-saturated`, as are
those that no such gradient explains. Critical unless the last loss is finite, then a warning.
## Why it matters
NaN plus anything is NaN: an element that is not finite never comes back, and a loop that leaves out
updates with a NaN loss does not mend it. A moment that is NaN or infinite outlives the batch that
did it, and a checkpoint holds it too. While only entries are hit that the batch does not use, as
rows of an embedding, the loss looks sound until one is used.
## What to do
Go back to a checkpoint whose weights and optimizer state are both finite; weights alone are not
enough. Before each update look at the gradients, not at the loss, and leave the update out where
one is not finite. Where it began with finite gradients and a finite start, look at the update
itself: an epsilon that is 0 in the dtype, a rate that is not finite, weights that overflow.
## When it is fine
Never for weights that are used: NaN times zero is NaN. A mask of minus infinity belongs into a
buffer, not among what is trained. An update that a gradient scaler leaves out changes neither
weights nor state and is not counted.
## Told apart from
`nonfinite-gradient`: the gradient of that very step is not finite; it is the origin then.
`second-moment-underflow`, `epsilon-below-precision`: why an update from finite gradients is NaN.
`second-moment-saturated`: moments overflowed by finite gradients; weights stay finite.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.samples import at_samples
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.remedies import go_back
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Trace

COUNTS = ("grad_nonfinite_raw", "grad_nonfinite")
"""Elements of gradients that are not finite, before a clip and after it."""
ALL = " and the optimizer state too: what is NaN there stays NaN"


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 1
    """One sample is enough: NaN is a fact, not a statistic."""


class _Seen(NamedTuple):
    """Samples with finite gradients in which something else is not finite."""

    first: int
    last: int
    weights: NDArray[np.float64]  # [P], elements of the update at the first
    moments: NDArray[np.float64]  # [P], share of the second moments at the first
    gradient: int | None
    """The step before it at which a gradient was not finite, where one is known."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    before = _at_start(trace)
    seen = _seen(trace)
    first = last = trace.steps[0]
    names: tuple[str, ...] = ()
    if seen is not None:
        hit = np.where(seen.weights > 0, seen.weights, seen.moments * trace.num_elements)
        names = trace.worst(hit, hit > 0)
        first, last = first if before else seen.first, seen.last
        summary = _word_of_sample(seen, names)
    elif not before:
        return []
    if before:
        summary = _word_of_start(trace, before)
    return [
        Finding(
            severity=Severity.WARN if _goes_on(trace, first) else Severity.CRITICAL,
            summary=summary,
            steps=(first, last),
            tensors=names,
            evidence=(*_of_start(before), *_of_samples(seen)),
            treatments=_treatments(trace, first, seen),
        )
    ]


def _at_start(trace: Trace) -> int:
    """Elements of the weights that were not finite when watching began."""
    count = trace.facts.get("weights_nonfinite")
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count < 2**53:
        return 0
    return count


def _seen(trace: Trace) -> _Seen | None:
    steps = _samples(trace)
    counted = [at_samples(trace, name, steps) for name in COUNTS if name in trace.series]
    if not counted:
        return None
    gradients = np.stack(counted)  # [channels, T, P]
    spoiled = (gradients > 0).any(axis=(0, 2))
    finite = np.isfinite(gradients).any(axis=(0, 2)) & ~spoiled
    gradient = _first_gradient(trace, steps[spoiled])
    weights = _above_zero(at_samples(trace, "update_nonfinite", steps))
    moments = _above_zero(at_samples(trace, "moment2_saturated", steps))
    moments[:, [t.state_dtype == "float16" for t in trace.tensors]] = 0
    moments[steps <= (math.inf if gradient is None else gradient)] = 0
    ill = finite & ((weights > 0) | (moments > 0)).any(axis=1)
    if not ill.any():
        return None
    rows = np.flatnonzero(ill)
    first, last = int(steps[rows[0]]), int(steps[rows[-1]])
    earlier = gradient if gradient is not None and gradient < first else None
    return _Seen(first, last, weights[rows[0]], moments[rows[0]], earlier)


def _samples(trace: Trace) -> IntArray:
    """Steps at which updates or moments were looked at."""
    names = ("update_nonfinite", "moment2_saturated")
    kept = [trace.series[name].steps for name in names if name in trace.series]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *kept]))


def _above_zero(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isfinite(values) & (values > 0), values, 0.0)


def _first_gradient(trace: Trace, spoiled: IntArray) -> int | None:
    """The first step known to have had a gradient that was not finite."""
    known = spoiled.tolist()
    if "first_nonfinite_step" in trace.series:
        first = np.asarray(trace.series["first_nonfinite_step"].values, np.float64)
        known += [int(step) for step in first[np.isfinite(first) & (first > 0)]]
    return min(known, default=None)


def _goes_on(trace: Trace, since: int) -> bool:
    """Whether the newest loss is of a later step and finite."""
    if "loss" not in trace.series or not trace.series["loss"].steps.size:
        return False
    loss = trace.series["loss"]
    return int(loss.steps[-1]) > since and math.isfinite(loss.values[-1])


def _of_start(before: int) -> tuple[Evidence, ...]:
    if not before:
        return ()
    what = "elements of the trained weights NaN or infinite when watching began"
    return (Evidence("weights_nonfinite", what, before, 0, "elements"),)


def _of_samples(seen: _Seen | None) -> tuple[Evidence, ...]:
    if seen is None:
        return ()
    found = []
    if updates := float(seen.weights.sum()):
        what = f"elements of the update NaN or infinite at step {seen.first}, gradients finite"
        found.append(Evidence("update_nonfinite", what, updates, 0, "elements"))
    if seen.moments.any():
        what = f"largest share of a tensor's second moments not finite at step {seen.first}"
        share = float(seen.moments.max()) * 100
        found.append(Evidence("moment2_saturated", what, share, 0, "%"))
    return tuple(found)


def _word_of_start(trace: Trace, before: int) -> str:
    are = "element of the trained weights was" if before == 1 else "elements of the weights were"
    return f"{before:,} {are} NaN or infinite when watching began, before step {trace.steps[0]}."


def _word_of_sample(seen: _Seen, names: tuple[str, ...]) -> str:
    whose = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    what = "The update" if seen.weights.any() else "The second moment"
    since = f"; a gradient was not, at step {seen.gradient}" if seen.gradient else ""
    return (
        f"{what} of {whose} is NaN or infinite at step {seen.first}, while all gradients of that"
        f" step are finite{since}."
    )


def _treatments(trace: Trace, first: int, seen: _Seen | None) -> tuple[Treatment, ...]:
    origin = first if seen is None or seen.gradient is None else seen.gradient
    look = Treatment(
        title="Look for NaN in the loaded checkpoint: in the weights and in the optimizer state",
        when="check",
        safety="safe",
        basis="heuristic",
        source="a state that begins not finite was saved so",
    )
    guard = Treatment(
        title="Leave an update out where a gradient is not finite, instead of where the loss is"
        " not: clip_grad_norm_(.., error_if_nonfinite=True) raises before the weights are touched",
        safety="manual",
        basis="heuristic",
        source="documentation of torch.nn.utils.clip_grad_norm_",
        intervention="step-guard",
    )
    return (go_back(trace, origin, ALL), guard if origin < first else look)


def _run(broken: float) -> Trace:
    tensors = small_gpt()
    nothing = np.zeros((20, len(tensors)))
    updates, moments = nothing.copy(), nothing.copy()
    gradients = nothing.copy()
    gradients[4, 0] = broken
    updates[6:, 0], moments[6:, 0] = broken, broken / tensors[0].num_elements
    return make_trace(
        loss=falling_loss(50),
        grad_nonfinite=gradients,
        update_nonfinite=updates,
        moment2_saturated=moments,
        tensors=tensors,
    )


RULE = rule.Rule(
    name="nonfinite-state",
    needs=("update_nonfinite|moment2_saturated|weights_nonfinite",),
    uses=(*COUNTS, "first_nonfinite_step", "loss", "resumed_from"),
    explains=("nan-pulse", "nonfinite-gradient", "divergence"),
    mechanism=True,
    symptom_too=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(64),
    healthy=lambda: _run(0),
    doc=__doc__ or "",
)
