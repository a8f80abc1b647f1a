"""Adam's second moment no longer changes: its dtype rounds each change away.

## What it finds
The share of entries with a gradient whose second moment is the same after the update, where it is
held in 16 bits: it fires where that is above `share` in `samples` samples in a row, with a beta2
whose decay, 1 - beta2, is less than half the distance between two neighbouring numbers. It then
follows, from the gradients of the samples, what a moment of full precision would hold, and compares
the roots. A note while they agree; a warning where for half of the entries the held root is more
than `factor` times the other, as their steps are smaller by that factor.
## Why it matters
A moment in bfloat16 with beta2 0.999 can rise and cannot fall: 0.999 times any number rounds to the
number. Gradients get smaller as training goes on, and the moment remembers the largest: the
learning rate decays without being asked to, and the loss looks as with a rate that is too low. In a
small bfloat16 run whose loss was divided by 10 at step 101 its root was 3.7 to 9 times the
gradients to the end, 1,400 updates later.
## What to do
Keep weights and optimizer state in float32, with bfloat16 autocast for the forward pass. PyTorch's
Adam takes the dtype of its state from the weights. Where memory forbids it, take a beta2 that the
dtype can follow: with 0.99 the share was 9 to 17 % in two small bfloat16 runs, with 0.999 21 to
96 %.
## When it is fine
While gradients keep their size there is little to follow: two small bfloat16 runs with beta2 0.999
ended with a held-out loss at most 1 % above that with 0.95. A moment that falls slowly because
beta2 is large is no fault of the dtype: the comparison lets it fall as slowly.
## Told apart from
`update-lost-to-rounding`: the weights do not take the step; both come from weights in bfloat16.
`half-precision-state`: foretold from the dtypes; here it is counted, and the gradients are
looked at.
`second-moment-underflow`: the moment is 0. `learning-rate-spent`: the rate itself has fallen.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.rows import spans
from optdoctor.curves.samples import at_samples
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.moments import AVERAGING
from optdoctor.knowledge.precision import FORMATS
from optdoctor.knowledge.remedies import float32_state
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Trace

FOLLOWED = 0.99
"""A beta2 whose decay bfloat16 takes in every update."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 10
    """As many samples as have to agree."""
    share: float = 0.875
    """Share of unchanged entries above which the moment stands still: chosen near 1, as a moment
    that moves by whole spacings at a time stays the same in between."""
    samples: int = 10
    """Samples in a row that have to be above it: a few quiet batches change little."""
    factor: float = 2.0
    """How many times the root that full precision would hold is worth a warning: with it half of
    the entries take less than half the step."""


class _Stretch(NamedTuple):
    """Samples [first, last] in which the moment stands still."""

    first: int
    last: int
    factors: Floats  # [T, P]: held root over that of full precision, from the first on

    def worst(self, num_elements: NDArray[np.int64]) -> tuple[float, int]:
        """The largest factor that half of the entries reach in a sample, and the sample."""
        typical = [_typical(self.factors[row], num_elements) for row in self.rows]
        row = int(np.argmax(typical))
        return typical[row], self.first + row

    @property
    def rows(self) -> range:
        return range(self.first, self.last + 1)


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    family, beta2 = trace.facts["optimizer_family"], trace.facts["beta2"]
    dtype = str(trace.facts["state_dtype"])
    if family not in AVERAGING:
        return []
    if not isinstance(beta2, float) or not 0 < beta2 < 1:
        return Abstain(f"beta2 {beta2} gives no running mean")
    if dtype not in FORMATS:
        return Abstain(f"state in {dtype}: no known number format")
    half = FORMATS[dtype].step / 2
    if 1 - beta2 >= half:
        return []
    steps = trace.series["moment2_unchanged"].steps
    unchanged = at_samples(trace, "moment2_unchanged", steps)
    share = _mean(unchanged, trace.num_elements)
    still = np.isfinite(share) & (share > limits.share)
    found = [
        _Stretch(a, b, _factors(trace, steps, a, beta2))
        for a, b in spans(still)
        if b - a + 1 >= limits.samples
    ]
    if not found:
        return []
    gravest = max(found, key=lambda stretch: stretch.worst(trace.num_elements)[0])
    factor, row = gravest.worst(trace.num_elements)
    cut = factor > limits.factor
    first, last = (gravest if cut else found[0]).first, (gravest if cut else found[-1]).last
    told = row if cut else first
    what = f"entries with a gradient whose {dtype} second moment did not change at step"
    evidence = [
        Evidence(
            "moment2_unchanged",
            f"{what} {steps[told]}",
            float(share[told]) * 100,
            limits.share * 100,
            "%",
        ),
        Evidence(
            "moment2_rms",
            f"root of the second moment at step {steps[row]} over that of full precision, reached"
            " by half of the entries",
            factor,
            limits.factor,
            "times",
        ),
    ]
    standing = f"{share[told] * 100:.3g} % of {dtype} second-moment entries"
    summary = (
        f"{standing} stand still at step {steps[told]} (limit {limits.share * 100:.3g} %), and"
        + (
            f" steps are {factor:.3g} times smaller than the gradients ask for"
            f" (limit {limits.factor:g})."
            if cut
            else f" hold {factor:.3g} times what they should (limit {limits.factor:g})."
        )
    )
    by_tensor = gravest.factors[row] if cut else unchanged[told]
    least = limits.factor if cut else limits.share
    return [
        Finding(
            severity=Severity.WARN if cut else Severity.NOTE,
            summary=summary,
            steps=(int(steps[first]), int(steps[last])),
            tensors=trace.worst(by_tensor, by_tensor > least),
            evidence=tuple(evidence),
            treatments=_treatments(dtype, beta2, half),
        )
    ]


def _mean(values: Floats, num_elements: NDArray[np.int64]) -> Floats:
    """[T]: mean over the elements of the tensors that have a value, NaN where none has."""
    has = np.isfinite(values)
    counted = has @ num_elements
    means = np.where(has, values, 0) @ num_elements / np.maximum(counted, 1)
    return np.asarray(np.where(counted > 0, means, np.nan), np.float64)


def _factors(trace: Trace, steps: IntArray, first: int, beta2: float) -> Floats:
    """[T, P]: root of the moment over the root of one that has full precision since row `first`.

    Both start from what was held there. How the moment's root mean square and the gradient's mean
    square go together, which is the tensor's own, is read off the samples before.
    """
    held = at_samples(trace, "moment2_rms", steps)
    squares = at_samples(trace, "grad_rms", steps) ** 2
    squares = np.where(np.isfinite(squares), squares, np.nan)
    factors = np.full(held.shape, np.nan)
    before = squares[:first][steps[:first] > steps[first] - 1 / (1 - beta2)]
    if not len(before):
        return factors
    counted = np.isfinite(before).sum(axis=0)
    usual = np.where(np.isfinite(before), before, 0).sum(axis=0) / np.maximum(counted, 1)
    full = held[first]
    with np.errstate(divide="ignore", invalid="ignore"):
        shape = full / (1 - beta2 ** int(steps[first])) / np.where(counted > 0, usual, np.nan)
        for row in range(first, len(steps)):
            if row > first:
                kept = beta2 ** int(steps[row] - steps[row - 1])
                fresh = np.where(np.isfinite(squares[row]), shape * squares[row], full)
                full = kept * full + (1 - kept) * fresh
            factors[row] = np.sqrt(held[row] / full)
    return np.where(np.isfinite(factors), factors, np.nan)


def _typical(factors: Floats, num_elements: NDArray[np.int64]) -> float:
    """The factor that half of the entries reach; 1 where none is known."""
    known = np.isfinite(factors)
    order = np.argsort(-factors[known], kind="stable")
    if not order.size:
        return 1.0
    reached = np.cumsum(num_elements[known][order])
    return float(factors[known][order][int(np.searchsorted(reached, reached[-1] / 2))])


def _treatments(dtype: str, beta2: float, half: float) -> tuple[Treatment, ...]:
    source = f"arithmetic: {dtype} rounds away a change of less than {half:.2g} of a number"
    float32 = float32_state(dtype, "heuristic", source)
    if half >= 1 - FOLLOWED:
        return (float32,)
    shorter = Treatment(
        title=f"Where memory forbids it, beta2 = {FOLLOWED:g}, whose decay {dtype} can follow",
        changes={"beta2": (beta2, FOLLOWED)},
        safety="risky",
        basis="heuristic",
        source=source,
    )
    return float32, shorter


def _run(fall: float, beta2: float, rows: int = 300) -> Trace:
    """Samples of every tenth step; the gradients fall to so much of themselves at step 1000."""
    tensors = small_gpt("bfloat16")
    steps = np.arange(1, rows + 1) * 10
    gradient = np.where(steps > 1000, fall, 1.0) * 1e-2
    moment = 1e-4 * (1 - beta2 ** np.minimum(steps, 1000))
    unchanged = np.where(steps > 1000, 1.0, 0.6)
    wide = np.ones((1, len(tensors)))
    sampled = ("grad_rms", "moment2_rms", "moment2_unchanged")
    return make_trace(
        loss=falling_loss(),
        grad_rms=gradient[:, None] * wide,
        moment2_rms=moment[:, None] * wide,
        moment2_unchanged=(unchanged if fall < 1 else np.full(rows, 0.6))[:, None] * wide,
        beta2=beta2,
        state_dtype="bfloat16",
        optimizer_family="adam",
        tensors=tensors,
        steps=dict.fromkeys(sampled, steps),
    )


RULE = rule.Rule(
    name="second-moment-stalled",
    needs=("moment2_unchanged", "state_dtype", "beta2", "optimizer_family"),
    uses=("moment2_rms", "grad_rms"),
    explains=("early-plateau",),
    mechanism=True,
    spares=("sgd",),
    check=check,
    limits=Limits(),
    sick=lambda: _run(0.1, 0.999),
    healthy=lambda: _run(1.0, 0.99),
    doc=__doc__ or "",
)
