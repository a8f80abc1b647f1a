"""Adam's epsilon is larger than the gradients, so that it decides the step.

## What it finds
Tensors whose consumed gradient has a root mean square below epsilon in `samples` samples in a row
from the `after`-th step seen on, counted with those of their entries whose second moment has a root
below epsilon, where that was measured. Tensors whose gradient is exactly zero do not count. Found
where such entries are more than `share` of all that have a gradient. A note; a warning where the
rate is that of an ordinary Adam, under `rate` of the weights' size, and the loss at its beginning
is still above `fallen` of the first. Of a log, the gradient norm over all weights bounds what half
of the entries are below.
## Why it matters
Adam divides by the root of the second moment plus epsilon. Where epsilon is the larger of the two
the step is the rate times gradient over epsilon: smaller than the rate says, and large for large
gradients, as in plain gradient descent. In small runs on four tasks, of 300 updates at one rate,
the held-out loss was 6 to 350 % worse with epsilon 0.01 than with 1e-8, and 17 to 1,100 % with 0.1.
## What to do
Choose an epsilon far below the gradients as the optimizer sees them; 1e-8 is the usual one in
float32. Where the gradients are tiny because the loss was divided, say by its number of tokens
and then of samples, take the division out: Adam does not need it.
## When it is fine
Where it was chosen and the rate with it: the same four runs with epsilon 0.01 and ten times the
rate ended no worse than with 1e-8. Reinforcement learning uses large
epsilons; a problem that is solved has tiny gradients: both stay a note. A few tensors with tiny
gradients do not hold a run up and are not told: a bias in front of a norm, or of the keys of
attention, has a gradient of 0 in theory, and rounding leaves some of it. RMSprop, Adagrad and
others are not judged.
## Told apart from
`epsilon-below-precision`: an epsilon too small for its dtype, foretold before step 1.
`second-moment-underflow`: the second moment is 0 and the step too large.
`learning-rate-spent`: the rate itself is small.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.rows import spans
from optdoctor.curves.samples import at_samples
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.in_a_log import steps_by_gradient, weights
from optdoctor.knowledge.moments import AVERAGING
from optdoctor.knowledge.precision import short
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Trace

LEAST_WEIGHTS = 64
"""Elements from which a tensor's size says how large a rate is."""
LEVEL = 16
"""Losses whose median is a level."""

HALF_BELOW = math.sqrt(2)
"""Times the root mean square that at least half of all entries are below (Markov)."""
RATE = 0.03
"""Largest rate of an ordinary Adam: that of networks is hardly ever above 0.01."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 5
    """As many samples as have to agree."""
    ratio: float = 1.0
    """Epsilon over the gradient's root mean square at which the two weigh the same: a physical
    limit. In 30 healthy small runs a tensor's median was 0.1 at most."""
    samples: int = 5
    """Samples in a row that have to be above it."""
    after: int = 20
    """Steps of the record before which nothing is judged: first gradients can be tiny."""
    share: float = 0.5
    """Largest share of the entries with a gradient that epsilon may rule: beyond it, most. Seven
    healthy runs of 171 had such entries, at most 0.2 %, in biases whose gradient is rounding."""
    rate: float = 0.25
    """Rate over the weights' root mean square, median over tensors, from which it is taken to be
    chosen for a large epsilon: without one each update would move a weight by a quarter of itself.
    Heuristic; 0.03 to 0.19 in six small families at their usual rate and 0.39 in one, 0.29 to 1.4
    at ten times it: chosen between the two after runs of the clinic's open half were seen."""
    fallen: float = 0.5
    """Share of the first loss under which the problem counts as half solved: tiny gradients are
    what is expected there."""


class _Ruled(NamedTuple):
    """Samples [first, last] in which epsilon rules most entries."""

    steps: IntArray  # [T]
    first: int
    last: int
    tensors: NDArray[np.bool_]  # [P]
    share: float
    """The largest of a sample within."""
    worst: int
    """The sample of it."""
    gradient: float
    """Root mean square over those tensors at that sample."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    eps = trace.facts["eps"]
    if trace.facts["optimizer_family"] not in AVERAGING:
        return []
    if not isinstance(eps, float) or not 0 < eps < math.inf:
        return Abstain(f"eps {eps} is no number above 0")
    ruled = _ruled(trace, eps, limits)
    if ruled is None:
        return []
    size, level = _rate_over_weights(trace, ruled), _level_at(trace, int(ruled.steps[ruled.first]))
    usual = size is not None and size < limits.rate
    early = level is not None and level > limits.fallen
    harm = usual and early and trace.facts.get("loss_kind") in (None, "falling", "unknown")
    by_tensor = np.where(ruled.tensors, 1.0 * trace.num_elements, np.nan)
    return [
        Finding(
            severity=Severity.WARN if harm else Severity.NOTE,
            awaits_symptom=not harm,
            summary=(
                f"eps = {short(eps)} is {eps / ruled.gradient:.3g} times as large as the gradients"
                f" (limit {limits.ratio:g}) of {ruled.share * 100:.3g} % of the entries at step"
                f" {ruled.steps[ruled.worst]}."
            ),
            steps=(int(ruled.steps[ruled.first]), int(ruled.steps[ruled.last])),
            tensors=trace.worst(by_tensor),
            evidence=_evidence(trace, eps, ruled, size, level, limits),
            treatments=_treatments(eps, ruled.gradient),
        )
    ]


def check_log(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    """By the gradient over all weights: its root mean square times the root of 2 is what half of
    them are below at least."""
    eps, number = trace.facts["eps"], weights(trace)
    if trace.facts["optimizer_family"] not in AVERAGING or number is None:
        return []
    if not isinstance(eps, float) or not 0 < eps < math.inf:
        return []
    known = steps_by_gradient(trace)
    gradient = known.norms / math.sqrt(number)
    late = known.steps - known.steps[:1] + 1 >= limits.after
    small = late & (gradient > 0) & (eps > limits.ratio * HALF_BELOW * gradient)
    stretches = [(a, b) for a, b in spans(small) if b - a + 1 >= limits.samples]
    if not stretches:
        return []
    first, last = stretches[0][0], stretches[-1][1]
    usual = float(np.median(gradient[first : last + 1]))
    level = _level_at(trace, int(known.steps[first]))
    early = level is not None and level > limits.fallen
    meant = float(known.rates.max()) > RATE
    harm = early and not meant and trace.facts.get("loss_kind") in (None, "falling", "unknown")
    what = "epsilon over the root mean square of the gradient of all weights, median"
    told = [Evidence("eps", what, eps / usual, limits.ratio * HALF_BELOW, "1")]
    if level is not None:
        what = f"loss from step {known.steps[first]} on, of the first"
        told.append(Evidence("loss", what, level * 100, limits.fallen * 100, "%"))
    what = "largest rate, beyond which a large epsilon may be on purpose"
    told.append(Evidence("lr", what, float(known.rates.max()), RATE, "1"))
    return [
        Finding(
            severity=Severity.WARN if harm else Severity.NOTE,
            awaits_symptom=not harm,
            summary=(
                f"eps = {short(eps)} is {eps / usual:.3g} times as large as the gradients, at"
                f" least in half of the entries (limit {limits.ratio * HALF_BELOW:.3g}), from step"
                f" {known.steps[first]} to step {known.steps[last]}."
            ),
            steps=(int(known.steps[first]), int(known.steps[last])),
            evidence=tuple(told),
            treatments=_treatments(eps, usual),
        )
    ]


def _ruled(trace: Trace, eps: float, limits: Limits) -> _Ruled | None:
    steps = trace.series["grad_rms"].steps
    gradient = at_samples(trace, "grad_rms", steps)
    below = at_samples(trace, "moment2_below_eps", steps)
    below = np.where(np.isfinite(below), below, 1.0)
    there = np.isfinite(gradient) & (gradient > 0)
    small = there & (eps > limits.ratio * gradient)
    late = steps - steps[0] + 1 >= limits.after
    lasting = np.zeros_like(small)
    for tensor in range(small.shape[1]):
        for a, b in spans(small[:, tensor] & late):
            lasting[a : b + 1, tensor] = b - a + 1 >= limits.samples
    num = trace.num_elements
    share = (lasting * below) @ num / np.maximum(there @ num, 1)  # [T]
    rows = np.flatnonzero(share > limits.share)
    if not rows.size:
        return None  # a few tensors, or second moments that still remember larger gradients
    worst = int(np.argmax(share))
    hit = lasting[worst]
    sizes = gradient[worst][hit]
    most = float(sizes.max())  # squares of what is left after a decay are 0
    mean = float((sizes / most) ** 2 @ num[hit]) / max(int(num[hit].sum()), 1)
    first, last, tensors = int(rows[0]), int(rows[-1]), np.asarray(lasting[rows].any(axis=0), bool)
    return _Ruled(steps, first, last, tensors, float(share[worst]), worst, most * math.sqrt(mean))


def _rate_over_weights(trace: Trace, ruled: _Ruled) -> float | None:
    """Median over the ruled weights of their largest rate over their size; None if not known."""
    rates = at_samples(trace, "tensor_lr", ruled.steps)
    sizes = at_samples(trace, "param_rms", ruled.steps)
    known = np.isfinite(rates) & np.isfinite(sizes) & (sizes > 0)
    ratios = np.where(known, rates / np.where(known, sizes, 1), 0).max(axis=0)  # [P]
    wanted = ruled.tensors & (trace.num_elements >= LEAST_WEIGHTS) & known.any(axis=0)
    return float(np.median(ratios[wanted])) if wanted.any() else None


def _level_at(trace: Trace, step: int) -> float | None:
    """The loss from `step` on over the first; None where one of them is no size."""
    if "loss" not in trace.series:
        return None
    loss = trace.series["loss"]
    finite = np.isfinite(loss.values)
    first, then = loss.values[finite][:LEVEL], loss.values[finite & (loss.steps >= step)][:LEVEL]
    if not then.size or np.median(first) <= 0:
        return None
    return float(np.median(then) / np.median(first))


def _evidence(
    trace: Trace,
    eps: float,
    ruled: _Ruled,
    size: float | None,
    level: float | None,
    limits: Limits,
) -> tuple[Evidence, ...]:
    at = f"at step {ruled.steps[ruled.worst]}"
    found = [
        Evidence(
            "eps", f"epsilon over the gradients {at}", eps / ruled.gradient, limits.ratio, "1"
        ),
        Evidence(
            "grad_rms",
            f"entries with a gradient that epsilon rules {at}",
            ruled.share * 100,
            limits.share * 100,
            "%",
        ),
    ]
    if size is not None:
        what = "rate over the size of the weights, from which a large epsilon may be on purpose"
        found.append(Evidence("tensor_lr", what, size, limits.rate, "1"))
    if level is not None:
        what = f"loss from step {ruled.steps[ruled.first]} on, of the first"
        found.append(Evidence("loss", what, level * 100, limits.fallen * 100, "%"))
    return tuple(found)


def _treatments(eps: float, gradient: float) -> tuple[Treatment, ...]:
    return (
        Treatment(
            title=f"Choose an epsilon far below the gradients, which are about {gradient:.2g}:"
            " a hundredth of that or less, and not less than the dtype holds",
            safety="risky",
            basis="heuristic",
            source="arithmetic: a hundredth makes the step smaller by 1 %",
        ),
        Treatment(
            title=f"If eps = {short(eps)} was meant, choose the rate for it: the step is rate times"
            " gradient over epsilon",
            when="check",
            safety="manual",
            basis="heuristic",
            source="arithmetic of m / (sqrt(v) + eps)",
        ),
    )


def _run(eps: float, rows: int = 40) -> Trace:
    """Samples of every other step with gradients of about 0.001."""
    tensors = small_gpt()
    steps = np.arange(1, rows + 1) * 2
    wide = np.ones((rows, len(tensors)))
    sampled = {
        "grad_rms": 1e-3 * wide,
        "moment2_below_eps": (eps > 1e-3) * wide,
        "tensor_lr": 1e-3 * wide,
        "param_rms": 0.1 * wide,
    }
    return make_trace(
        {**sampled, "loss": falling_loss(2 * rows)},
        eps=eps,
        optimizer_family="adam",
        tensors=tensors,
        steps=dict.fromkeys(sampled, steps),
    )


RULE = rule.Rule(
    name="epsilon-dominates",
    needs=("grad_rms", "eps", "optimizer_family"),
    uses=("moment2_below_eps", "tensor_lr", "param_rms", "loss", "loss_kind", "max_grad_norm"),
    explains=("early-plateau",),
    mechanism=True,
    spares=("sgd",),
    check=check,
    on_log=rule.LogForm(
        ("grad_norm", "lr", "eps", "optimizer_family", "num_parameters"), check_log
    ),
    limits=Limits(),
    sick=lambda: _run(1e-2),
    healthy=lambda: _run(1e-8),
    doc=__doc__ or "",
)
