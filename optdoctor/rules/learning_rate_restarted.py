"""The learning-rate schedule starts again in the middle of the run.

## What it finds
A resume at which the rate jumps by more than a factor of 1.5 and then repeats the first rows of the
run, number for number; or at which it jumps to another value. The jump may come one row later: an
optimizer brings its last rate with its state, and a new scheduler writes its own after the first
update. A warning where the rows repeat and the run has a planned number of updates, or the loss
rises there; else a note. Without a resume it is a note, and only where the rate falls from more
than a quarter of its peak and repeats a warm-up.
## Why it matters
The schedule has lost its place. Its end lies beyond the end of the run, so the rate never comes
down as planned, and a second warm-up or a rate at its peak undoes a part of what was learnt.
## What to do
Save the state of the scheduler with that of the optimizer, load both before the first update, and
build the scheduler before its state is loaded. Compare the rate of the first update after a resume
with the last one before it.
## When it is fine
Training that goes on with new data warms up again on purpose; so does a run whose schedule had come
to its end, which is a note here. Cyclic schedules and warm restarts jump without a resume, or more
than once, and are left out: a resume at the very end of a cycle is one of several such jumps.
## Told apart from
`learning-rate-jump`: the loss answers to a jump, wherever it comes from. `learning-rate-spent`:
the schedule ended too early and nothing set it back.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Event, Trace

EQUAL = 1e-3
"""Share of the peak by which a repeated rate may differ: logs print few digits."""
NEAR = 10
"""Rows on each side of a jump that tell what is usual."""
USUAL = 3.0
"""Multiple, in logarithms, of the largest change of a row nearby from which a change is a jump."""
ENDED = 0.03
"""Share of the peak below which a schedule had come to its end."""
MIDDLE = 0.25
"""Share of the peak above which a rate is in the middle of its schedule, not between two cycles."""
CYCLIC = ("restart", "cyclic", "cycle")
"""Parts of names of schedules that jump by themselves."""
SIGMAS, ROSE = 5.0, 0.05
"""Standard errors and share by which the median loss of the rows after a jump is higher."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 20
    """Ten rows of the beginning, and ten that repeat them."""
    jump: float = 1.5
    """Largest factor between two neighbouring rows around a resume that is no jump."""
    repeated: int = 10
    """Rows that must repeat those of the beginning."""


class _Jump(NamedTuple):
    """A place where the rate has another value than the row before leads to expect."""

    row: int
    begins: int
    """The row of the resume, `row` where there is none: the rate of one update may be loaded."""
    before: float
    after: float
    resumed: bool
    repeats: bool

    @property
    def factor(self) -> float:
        low, high = sorted((self.before, self.after))
        return round(high / low, 6) if low > 0 and high < 1e9 * low else 1e9


def check(trace: Trace, limits: Limits) -> list[Finding]:
    lr = trace.series["lr"]
    kept = np.isfinite(lr.values) & (lr.values >= 0)
    steps, rates = lr.steps[kept], np.asarray(lr.values[kept], np.float64)
    if not rates.size or rates.max() <= 0:
        return []
    if any(part in str(trace.facts.get("schedule", "")).lower() for part in CYCLIC):
        return []
    jumps = _jumps(steps, rates, _resumes(trace), limits)
    if any(not one.resumed and one.after > one.before for one in jumps):
        jumps = [one for one in jumps if one.after < one.before]  # restarts rise by themselves
    told = [one for one in jumps if one.resumed]
    alone = [one for one in jumps if not one.resumed and one.repeats]
    if not told and len(alone) == 1 and alone[0].before > MIDDLE * rates.max():
        told = [one for one in alone if _varies(rates, limits)]
    return [_finding(trace, steps, rates, one, limits) for one in told[-1:]]


def _resumes(trace: Trace) -> IntArray:
    steps = [event.step for event in trace.events if event.kind == "resume"]
    last = trace.facts.get("resumed_from")
    if isinstance(last, int | float) and 0 < last < 2**53:
        steps.append(int(last) + 1)
    return np.unique(np.array(steps, np.int64))


def _jumps(steps: IntArray, rates: Floats, resumes: IntArray, limits: Limits) -> list[_Jump]:
    """All jumps before and after which there are rows enough."""
    level = np.log(np.maximum(rates, 1e-9 * rates.max()))
    change = np.abs(np.diff(level))  # [n - 1]
    at_resume = {int(row) for row in np.searchsorted(steps, resumes)}
    found = []
    for row in (np.flatnonzero(change) + 1).tolist():
        if not _is_jump(rates, row, limits) or min(row, rates.size - row) < limits.repeated:
            continue
        near = np.r_[change[max(row - 1 - NEAR, 0) : row - 1], change[row : row + NEAR]]
        is_late = row - 1 in at_resume and not _is_jump(rates, row - 1, limits)
        begins = row - is_late
        repeats = _repeated(steps, rates, row, begins) >= limits.repeated
        steady = change[row - 1] > USUAL * near.max(initial=0.0)
        if repeats or steady:
            before, after = float(rates[row - 1]), float(rates[row])
            found.append(_Jump(row, begins, before, after, begins in at_resume, repeats))
    return found


def _is_jump(rates: Floats, row: int, limits: Limits) -> bool:
    low, high = sorted((rates[row - 1], rates[row]))
    return bool(high > limits.jump * low)


def _repeated(steps: IntArray, rates: Floats, row: int, begins: int) -> int:
    """Rows from `row` on that have the rate of the first rows of the run, as far behind these as
    they are behind `begins`."""
    expected = np.interp(steps[row:] - steps[begins], steps - steps[0], rates)
    close = (np.abs(rates[row:] - expected) <= EQUAL * rates.max())[:row]
    return int(close.size if close.all() else np.argmin(close))


def _varies(rates: Floats, limits: Limits) -> bool:
    """Whether the first rows warm up, so that their return is no accident."""
    first = rates[: limits.repeated]
    return bool((first[1:] > first[:-1]).all())


def _finding(trace: Trace, steps: IntArray, rates: Floats, jump: _Jump, limits: Limits) -> Finding:
    since, peak = int(steps[jump.begins]), float(rates[: jump.row].max())
    ended = jump.before < ENDED * peak
    answer = _answer(trace, since)
    planned = trace.facts.get("total_steps")
    is_planned = isinstance(planned, int) and planned > 0
    harms = jump.resumed and jump.repeats and not ended and (is_planned or answer is not None)
    where = f"at the resume at step {since:,}" if jump.resumed else f"at step {since:,}"
    what = f"from {jump.before:.3g} to {jump.after:.3g}"
    how = "starts again" if jump.repeats else "jumps"
    as_first = ", as in the first rows of the run" if jump.repeats else ""
    after = "; the schedule had come to its end" if ended else ""
    evidence = [Evidence("lr", "change of the rate in one row", jump.factor, limits.jump, "times")]
    if jump.repeats:
        what_repeats = "rows that have the rate of the first rows of the run"
        count = _repeated(steps, rates, jump.row, jump.begins)
        evidence.append(Evidence("lr", what_repeats, count, limits.repeated, "rows"))
    if answer is not None:
        what_rose = "rise of the median loss over that of as many rows before"
        evidence.append(Evidence("loss", what_rose, answer, 100 * ROSE, "%"))
    return Finding(
        severity=Severity.WARN if harms else Severity.NOTE,
        summary=(
            f"The learning rate {how} {where}: {what}{as_first},"
            f" a factor of {jump.factor:.3g} (limit {limits.jump:g}){after}."
        ),
        steps=(since, int(steps[-1])),
        awaits_symptom=jump.resumed and not ended and not harms,
        evidence=tuple(evidence),
        treatments=_treatments(jump, since),
    )


def _answer(trace: Trace, since: int) -> float | None:
    """By how many percent the median loss after that step is higher; None where it is not."""
    if "loss" not in trace.series:
        return None
    loss = trace.series["loss"]
    finite = np.isfinite(loss.values)
    before = np.asarray(loss.values[finite & (loss.steps < since)][-NEAR:], np.float64)
    after = np.asarray(loss.values[finite & (loss.steps >= since)][:NEAR], np.float64)
    if min(before.size, after.size) < NEAR or np.median(before) <= 0:
        return None
    low, high = float(np.median(before)), float(np.median(after))
    error = 1.25 * 1.4826 * float(np.median(np.abs(before - low))) / np.sqrt(NEAR / 2)
    rose = high > (1 + ROSE) * low and high - low > SIGMAS * error
    return min(100 * (high / low - 1), 1e9) if rose else None


def _treatments(jump: _Jump, since: int) -> tuple[Treatment, ...]:
    if not jump.resumed:
        return (
            Treatment(
                title=f"Look for what built the scheduler anew at step {since:,}; a warm restart"
                " that was planned looks the same",
                when="check",
                safety="safe",
                source="a scheduler begins at its own step 0 whatever the optimizer has done",
            ),
        )
    return (
        Treatment(
            title=f"Resume again from before step {since:,} with the state of the scheduler loaded,"
            " after both it and the optimizer were built",
            safety="manual",
            source="a scheduler begins at its own step 0 where no state is loaded",
        ),
        Treatment(
            title=f"Without that state: call the new scheduler's step once for each of the"
            f" {since - 1:,} updates before the first one",
            safety="manual",
            source="a schedule depends on its own count of steps alone",
        ),
        Treatment(
            title="If a new schedule was meant, nothing is to be done",
            when="check",
            safety="safe",
            source="training that goes on with new data warms up again on purpose",
        ),
    )


def _run(restarted: bool) -> Trace:
    """400 updates with warm-up and cosine, resumed at step 201."""
    row = np.arange(400)
    at = np.where((row >= 200) & restarted, row - 200, row)
    rates = 1e-3 * np.minimum(1, (at + 1) / 20) * 0.5 * (1 + np.cos(np.pi * at / 400))
    resume = Event(201, "resume", "training begins at step 201")
    return make_trace(
        loss=falling_loss(), lr=rates, total_steps=400, resumed_from=200, events=(resume,)
    )


RULE = rule.Rule(
    name="learning-rate-restarted",
    needs=("lr",),
    uses=("loss", "resumed_from", "schedule", "total_steps"),
    explains=("learning-rate-jump", "loss-spike", "upward-drift"),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(restarted=True),
    healthy=lambda: _run(restarted=False),
    doc=__doc__ or "",
)
