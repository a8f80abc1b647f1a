"""The learning rate has fallen to nearly nothing while training goes on.

## What it finds
A rate that lies under 3 % of its peak from some step to the last row, after the peak, where that
stretch is more than a fifth of the steps; or where the rate fell there more than twentyfold in one
row before the last tenth of the run; or where it is exactly 0 with more than a fifth of the planned
steps still to come. The peak is what a tenth of the rows reach. The planned steps are those that
the run was told, else the steps seen. Critical where the rate is exactly 0 for more than a fifth of
the run: the weights cannot move any more.
## Why it matters
Every update is scaled by the rate. The loss stands still, which looks like a plateau of the model
or the data; the steps are paid for and teach nothing.
## What to do
Set the rate again, or stop: this run has learnt what it could. For the next run give the scheduler
the number of updates of the whole run: a frequent cause is a scheduler that counts micro-batches,
or steps once more in the loop, and ends early by that factor.
## When it is fine
A cosine or line that ends at 0 with the run spends 11 % or 3 % of the steps there. Warm-up: the
peak is still to come. Warm restarts rise again. Milestones that each cut the rate at least to its
half and at most twentyfold, and a rate that still glides down, were chosen, and so was a plateau
scheduler: they are found only where the rate is under a thousandth of its peak for more than a
fifth of the steps.
## Told apart from
A log that prints rates with few decimals: what it shows as 0 may be half of the last decimal more;
where that decides, the rule abstains.
`update-lost-to-rounding`: the rate is as planned, the weights are too coarse for it.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

EXACT = ("", "run-record")
"""Readers of traces whose numbers are those of the run: watched live, or recorded by the doctor."""
MOST_DECIMALS = 12
"""Decimals beyond which a printed rate counts as exact."""
HELD = 0.1
"""Share of the rows that must reach a rate for it to be the peak."""
OF_STEPS = "of the steps"
CUT = 2.0
"""Least factor of a milestone: schedules that fall at every step fall by less."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 30
    """Rows in which a schedule can be seen."""
    spent: float = 0.03
    """Share of the peak under which a rate that has come to rest counts as spent."""
    chosen: float = 1e-3
    """The same for a rate that came down by milestones or still falls smoothly, as an exponential
    or the third phase of a one-cycle schedule does: that spends 27 % of the steps under 3 %."""
    share: float = 0.20
    """Largest share of the steps that a run may spend there: a cosine to 0 spends 0.11, a line
    0.03, a parabola 0.17."""
    drop: float = 20.0
    """Largest factor by which a rate falls in one row on purpose: milestones cut by 2 to 10."""
    end: float = 0.9
    """Share of the run before which a drop is early; after it schedules anneal."""
    passing: int = 2
    """Most rows of the stretch that pass: a run that is resumed at its end makes one step more."""


class _Stretch(NamedTuple):
    """The rows at the end whose rate is spent."""

    steps: IntArray  # [T] of all rows
    rates: Floats  # [T]
    first: int  # index of the first row
    peak: float
    bound: float
    """The rate under which all of them lie."""
    exact: bool
    """Whether a rate that is shown as 0 is as good as that."""

    @property
    def since(self) -> int:
        return int(self.steps[self.first])

    @property
    def last(self) -> int:
        return int(self.steps[-1])

    @property
    def share(self) -> float:
        """Of the steps seen."""
        return (self.last - self.since + 1) / (self.last - int(self.steps[0]) + 1)

    @property
    def factor(self) -> float:
        """By how much the rate fell in the first of the rows."""
        after = float(self.rates[self.first])
        return float(self.rates[self.first - 1]) / after if after > 0 else math.inf

    @property
    def zero_since(self) -> int | None:
        """The step from which on the rate is exactly 0; None if it is not."""
        if not self.exact or self.rates[-1] > 0:
            return None
        return int(self.steps[int(np.flatnonzero(self.rates)[-1]) + 1])

    def left(self, since: int, planned: int) -> float:
        """Share of the plan that lies ahead at that step."""
        return (planned - since + 1) / (planned - int(self.steps[0]) + 1)


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    lr = trace.series["lr"]
    kept = np.isfinite(lr.values) & (lr.values >= 0)
    steps, rates = lr.steps[kept], np.asarray(lr.values[kept], np.float64)
    if not rates.size or rates.max() <= 0:
        return Abstain("no learning rate above 0, so no peak to compare with")
    quantum = 0.0 if trace.reader in EXACT else _quantum(rates)
    stretch = _stretch(steps, rates, quantum, limits)
    if stretch is None:
        return []
    if quantum / 2 >= stretch.bound:
        return Abstain(f"rates are printed to {quantum:g}: what looks like 0 need not be")
    planned = _planned(trace, stretch.last)
    zero = stretch.zero_since
    lost = zero is not None and stretch.left(zero, planned) > limits.share
    reasons = _reasons(stretch, planned, limits)
    if lost and zero is not None and planned > stretch.last:
        what = f"of the planned steps are left at step {zero}, from which on the rate is 0"
        ahead = stretch.left(zero, planned) * 100
        reasons.append(Evidence("total_steps", what, ahead, limits.share * 100, "%"))
    if not reasons:
        return []
    return [
        Finding(
            severity=Severity.CRITICAL if lost else Severity.WARN,
            summary=(
                f"The learning rate is {_level(stretch, limits)} to step {stretch.last},"
                f" {_word(reasons[0])} (limit {reasons[0].limit:.2g} %)."
            ),
            steps=(stretch.since, stretch.last),
            evidence=tuple(reasons),
            treatments=_treatments(stretch, planned),
        )
    ]


def _stretch(steps: IntArray, rates: Floats, quantum: float, limits: Limits) -> _Stretch | None:
    """The rows at the end that are all under the limit, if the peak and enough rows are there."""
    peak = _peak(rates)
    bound = limits.spent * peak
    first = int(np.flatnonzero(rates >= bound)[-1]) + 1
    if rates.size - first <= limits.passing:
        return None
    return _Stretch(steps, rates, first, peak, bound, quantum / 2 < bound / 10)


def _peak(rates: Floats) -> float:
    """The rate that a tenth of the rows reach: a few rows above it are an accident, not a plan."""
    held = float(np.quantile(rates, 1 - HELD, method="lower"))
    return held if held > 0 else float(rates.max())


def _quantum(rates: Floats) -> float:
    """The place value of the last decimal that any rate has; 0 where they have many."""
    for decimals in range(MOST_DECIMALS + 1):
        scaled = rates * 10.0**decimals
        if np.allclose(scaled, np.round(scaled), rtol=0, atol=1e-6):
            return float(10.0**-decimals)
    return 0.0


def _planned(trace: Trace, last: int) -> int:
    """The last step of the plan where it is known and still true, else the last step seen."""
    planned = trace.facts.get("total_steps")
    known = isinstance(planned, int) and last <= planned < 2**53
    return int(planned) if known and planned is not None else last


def _reasons(stretch: _Stretch, planned: int, limits: Limits) -> list[Evidence]:
    """Why the stretch is no ordinary end of a run; empty if it is one."""
    first, since = int(stretch.steps[0]), stretch.since
    reasons = []
    if stretch.share > limits.share and not _is_chosen(stretch, limits):
        level = stretch.bound / stretch.peak * 100
        what = f"{OF_STEPS} with a rate under {level:g} % of its peak"
        reasons.append(Evidence("lr", what, stretch.share * 100, limits.share * 100, "%"))
    early = since - first < limits.end * (planned - first)
    if stretch.factor > limits.drop and early:
        before = float(stretch.rates[stretch.first - 1])
        what = f"the rate's fall in one row, at step {since}, as a share of what it was"
        fallen = (before - float(stretch.rates[stretch.first])) / before * 100
        reasons.append(Evidence("lr", what, fallen, (1 - 1 / limits.drop) * 100, "%"))
    return reasons


def _level(stretch: _Stretch, limits: Limits) -> str:
    """How low the rate is, and from which step on."""
    low = f"below {limits.spent * 100:.2g} % of its peak from step {stretch.since}"
    if stretch.zero_since is None:
        return low
    none = f"0 from step {stretch.zero_since}"
    return none if stretch.zero_since == stretch.since else f"{low} on, and {none}"


def _word(reason: Evidence) -> str:
    """The gravest reason, as a part of the summary."""
    if reason.channel == "total_steps":
        return f"with {reason.observed:.3g} % of the planned steps to come"
    if reason.what.startswith(OF_STEPS):
        return f"{reason.observed:.3g} % {OF_STEPS}"
    return f"after a fall by {reason.observed:.3g} % in one row"


def _is_chosen(stretch: _Stretch, limits: Limits) -> bool:
    """Whether the rate came down by plan, and does not stand at next to nothing for long."""
    deep = int(np.flatnonzero(stretch.rates >= limits.chosen * stretch.peak)[-1]) + 1
    seen = stretch.last - int(stretch.steps[0]) + 1
    lost = stretch.last - int(stretch.steps[deep]) + 1 if deep < stretch.rates.size else 0
    return lost <= limits.share * seen and (_glides(stretch) or _by_milestones(stretch, limits))


def _glides(stretch: _Stretch) -> bool:
    """Whether the rate goes on to fall, to less than half, and never by much in one row."""
    rates = stretch.rates[stretch.first - 1 :]
    falls = rates[:-1] - rates[1:]
    smooth = (CUT * rates[1:] > rates[:-1]) | (falls < stretch.bound / 10)
    return bool(0 < CUT * rates[-1] < rates[1] and rates[-1] < rates[-2] and smooth.all())


def _by_milestones(stretch: _Stretch, limits: Limits) -> bool:
    """Whether the rate came down from its peak in cuts of `CUT` to `drop` with rests between."""
    at_peak = np.flatnonzero(stretch.rates[: stretch.first] >= stretch.peak)
    way = stretch.rates[int(at_peak[-1]) : stretch.first + 1]
    falls = way[1:] < way[:-1]
    before, after = way[:-1][falls], way[1:][falls]
    return bool(((before >= CUT * after) & ~(before > limits.drop * after)).all())


def _treatments(stretch: _Stretch, planned: int) -> tuple[Treatment, ...]:
    return (
        Treatment(
            title="Stop here, or set the learning rate of every group to what it was while the loss"
            " fell, and take the scheduler out, or it sets the rate back",
            when="now",
            safety="risky",
            basis="heuristic",
            source="an update is the rate times a direction",
        ),
        Treatment(
            title=f"Give the scheduler all updates of the run: it was spent at {stretch.since:,}"
            f" of {planned:,}",
            safety="manual",
            basis="heuristic",
            source="schedulers count their own calls of step, not the updates of the optimizer",
        ),
        Treatment(
            title="Let a copy of the scheduler run alone over the plan and print its rates",
            when="check",
            safety="safe",
            basis="heuristic",
            source="a schedule needs no model to be seen",
        ),
    )


def _run(spent_from: int, rows: int = 400) -> Trace:
    """A line from the peak to 0, there at that row; warm-up of 20 rows."""
    row = np.arange(rows)
    rates = 1e-3 * np.minimum((row + 1) / 20, np.maximum(1 - row / spent_from, 0))
    return make_trace(loss=falling_loss(rows), lr=rates)


RULE = rule.Rule(
    name="learning-rate-spent",
    needs=("lr",),
    uses=("total_steps",),
    explains=("early-plateau",),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(200),
    healthy=lambda: _run(400),
    doc=__doc__ or "",
)
