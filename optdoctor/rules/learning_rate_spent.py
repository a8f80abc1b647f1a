"""The learning rate has fallen to nearly nothing while training goes on.

## What it finds
A rate of 0 with more than a fifth of the steps still to come: no weight moves any more. And a rate
under 3 % of its peak, to the last row, while more than half of the steps are still to come, unless
the loss went on to fall at the pace that it had before. The peak is what a tenth of the rows reach.
The steps are those that the run was told to make, else those seen. Critical where the rate is 0 and
more than half of the steps come after it was spent.
## Why it matters
Every update is the rate times a direction. The loss stands still, which looks like a plateau of the
model or the data; the steps are paid for and teach nothing.
## What to do
Set the rate again, or stop: this run has learnt what it could. For the next run give the scheduler
the number of updates of the whole run: a frequent cause is a scheduler that counts micro-batches,
or steps once more in the loop, and ends early by that factor.
## When it is fine
The end of a cosine or a line, a milestone after half of the run, and epochs at the lowest rate
after the schedule (a cooldown): less than half of the steps are left. Warm-up: the peak is still to
come. Warm restarts rise again. Milestones that each cut the rate at least to its half and at most
twentyfold, and a rate that still glides down, were chosen, and so was a plateau scheduler: they are
found only where the rate is under a thousandth of its peak for more than a fifth of the steps.
## Told apart from
A log that prints rates with few decimals: what it shows as 0 may be half of the last decimal more;
where that decides, the rule abstains.
`update-lost-to-rounding`: the rate is as planned, the weights are too coarse for it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.masked import FILTERED_BY, loss_curve
from optdoctor.curves.shortfall import LEAST_ROWS, came_since
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import NOT_FALLING
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

EXACT = ("", "run-record")
"""Readers of traces whose numbers are those of the run: watched live, or recorded by the doctor."""
MOST_DECIMALS = 12
"""Decimals beyond which a printed rate counts as exact."""
HELD = 0.1
"""Share of the rows that must reach a rate for it to be the peak."""
CUT = 2.0
"""Least factor of a milestone: schedules that fall at every step fall by less."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 20
    """Rows in which a schedule can be seen."""
    spent: float = 0.03
    """Share of the peak under which a rate that has come to rest counts as spent."""
    chosen: float = 1e-3
    """The same for a rate that came down by milestones or still falls smoothly, as an exponential
    or the third phase of a one-cycle schedule does: that spends 27 % of the steps under 3 %."""
    share: float = 0.20
    """Largest share of the steps that a run may make at a rate of 0, and the share of the rows that
    shows what the loss does: under `spent` a cosine to 0 spends 0.11, a line 0.03, a parabola
    0.17."""
    ahead: float = 0.5
    """Largest share of the steps that may lie ahead of a spent rate: half. After it the milestones
    of residual networks and the last epochs at the lowest rate have their place."""
    paid: float = 1.0
    """Share of the fall that was due from which the low rate has done no harm: all of it. Due is
    as much in each doubling of the steps as in the last one before."""
    drop: float = 20.0
    """Largest factor by which a milestone cuts the rate: most cut by 2 to 10."""
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
    idle = 0.0 if zero is None else stretch.left(zero, planned)
    is_idle = idle > limits.share
    low = stretch.left(stretch.since, planned)
    is_early = low > limits.ahead and stretch.share > limits.share
    is_early = is_early and not _is_chosen(stretch, limits)
    came = _came(trace, stretch.since) if is_early else None
    is_early = is_early and (came is None or came < limits.paid)
    evidence = []
    if is_idle:
        evidence.append(_left(idle, limits.share, planned, "the rate is 0", zero))
    if is_early:
        level = f"the rate is under {100 * limits.spent:.2g} % of its peak"
        evidence.append(_left(low, limits.ahead, planned, level, stretch.since))
    if is_early and came is not None:
        what = "of the fall that the loss was on course for came after"
        evidence.append(Evidence("loss", what, 100 * max(came, 0.0), 100 * limits.paid, "%"))
    if not evidence:
        return []
    is_lost = is_idle and low > limits.ahead
    return [
        Finding(
            severity=Severity.CRITICAL if is_lost else Severity.WARN,
            summary=(
                f"The learning rate is {_level(stretch, limits)} to step {stretch.last:,}:"
                f" {evidence[0].observed:.3g} % of {planned:,} steps were still to come (limit"
                f" {evidence[0].limit:.2g} %)."
            ),
            steps=(stretch.since, stretch.last),
            evidence=tuple(evidence),
            treatments=_treatments(stretch, planned),
        )
    ]


def _left(share: float, limit: float, planned: int, level: str, since: int | None) -> Evidence:
    what = f"of {planned:,} steps to come at step {since:,}, from which on {level}"
    return Evidence("lr", what, 100 * share, 100 * limit, "%")


def _came(trace: Trace, since: int) -> float | None:
    """The fall of the loss after that step over what was due; None where no loss tells."""
    if not trace.has("loss") or trace.facts.get("loss_kind") in NOT_FALLING:
        return None
    line = loss_curve(trace)
    at = 0 if line is None else int(np.searchsorted(line.steps, since))
    if line is None or not LEAST_ROWS <= at < line.steps.size:
        return None
    return came_since(line, at)


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
    held = float(np.quantile(rates, 1 - HELD, method="nearest"))
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


def _level(stretch: _Stretch, limits: Limits) -> str:
    """How low the rate is, and from which step on."""
    low = f"below {limits.spent * 100:.2g} % of its peak from step {stretch.since:,}"
    if stretch.zero_since is None:
        return low
    none = f"0 from step {stretch.zero_since:,}"
    return none if stretch.zero_since == stretch.since else f"{low} on, and {none}"


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
    uses=("total_steps", "loss", "loss_kind", "grad_norm", *FILTERED_BY),
    explains=("early-plateau",),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(200),
    healthy=lambda: _run(400),
    doc=__doc__ or "",
)
