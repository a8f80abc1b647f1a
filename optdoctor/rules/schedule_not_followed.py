"""The learning rate does not do what the schedule that was asked for does.

## What it finds
A rate that rests until the last row, while the schedule that the run names, linear or cosine to 0
over its planned updates, has come down by more than `apart` of the peak meanwhile and stands as far
below; and a planned warm-up of which the first half is run at one rate, the highest of the run. A
rest counts where it is `LONGER` times as long as any before it since the peak, or, of a rate that
never fell, more than `MOST` of the planned updates. A note, which a symptom makes a warning.
## Why it matters
A scheduler writes its rates into the groups of the optimizer that it was given. Where a wrapper or
a loaded checkpoint has made the training another optimizer, or other groups, it goes on to print a
rate that falls, and the training has the one that it was left with.
## What to do
Compare `optimizer.param_groups[0]["lr"]` of the optimizer that steps with the scheduler's
`get_last_lr()`. Build the scheduler from that optimizer, after it is wrapped and loaded.
## When it is fine
A schedule with a floor comes to rest there: rates below a fifth of the peak are left out. A rate
that changes once in an epoch rests in each. Other names of schedules are not judged, nor optimizers
that warm up by themselves.
## Told apart from
`learning-rate-spent`: the rate comes down too early. `learning-rate-restarted`: it begins again.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.settings import count
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

Floats = NDArray[np.float64]
Shape = Callable[[Floats], Floats]

SHAPES: dict[str, Shape] = {
    "linear": lambda part: 1 - part,
    "cosine": lambda part: 0.5 * (1 + np.cos(math.pi * part)),
}
"""{word: rate in peaks, of the part of the fall that is over}, to 0 both."""
PLAIN = frozenset({*SHAPES, "warm", "warmup", "with", "schedule", "decay", "lr"})
"""Words of a name that promise nothing else, as restarts or a floor."""
SAME = 1e-6
"""Share of the peak below which two rates are the same."""
LOW = 0.2
"""Share of the peak below which a rest may be a floor."""
LONGER, MOST = 3, 0.6
"""What a rest is longer than: rests before it, and a part of the run where there are none."""
FEWEST = 10
"""Rows that a rest has at least, and updates that a warm-up has."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 20
    """A rest and as much before it."""
    apart: float = 0.2
    """Largest distance from the planned rate, in peaks: heuristic; a fifth of the way down."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    words = re.findall(r"[a-z]+", str(trace.facts["schedule"]).lower())
    shape = next((SHAPES[word] for word in words if word in SHAPES), None)
    planned = count(trace.facts["total_steps"])
    own = trace.facts.get("optimizer_family") == "schedule_free"
    if shape is None or own or not planned or not set(words) <= PLAIN:
        return []
    lr = trace.series["lr"]
    updates = lr.steps - _before(trace, lr.steps)
    kept = np.isfinite(lr.values) & (lr.values >= 0) & (updates <= planned)
    steps, rates = lr.steps[kept], np.asarray(lr.values[kept], np.float64)
    if rates.size < FEWEST or rates.max() <= 0:
        return []
    warm = count(trace.facts.get("warmup_steps")) or 0
    rates = rates / rates.max()
    finding = _no_fall(trace, shape, steps, rates, warm, limits)
    if finding is None and not trace.has("resumed_from"):
        finding = _no_warmup(steps, _before(trace, steps), rates, warm)
    return [] if finding is None else [finding]


def _before(trace: Trace, steps: IntArray) -> int:
    """The step before the first update: a log of each tenth begins with the tenth."""
    first = int(steps[0])
    within = trace.has("resumed_from") or first <= int(np.median(np.diff(steps)))
    return 0 if within else first - 1


def _no_fall(
    trace: Trace, shape: Shape, steps: IntArray, rates: Floats, warm: int, limits: Limits
) -> Finding | None:
    row, planned = _rest(rates), count(trace.facts["total_steps"]) or 1
    if rates.size - row < FEWEST or rates[row] < LOW:
        return None
    if not _is_long(steps, rates, row, planned):
        return None
    done = steps[[row, -1]] - _before(trace, steps) - 1
    over = np.clip((done - warm) / max(planned - warm, 1), 0, 1)
    first, last = (float(value) for value in shape(over))
    apart = round(float(rates[row]) - last, 9)
    if min(round(first - last, 9), apart) <= limits.apart:
        return None
    name = trace.facts["schedule"]
    return _finding(
        f"The learning rate rests at {rates[row]:.2g} of its peak from step {steps[row]:,} to step"
        f" {steps[-1]:,}, where the {name} schedule of {planned:,} updates comes down to"
        f" {last:.2g} (limit {limits.apart:g} above it).",
        (int(steps[row]), int(steps[-1])),
        Evidence("lr", "rate above the planned one, in peaks", apart, limits.apart, "peaks"),
    )


def _rest(rates: Floats) -> int:
    """The first row of the rate that lasts to the end."""
    changes = np.flatnonzero(np.abs(np.diff(rates)) > SAME)
    return int(changes[-1]) + 1 if changes.size else 0


def _is_long(steps: IntArray, rates: Floats, row: int, planned: int) -> bool:
    """Whether the rest is none of a rate that is changed once in an epoch."""
    length, peak = int(steps[-1] - steps[row]), int(rates.argmax())
    falls = np.flatnonzero(np.diff(rates[peak : row + 1]) < -SAME) + peak + 1
    if falls.size < 2:
        return length > MOST * planned
    return length > LONGER * int(np.diff(steps[falls]).max())


def _no_warmup(steps: IntArray, before: int, rates: Floats, warm: int) -> Finding | None:
    first = rates[steps - before <= warm / 2]
    within = warm >= FEWEST and first.size >= FEWEST / 2
    if not within or first.min() < 1 - SAME:
        return None
    return _finding(
        f"The learning rate is at its peak in each of the first {first.size:,} rows, the first half"
        f" of a planned warm-up of {warm:,} updates (limit 0).",
        (int(steps[0]), int(steps[first.size - 1])),
        Evidence("lr", "rows of the first half of the warm-up at the peak", first.size, 0, "rows"),
    )


def _finding(summary: str, steps: tuple[int, int], evidence: Evidence) -> Finding:
    return Finding(
        severity=Severity.NOTE,
        summary=summary,
        steps=steps,
        awaits_symptom=True,
        evidence=(evidence,),
        treatments=(
            Treatment(
                title='Print optimizer.param_groups[0]["lr"] of the optimizer that steps beside the'
                " scheduler's get_last_lr()",
                when="check",
                safety="safe",
                source="a scheduler writes into the groups that it was built with",
            ),
            Treatment(
                title="Build the scheduler from the optimizer that steps, after it is wrapped and"
                " its state is loaded",
                safety="manual",
                source="EleutherAI/gpt-neox#1029: scheduler and optimizer held different groups",
            ),
        ),
    )


def _run(bound: bool) -> Trace:
    """400 updates of a cosine with warm-up; from update 150 on the rate stays where it is."""
    at = np.arange(400) if bound else np.minimum(np.arange(400), 150)
    rates = 1e-3 * np.minimum(1, (at + 1) / 20) * 0.5 * (1 + np.cos(np.pi * at / 400))
    return make_trace(
        loss=falling_loss(), lr=rates, schedule="cosine", total_steps=400, warmup_steps=20
    )


RULE = rule.Rule(
    name="schedule-not-followed",
    needs=("lr", "schedule", "total_steps"),
    uses=("optimizer_family", "resumed_from", "warmup_steps"),
    explains=("divergence", "early-plateau", "loss-spike", "training-loss-floor"),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(bound=False),
    healthy=lambda: _run(bound=True),
    doc=__doc__ or "",
)
