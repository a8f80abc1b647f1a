"""The learning-rate schedule runs a whole number of times faster than the updates.

## What it finds
A rate that comes down row by row and then rests until the last row, at half of its peak or lower,
where this rest began after a whole fraction of the planned updates, 1/2, 1/3 and so on, to within
2 %; or a warm-up that reached its peak after such a fraction of its planned updates. A warning
where something else has the same number: the micro-batches of an update, the processes, their
product, the batches of an epoch, or the warm-up and the end each other. A half that nothing else
confirms is a note: a scheduler that a framework and the loop both step. Other fractions are not
told then. Needs the planned updates of the run or of the warm-up; without them there is nothing to
compare with, nor in a schedule that falls by a factor for ever, as StepLR does.
## Why it matters
The scheduler counts its own calls. Called for every micro-batch, for every process, or for every
batch where it counts epochs, it has spent its plan early, and the rest of the run is trained with
the last rate. A warm-up that is over too soon does not protect the first updates.
## What to do
Call the scheduler once after each update of the optimizer, nowhere else; or give it as many steps
as it will be called. With a framework that steps it, take the call out of the loop.
## When it is fine
A schedule that was meant to end at a quarter of the run, with a constant rate after it: no other
number agrees, or the warm-up took as long as planned, which none does whose scheduler steps too
often. A cosine past its end rises again. Milestones, and rates that change once in an epoch, rest
between two changes: a rest counts only where it is five times as long as any before it.
## Told apart from
`learning-rate-spent`: that the rate is gone too early, whatever made it so; this is one reason for
it. `learning-rate-restarted`: the schedule begins again.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.companions import epoch_length
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

MOST = 100_000
"""Largest number of calls an update that is looked for."""
LONGER = 5
"""How many times the longest rest before it a rest must be, to be the end of the schedule."""
FALLS = 10
"""Rows in which the rate must have fallen before it: a schedule, not milestones."""
IN_EACH = 5
"""Rows that are as good, where it fell in each of them and they lie as many updates apart."""
LOW = 0.5
"""Share of the peak above which a rate at rest is not the end of a schedule."""
TWICE = 2
"""The number that needs no other: once by the framework, once in the loop."""
RAMP = 3
"""Rows of a warm-up below which its length is not known."""
SAME = 1e-6
"""Share of the peak below which two rates are the same."""

ENDLESS = frozenset({"ExponentialLR", "MultiplicativeLR", "StepLR"})
"""Schedules that fall by a factor for ever: nothing tells in how many calls they were to do so."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 3
    """A shortest warm-up; a rest at the end needs ten rows before it."""
    tolerance: float = 0.02
    """Largest distance from a whole number, as a share of it: a row more or less at the end."""


class _Part(NamedTuple):
    """A part of the schedule, and how much faster than planned it went: between two numbers."""

    channel: str
    least: float
    most: float
    took: int

    def off(self, times: int) -> float:
        """How far away a whole number lies, as a share of it."""
        return round(max(self.least - times, times - self.most, 0.0) / times, 6)

    def fits(self, times: int, limits: Limits) -> bool:
        return self.off(times) <= limits.tolerance


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    if trace.has("resumed_from"):
        return Abstain("the run was resumed: where its schedule began is not known")
    if trace.facts.get("schedule") in ENDLESS:
        return Abstain(f"{trace.facts['schedule']} has no end that could come too early")
    lr = trace.series["lr"]
    kept = np.isfinite(lr.values) & (lr.values >= 0)
    steps, rates = lr.steps[kept], np.asarray(lr.values[kept], np.float64)
    if not rates.size or rates.max() <= 0:
        return []
    end = _part(trace, "total_steps", steps, _end(steps, rates))
    warm_up = _part(trace, "warmup_steps", steps, _peak(rates))
    if warm_up is not None and warm_up.fits(1, limits):
        return []  # it went at the planned pace, so the end was planned as well
    parts = [part for part in (end, warm_up) if part is not None]
    known = _known(trace)
    since = int(steps[_highest(rates)])
    for part in parts:
        times = _times(part, known, limits)
        fitting = [one for one in parts if times and one.fits(times, limits)]
        if times == TWICE or times in known or len(fitting) > 1:
            seen = (since, int(steps[-1]))
            return [_finding(trace, part, times, fitting, known, seen, limits)]
    return []


def _times(part: _Part, known: dict[int, str], limits: Limits) -> int:
    """The whole number that fits, one that is known from elsewhere first; 0 where none or many."""
    whole = range(round(part.least), min(round(part.most), MOST) + 1)
    fits = [n for n in whole if n >= 2 and part.fits(n, limits)]
    agreeing = [n for n in fits if n in known]
    return agreeing[0] if agreeing else fits[0] if len(fits) == 1 else 0


def _finding(
    trace: Trace,
    first: _Part,
    times: int,
    fitting: list[_Part],
    known: dict[int, str],
    seen: tuple[int, int],
    limits: Limits,
) -> Finding:
    agreeing = [known[times]] if times in known else []
    agreeing += ["the warm-up"] if len(fitting) > 1 else []
    word = "end" if first.channel == "total_steps" else "peak"
    meaning = f"{times} calls of the scheduler an update"
    meaning += f", as {' and '.join(agreeing)} would have it" if agreeing else ", or so planned"
    return Finding(
        severity=Severity.WARN if agreeing else Severity.NOTE,
        summary=(
            f"The learning-rate schedule reached its {word} within {first.took:,} updates of"
            f" {_planned(trace, first.channel):,} planned for it, 1/{times} to within"
            f" {100 * first.off(times):.2g} % (limit {100 * limits.tolerance:g} %): {meaning}."
        ),
        steps=seen,
        awaits_symptom=not agreeing,
        evidence=tuple(_evidence(part, times, limits) for part in fitting),
        treatments=_treatments(times),
    )


def _evidence(part: _Part, times: int, limits: Limits) -> Evidence:
    of = "the run" if part.channel == "total_steps" else "the warm-up"
    what = f"distance from 1/{times} of the updates planned for {of}; it took {part.took:,}"
    return Evidence(part.channel, what, 100 * part.off(times), 100 * limits.tolerance, "%")


def _planned(trace: Trace, name: str) -> int:
    planned = trace.facts.get(name)
    return planned if isinstance(planned, int) and 0 < planned < 2**53 else 0


def _part(trace: Trace, name: str, steps: IntArray, row: int | None) -> _Part | None:
    planned = _planned(trace, name)
    if row is None or not planned:
        return None
    begin = _begin(steps)
    least, most = int(steps[row - 1]) - begin + 1, int(steps[row]) - begin + 1
    return _Part(name, planned / most, planned / least, most)


def _begin(steps: IntArray) -> int:
    """The first update: a log of each tenth begins with the tenth."""
    first, apart = int(steps[0]), int(np.median(np.diff(steps)))
    return min(first, 1) if first <= apart else first


def _end(steps: IntArray, rates: Floats) -> int | None:
    """The row from which the rate rests to the end; None where it does not, or fell by steps."""
    changes = np.flatnonzero(np.abs(np.diff(rates)) > 0) + 1
    if not changes.size:
        return None
    row, peak = int(changes[-1]), float(rates.max())
    falls = changes[np.diff(rates)[changes - 1] < 0]
    if not falls.size or falls[-1] != row or rates[row] > LOW * peak:
        return None
    rests = np.diff(falls)
    within = falls[:-1] >= int(np.flatnonzero(rates >= peak * (1 - SAME))[-1])
    longest = int(rests[within].max(initial=1))
    in_each = falls.size >= IN_EACH and int(rests.max(initial=1)) == 1
    spanned = int(steps[row] - steps[falls[0] - 1])
    if falls.size < FALLS and not (in_each and spanned >= FALLS):
        return None
    return row if rates.size - row >= LONGER * longest else None


def _peak(rates: Floats) -> int | None:
    """The row at which the rate first reaches its peak, after it rose row by row."""
    row = _highest(rates)
    if row < RAMP or rates.size - row <= row or not (np.diff(rates[: row + 1]) > 0).all():
        return None
    return row if rates[0] * RAMP <= rates[row] else None


def _highest(rates: Floats) -> int:
    """The first row at the peak."""
    return int(np.flatnonzero(rates >= rates.max() * (1 - SAME))[0])


def _known(trace: Trace) -> dict[int, str]:
    """{number of calls an update that a usual mistake makes: what it is the number of}."""
    told = epoch_length(trace)
    epoch = round(min(told[1], MOST)) if told is not None else 1
    parts = trace.facts.get("accumulation_steps"), trace.facts.get("world_size")
    batches, processes = (n if isinstance(n, int) and 0 < n < 2**31 else 1 for n in parts)
    both = f"{batches} micro-batches on {processes} processes"
    return {
        epoch: f"{epoch:,} updates an epoch",
        batches * processes: both,
        processes: f"{processes} processes",
        batches: f"{batches} micro-batches an update",
    }


def _treatments(times: int) -> tuple[Treatment, ...]:
    return (
        Treatment(
            title="Call the scheduler once after each update of the optimizer and nowhere else",
            safety="manual",
            source="schedulers count their own calls, not the updates",
        ),
        Treatment(
            title=f"Or plan the schedule in its own calls: {times} times as many steps, of the"
            " warm-up too",
            safety="manual",
            source="huggingface/accelerate steps a prepared scheduler once for each process",
        ),
        Treatment(
            title="Compare the scheduler's count of steps with the optimizer's",
            when="check",
            safety="safe",
            source=f"{times} calls an update leave a count that is {times} times as high",
        ),
    )


def _run(times: int) -> Trace:
    """400 updates, 20 of them planned as warm-up, with so many calls of the scheduler each."""
    at = np.minimum(times * np.arange(400), 400)
    rates = 1e-3 * np.minimum((at + 1) / 20, 1 - at / 400)
    return make_trace(loss=falling_loss(), lr=rates, total_steps=400, accumulation_steps=4)


RULE = rule.Rule(
    name="learning-rate-stepped-too-often",
    needs=("lr", "total_steps|warmup_steps"),
    uses=("accumulation_steps", "resumed_from", "schedule", "world_size", "epoch", "batch_index"),
    explains=("learning-rate-spent", "early-plateau"),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(4),
    healthy=lambda: _run(1),
    doc=__doc__ or "",
)
