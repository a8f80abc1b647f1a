"""The learning rate jumps up in one update, and the loss answers.

## What it finds
A rate that becomes more than 3 times as high from one row to the next, up to the highest yet or
half of it, where neither a straight warm-up nor one that grows by a constant factor does that; and
a loss that is not finite soon after, or whose median of ten rows stays above that of the last ten
before the jump, by more than 5 % and 5 standard errors, in every ten rows up to the end. In a log
of each tenth update or so, four rows stand for ten; where there are three before the jump, the loss
must have fallen, and the first one after it must lie above all of them. Critical where the loss is
not finite from then on to the end. A rise that passes is a warning above 50 %, else a note; it is
told for a single jump only.
## Why it matters
Weights that have settled at a small rate lie where a large step leads uphill. After a jump the loss
may need long to come down again, or never does.
## What to do
Reach the rate by a warm-up of some tens to hundreds of updates in place of a jump, or go to a lower
peak. Look at how the parts of the schedule meet: a warm-up that ends at a tenth of the peak leaves
the rest to one update.
## When it is fine
Warm restarts and cyclic schedules jump by design, and the loss comes down again below where it was:
they are left out. A first update at rate 0 is how some warm-ups begin.
## Told apart from
`learning-rate-restarted`: the schedule has lost its place at a resume. `loss-spike`: the loss alone
jumps. `divergence`: what becomes of it.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import NEVER_FALLING
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

BLOCK = 10
"""Updates whose median is a level of the loss, where each has a row."""
FEWEST = 4
"""Rows that a level has at least, where they lie further apart."""
LATER = 2
"""Levels after a jump below which it is not known whether it lasts."""
SOON = 50
"""Updates after a jump within which a loss that is not finite is an answer to it."""
SIGMAS = 5.0
"""Standard errors of a level by which the loss must be higher, beside its limit."""
BROKEN = 0.5
"""Share of the losses from the first that is not finite on which must be so: one alone is that of a
batch."""
HIGH = 0.5
"""Share of the highest rate so far that a rate must jump to."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 12
    """A level before a jump and two after it, of rows that lie apart; else ten rows each."""
    factor: float = 3.0
    """Largest factor in one row that is no jump: a straight warm-up doubles the rate of its first
    update, and milestones of schedules that go up are 2 or less."""
    rise: float = 0.05
    """Largest rise of the loss that is no answer: heuristic."""
    uphill: float = 0.5
    """Largest rise of a level that is taken for the bump of a warm restart, where it
    passes: heuristic."""


class _Answer(NamedTuple):
    """What the loss did after a jump."""

    before: float
    after: float
    """The lowest level since where it lasts, else the highest of those soon after."""
    lasts: bool
    first_broken: int | None
    """The first step soon after without a finite loss."""
    to_the_end: bool
    over: str = "median"
    """Which of the losses before is compared with."""

    @property
    def rise(self) -> float:
        return round(self.after / self.before - 1, 9)


def check(trace: Trace, limits: Limits) -> list[Finding]:
    if trace.facts.get("loss_kind") in NEVER_FALLING:
        return []
    lr, loss = trace.series["lr"], trace.series["loss"]
    kept = np.isfinite(lr.values) & (lr.values >= 0)
    steps, rates = lr.steps[kept], np.asarray(lr.values[kept], np.float64)
    losses = np.asarray(loss.values, np.float64)
    rows = _jumps(steps, rates, limits)
    answers = [(row, _answer(loss.steps, losses, steps[row - 1 : row + 1], limits)) for row in rows]
    heard = [(row, answer) for row, answer in answers if answer is not None]
    told = [(row, a) for row, a in heard if a.lasts or a.first_broken is not None]
    if not told and len(rows) == 1:
        told = heard
    return [_finding(trace, steps, rates, row, answer, limits) for row, answer in told[:1]]


def _jumps(steps: IntArray, rates: Floats, limits: Limits) -> list[int]:
    found = []
    for row in range(2, rates.size):
        before, after = float(rates[row - 1]), float(rates[row])
        passed = (steps[row] - steps[0] + 1) / (steps[row - 1] - steps[0] + 1)
        if after <= limits.factor * passed * before:
            continue  # `passed` is what a line from 0 on does, in rows that may lie far apart
        if after <= 0 or after < HIGH * rates[: row + 1].max():
            continue
        earlier = float(rates[row - 2])
        if earlier > 0 and before / earlier > (after / max(before, 1e-300)) ** 0.5:
            continue  # one row of a rate that grows by a factor in each
        found.append(row)
    return found


def _answer(steps: IntArray, losses: Floats, jump: IntArray, limits: Limits) -> _Answer | None:
    """What followed a jump between two updates; None where the loss did not answer, or cannot be
    known to.

    The loss of an update is that of the weights before it, so that of the first update after the
    lower rate is still one from before.
    """
    until = steps <= jump[0] + 1
    finite = np.isfinite(losses)
    apart = float(np.median(np.diff(steps)))
    block = max(FEWEST, math.ceil(BLOCK / apart))
    earlier, later = losses[until & finite][-block:], losses[~until]
    if earlier.size < block and apart > 1:
        later = losses[finite & ~until & (steps <= jump[1] + SOON)]
        return _above_all(earlier, later, limits)
    if earlier.size < block or np.median(earlier) <= 0:
        return None
    before = float(np.median(earlier))
    known = losses[until & finite][-SOON:]
    error = 1.25 * _spread(known) * np.sqrt(2 / block)  # of the difference of two medians
    bad = ~np.isfinite(later)
    soon = steps[~until] <= jump[1] + SOON
    broken = np.flatnonzero(bad & soon)
    if broken.size and finite[until].all() and bad[broken[0] :].mean() > BROKEN:
        first = int(steps[~until][broken[0]])
        return _Answer(before, before, True, first, bool(bad[broken[0] :].all()))
    levels = np.array([np.median(rows) for rows in _blocks(later, block)])
    if levels.size < LATER:
        return None
    rises = np.round(levels / before - 1, 9)
    above = (rises > limits.rise) & (levels - before > SIGMAS * error)
    if above.all():
        return _Answer(before, float(levels.min()), True, None, to_the_end=False)
    first = max(1, int(SOON / apart) // block)
    if not above[:first].any():
        return None
    return _Answer(before, float(levels[:first].max()), False, None, to_the_end=False)


def _above_all(earlier: Floats, later: Floats, limits: Limits) -> _Answer | None:
    """Whether a loss that had fallen was above all it had been, in rows too few for a level."""
    if earlier.size < FEWEST - 1 or later.size < LATER or earlier.min() <= 0:
        return None
    highest, first = float(earlier.max()), float(later[0])
    risen, fallen = first / highest - 1, highest / float(earlier[-1]) - 1
    if later[1:].min() >= first or not round(min(risen, fallen), 9) > limits.rise:
        return None
    return _Answer(highest, first, False, None, to_the_end=False, over="highest")


def _spread(losses: Floats) -> float:
    """Standard deviation of the noise; of few losses not less than their widest change shows."""
    changes = np.abs(np.diff(losses))
    if changes.size < BLOCK - 1:
        return float(changes.max()) / math.sqrt(2)
    return 1.4826 * float(np.median(changes)) / math.sqrt(2)


def _blocks(losses: Floats, block: int) -> list[Floats]:
    """The finite rows, so many at a time."""
    finite = losses[np.isfinite(losses)]
    return [finite[i : i + block] for i in range(0, finite.size - block + 1, block)]


def _finding(
    trace: Trace, steps: IntArray, rates: Floats, row: int, answer: _Answer, limits: Limits
) -> Finding:
    since, before, after = int(steps[row]), float(rates[row - 1]), float(rates[row])
    factor = min(after / before, 1e9) if before > 0 else 1e9
    last = int(trace.series["loss"].steps[-1])
    if answer.first_broken is not None:
        end = " to the end" if answer.to_the_end else ""
        said = f"the loss is not finite from step {answer.first_broken:,} on{end}"
        severity = Severity.CRITICAL if answer.to_the_end else Severity.WARN
        what = f"updates from the jump to the first loss that is not finite; the limit is {SOON}"
        evidence = Evidence("loss", what, answer.first_broken - since, SOON, "steps")
    else:
        by = f"{100 * answer.rise:.3g} % above the {answer.before:.4g} before"
        said = f"the loss stayed {by}, or more" if answer.lasts else f"the loss rose {by}, and fell"
        is_high = answer.rise > limits.uphill
        severity = Severity.WARN if answer.lasts or is_high else Severity.NOTE
        what = f"rise of the loss since, over the {answer.over} of the rows before"
        evidence = Evidence("loss", what, 100 * answer.rise, 100 * limits.rise, "%")
    return Finding(
        severity=severity,
        summary=(
            f"The learning rate jumps from {before:.3g} to {after:.3g} at step {since:,} (limit"
            f" {limits.factor:g} times), and {said}."
        ),
        steps=(since, last),
        awaits_symptom=severity is Severity.NOTE,
        evidence=(
            Evidence("lr", "factor of the rate in one row", factor, limits.factor, "times"),
            evidence,
        ),
        treatments=_treatments(since, after),
    )


def _treatments(since: int, after: float) -> tuple[Treatment, ...]:
    return (
        Treatment(
            title=f"Go back to before step {since:,} and reach {after:.3g} by a warm-up",
            safety="manual",
            source="a step that is large for where the weights lie leads uphill",
        ),
        Treatment(
            title=f"Or go on with a peak of a third of {after:.3g}",
            safety="manual",
            source="a loss that answers to a rate shows that the rate is too high there",
        ),
        Treatment(
            title="Print the rate of every update around the end of the warm-up, from a copy of"
            " the scheduler that runs alone",
            when="check",
            safety="safe",
            source="a schedule needs no model to be seen",
        ),
    )


def _run(jump: bool) -> Trace:
    """400 updates; at step 101 the rate is 20 times as high, and the loss rises for good."""
    rates = np.full(400, 5e-5)
    rates[100:] = 1e-3 if jump else 5e-5
    loss = falling_loss()
    loss[101:] += 2.0 * jump
    return make_trace(loss=loss, lr=rates)


RULE = rule.Rule(
    name="learning-rate-jump",
    needs=("lr", "loss"),
    uses=("loss_kind",),
    explains=(
        "dead-units",
        "divergence",
        "early-plateau",
        "loss-spike",
        "nan-pulse",
        "step-too-large",
        "upward-drift",
    ),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(jump=True),
    healthy=lambda: _run(jump=False),
    doc=__doc__ or "",
)
