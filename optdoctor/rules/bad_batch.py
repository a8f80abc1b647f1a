"""Single batches raise the loss and the gradient norm at once.

## What it finds
Rows at which both the loss and the gradient norm stand more than 6 robust standard deviations above
the 64 rows before (of their log2, from the differences of neighbours), with a loss that rises and
falls at once, at the next row or after a file of up to 16 bad batches: by half of the rise, or to a
quarter. What is left then is what the update did to the weights. The loss alone or the norm alone
never counts, nor a rise just after an update whose own gradient stood out. Where such rows come
again, the evidence says whether at a constant distance, and names the batch where the run records
it.
## Why it matters
The loss of a broken batch is its own: it rises at the very step whose gradient it makes. What it
does to the weights shows one step later: little with Adam, whose steps are bounded, and with plain
SGD up to the loss of the run. Batches that come again do so in every epoch.
## What to do
Look at the batches of those steps: wrong labels, another scale or language, a broken file. Evaluate
the loss on them again without training; high again means the batch. Until then a gradient clip at
1.5 times the usual norm bounds the harm. Clipping is not offered where rises last, as data sorted
by class make them: there it does harm, and shuffling is what helps.
## When it is fine
A hard example in a small batch: a single row below a doubling is a note and never an alarm; 5 % of
the first losses are added before, so that losses near zero do not count. Losses that are means over
several steps, and rows many steps apart, cannot be judged, and are not.
A loss that swings up over several rows, as at the edge of stability, is no batch's.
## Told apart from
`divergence`: the loss stays up; this rule does not count such a rise, and where it sees no more of
others it says that it cannot tell.
A learning rate that jumps for one update: the rise comes one step after it, and is not counted.
`loss-spike`: the same rise in the loss alone, whatever made it.
`staircase-oscillation`: the wave that batches which come again draw in the loss.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.gradient_norm import UNKNOWN, gradient_norm
from optdoctor.curves.masked import FILTERED_BY, unmasked, witness
from optdoctor.curves.rows import lookup
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import NEVER_FALLING, called
from optdoctor.knowledge.saved_batches import saved_batches
from optdoctor.store import IntArray, Series
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace
from optdoctor.trace import Trace

WINDOW, HISTORY, NEAR = 64, 32, 5
"""Rows before a row that say what is usual there, the fewest that do, and the nearest of them."""
BLOCK = 4096
"""Rows that are looked at in one array operation."""
FLOOR = {"loss": 0.05, "norm": 0.1}
"""Least standard deviation in log2: rows of a smooth curve are no spikes for a small step."""
SOFT = 0.05
"""Share of the first losses added before the logarithm: losses near zero jump by large factors."""
AROUND, LONGEST, FAR = 3, 16, 4
"""Rows before and after a rise that it is measured against; the rows that it lasts at most, as a
broken file feeds several batches; and the steps between rows beyond which none is one batch's."""
BEGINS = 0.7
"""Share of its height in log2 that the first row of a rise reaches from below the rest of it:
batches of a file are alike, and the row before them is none of theirs."""
FALL = 2.0
"""Doublings of the loss that one update hardly wins back: a loss that falls to a quarter in one row
was its batch's, whatever is left of the rise: heuristic."""
RISEN = 0.3
"""log2 of the loss above its best level beyond which spikes are those of a run that is lost."""
SPACED = 4
"""Rises from which their distances tell whether they are constant."""
SPACING = 0.15
"""Variation of the distances between spikes, over their mean, below which they are constant."""
JUMP = 1.5
"""Usual rates beyond which that of one update stands out: no schedule rises so fast in one step."""
CLIP = 1.5
"""Usual norms at which the gradient is clipped in the emergency."""
TINY = 1e-6
"""Share of a loss below which what was usual before is named itself, and no ratio."""
TRIED = "rescued 3 of 3 small SGD runs: tests/rules/test_bad_batch.py"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = HISTORY + AROUND + 1
    """What is usual, one row above it, and the rows that show it was a single one."""
    deviations: float = 6.0
    """Largest joint rise of a healthy run, in robust standard deviations: heuristic. One of
    the two alone goes beyond it in healthy runs, which is why both are asked for."""
    blip: float = 1.0
    """Largest rise of the loss, softened, in doublings, of which a single one is no alarm."""
    few: int = 3
    """Most rows of such batches, none of them above `blip`, that are no alarm."""


class _Rise(NamedTuple):
    """A series against what is usual: log2 level [n], and what `_above_usual` tells of it."""

    steps: IntArray  # [n] where it was highest
    values: Floats  # the highest, as recorded
    level: Floats
    middle: Floats  # median of the window before
    base: Floats  # the same, or that of its last rows where it is higher
    rise: Floats  # level above base
    score: Floats  # rise in standard deviations


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    name = gradient_norm(trace)
    if not name:
        return Abstain(UNKNOWN)
    if cannot := _cannot_judge(trace):
        return Abstain(cannot)
    norm_series = trace.series[name]
    loss_series = unmasked(trace.series["loss"], witness(trace))
    losses = loss_series.high[np.isfinite(loss_series.high)]
    soft = SOFT * float(np.median(losses[:AROUND])) if losses.size else 0.0
    if not soft > 0 or losses.min() < 0:
        return Abstain("losses at or below 0 have no ratio")
    loss, norm = _against_usual(loss_series, soft, "loss"), _against_usual(norm_series, 0.0, "norm")
    at = np.minimum(np.searchsorted(norm.steps, loss.steps), max(norm.steps.size - 1, 0))
    if not norm.steps.size:
        return Abstain("no norm is a positive number")
    of_norm = np.where(norm.steps[at] == loss.steps, norm.score[at], np.nan)
    both = np.minimum(loss.score, of_norm)  # [n], NaN where one is not known
    single, lasting, calm_again = _parted(both, of_norm, loss, limits.deviations)
    single = [(first, last) for first, last in single if not _rate_jumped(trace, loss, first)]
    if len(lasting) > len(single):
        return Abstain(
            f"loss and norm rose together at step {loss.steps[lasting[0]]} and the loss stayed up:"
            " batch, order of data and learning rate look alike there"
        )
    if not single and (broken := int(loss_series.bad.sum())):
        return Abstain(f"losses not finite, {broken} of them: how high they rose is not known")
    if not single:
        return []
    found = np.array(single)  # [spikes, 2]
    steps, longest = loss.steps[found[:, 0]], int(np.diff(found).max()) + 1
    inside = np.concatenate([np.arange(first, last + 1) for first, last in single])
    worst = int(inside[np.nanargmax(both[inside])])
    height, usual = float(loss.rise[worst]), 2 ** float(norm.middle[at[worst]])
    steep = height > limits.blip
    alarm = len(inside) > limits.few or steep
    step = int(loss.steps[worst])
    end = int(loss.steps[single[-1][1]])
    value, before = float(loss.values[worst]), _median_before(loss.values, worst)
    often = f"{len(single)} times, " if len(single) > 1 else ""
    who = f"{longest} batches in a row raise" if longest > 1 else "a batch raises"
    said = f"{often}{'up to ' * (longest > 1 < len(single))}{who}"
    when = f", from step {steps[0]} to step {end}, most" if end > steps[0] else ""
    return [
        Finding(
            severity=Severity.WARN if alarm else Severity.NOTE,
            summary=(
                f"{said[0].upper()}{said[1:]} loss and gradient norm at once{when} at step"
                f" {step}: the loss {_how_far(value, before)}, and both at least"
                f" {both[worst]:.3g} standard deviations (limit {limits.deviations:g})."
            ),
            steps=(int(steps[0]), max(end, int(loss.steps[calm_again - 1]))),
            evidence=(
                _deviation("loss", "loss", step, loss.score[worst], limits),
                _deviation(name, "gradient norm", step, of_norm[worst], limits),
                # Where only their number is an alarm, a height within its limit says nothing.
                *([_height(loss, worst, before, soft, limits)] if steep or not alarm else ()),
                *_recurrence(steps, len(inside), trace, limits),
            ),
            treatments=(
                *saved_batches(trace, loss.steps[inside]),
                *_treatments(trace, steps, usual, not lasting and longest == 1),
            ),
        )
    ]


def _cannot_judge(trace: Trace) -> str:
    """Why a row's loss and norm need not be those of one batch, "" where they are."""
    if (kind := trace.facts.get("loss_kind")) in NEVER_FALLING:
        return f"{called(str(kind))} jumps in a good run"
    if (_number(trace, "loss_window") or 1.0) > 1:
        return "a loss is the mean of several updates, a norm that of one"
    loss = trace.series["loss"]
    distance = (loss.steps[-1] - loss.starts[0]) / max(loss.rows - 1, 1)
    if distance > FAR:
        return (
            f"rows are {distance:.3g} steps apart: what passes between them need not be one batch"
        )
    return ""


def _number(trace: Trace, fact: str) -> float | None:
    """A fact that is a positive number, None where it is something else."""
    value = trace.facts.get(fact)
    return float(value) if isinstance(value, int | float) and 0 < value < 2**53 else None


def _against_usual(series: Series, soft: float, kind: str) -> _Rise:
    """The series' highest values, row by row, against the rows before.

    The noise is that of neighbours' differences: a loss that falls fast has not the spread of its
    fall. The first `HISTORY` rows have none. Rounded, so that all machines judge alike at a limit.
    """
    known = np.isfinite(series.high) & (series.high + soft > 0)
    values = np.asarray(series.high[known], np.float64)
    level = np.log2(values + soft)
    change = np.diff(level)
    middle, base, spread = (np.full(len(level), np.nan) for _ in range(3))
    for first in range(HISTORY, len(level), BLOCK):
        rows = np.arange(first, min(first + BLOCK, len(level)))
        changes = _before(change, rows - 1, WINDOW - 1)
        changes = np.abs(changes - _medians(changes, rows - 1)[:, None])
        spread[rows] = _medians(changes, rows - 1) / np.sqrt(2)
        middle[rows] = _medians(_before(level, rows, WINDOW), rows)
        base[rows] = np.maximum(middle[rows], _medians(_before(level, rows, NEAR), rows))
    rise = np.round(level - base, 9)
    score = np.round(rise / np.maximum(1.4826 * spread, FLOOR[kind]), 9)
    return _Rise(series.high_step[known], values, level, middle, base, rise, score)


def _before(values: Floats, rows: IntArray, width: int) -> Floats:
    """[n, width]: the values before each of n consecutive rows; infinite before the first."""
    first, stop = int(rows[0]) - width, int(rows[-1])
    missing = np.full(max(-first, 0), np.inf)
    known = np.concatenate((missing, values[max(first, 0) : stop]))
    return np.lib.stride_tricks.sliding_window_view(known, width)


def _medians(windows: Floats, known: IntArray) -> Floats:
    """[n]: median of each window [width], of which at most `known` values are not infinite.

    Each is sorted whole: processors do that faster than numpy's `median` finds the middle.
    """
    count, each = np.minimum(known, windows.shape[1]), np.arange(len(windows))
    ordered = np.sort(windows, axis=1)
    return np.asarray((ordered[each, (count - 1) // 2] + ordered[each, count // 2]) / 2)


def _tops(both: Floats, limit: float) -> list[int]:
    """The highest row of each joint rise."""
    rows = np.flatnonzero(both > limit)
    groups = np.split(rows, np.flatnonzero(np.diff(rows) > AROUND) + 1) if rows.size else []
    return [int(group[np.argmax(both[group])]) for group in groups]


def _parted(
    both: Floats, of_norm: Floats, loss: _Rise, limit: float
) -> tuple[list[tuple[int, int]], list[int], int]:
    """(first, last row) of the rises that came and went at once; first rows of those that did not;
    the row at which the loss was back after the last that went.

    Left out: one whose course is not known yet, unless others came before it; what follows a
    lasting one within the window and so is judged against rows from before it; a first one in a run
    that is lost already; one just after an update of a gradient beyond the usual, which is its
    work; and what lies between a single one and the return of the loss.
    """
    single: list[tuple[int, int]] = []
    lasting: list[int] = []
    level, calm_again = loss.level, 0
    best = np.fmin.accumulate(loss.middle)
    struck = of_norm > limit
    for top in _tops(both, limit):
        lost = not single and loss.middle[top] > best[top] + RISEN
        if lost or top < calm_again or (lasting and top - lasting[-1] < WINDOW):
            continue
        first = top - int(np.argmax(level[top::-1] < loss.base[top] + loss.rise[top] / 2)) + 1
        if struck[first - AROUND : first].any():
            continue
        calm = float(np.median(level[first - AROUND : first]))
        half = (calm + level[top]) / 2
        fell = np.flatnonzero((level[top + 1 :] < half) | (level[top:-1] - level[top + 1 :] > FALL))
        last = top + int(fell[0]) if fell.size else len(level) - 1
        after = level[last + 1 : last + 1 + AROUND]
        usual = float(loss.middle[top])
        before, begin = (level[first - 1 : first + 1] - usual) / (level[top] - usual)
        begins = bool(before <= 1 - BEGINS and begin >= BEGINS)
        if last - first < LONGEST and len(after) < AROUND:
            if single and not lasting and begins:
                single.append((first, last))
            continue
        # What a batch raised is gone with it, whatever its update did to the weights. A loss that
        # they must win back fades: it crosses the half in small steps. One that grows over rows is
        # the run's own swing, as at the edge of stability.
        gone = max((calm + level[last]) / 2, level[last] - FALL)
        is_gone = last - first < LONGEST and max(after[0], np.median(after)) < gone
        if is_gone and begins:
            single.append((first, last))
            calm_again = last + 1 + _first_calm(level[last + 1 :], half)
        else:
            lasting.append(first)
    return single, lasting, calm_again


def _first_calm(level: Floats, half: float) -> int:
    """The first row from which `AROUND` rows in the middle lie below the half; all if none does."""
    for row in range(len(level) - AROUND + 1):
        if np.median(level[row : row + AROUND]) < half:
            return row
    return len(level)


def _rate_jumped(trace: Trace, loss: _Rise, top: int) -> bool:
    """Whether an update just before had a larger rate than usual: what rises then is its work."""
    if "lr" not in trace.series:
        return False
    rates = lookup(trace.series["lr"], loss.steps[max(top - WINDOW, 0) : top])
    near = rates[-AROUND:][np.isfinite(rates[-AROUND:])]
    return near.size > 0 and bool(near.max() > JUMP * np.nanmedian(rates))


def _median_before(losses: Floats, row: int) -> float:
    return float(np.median(losses[max(row - WINDOW, 0) : row]))


def _how_far(value: float, before: float) -> str:
    """`5.01-fold`: the plain ratio, where there is one."""
    if before > TINY * value:
        return f"{value / before:.3g}-fold"
    return f"from {before:.3g} to {value:.3g}"


def _height(loss: _Rise, row: int, before: float, soft: float, limits: Limits) -> Evidence:
    """The loss over what was usual: `blip`, which limits the softened rise, told in plain."""
    step, value = int(loss.steps[row]), float(loss.values[row])
    limit = float(2 ** (loss.base[row] + limits.blip)) - soft
    rows = min(row, WINDOW)
    if before > TINY * max(value, soft):
        what = f"loss at step {step} over the median of the {rows} rows before, and back at once"
        return Evidence("loss", what, value / before, limit / before, "times")
    what = f"loss at step {step}, and back at once; median of the {rows} rows before: {before:.3g}"
    return Evidence("loss", what, value, limit, "loss")


def _deviation(channel: str, word: str, step: int, score: float, limits: Limits) -> Evidence:
    what = f"{word} at step {step} above the median of the rows before"
    return Evidence(channel, what, float(score), limits.deviations, "standard deviations")


def _recurrence(steps: IntArray, rows: int, trace: Trace, limits: Limits) -> list[Evidence]:
    """How many rows there are, and how the rises come again where there are more than a few."""
    evidence = [Evidence("loss", "rows of such batches in all", rows, limits.few, "rows")]
    if len(steps) <= 1:
        return evidence if rows > 1 else []
    distances = np.diff(steps).astype(np.float64)
    if len(steps) >= SPACED:
        variation = float(distances.std() / distances.mean())
        constant = variation < SPACING
        usual = f"{np.median(distances):.4g}"
        how = (
            f"constant: {usual} steps apart" if constant else f"not constant: {usual} in the middle"
        )
        what = f"variation of the distance between them, {how}"
        evidence.append(Evidence("loss", what, variation, SPACING, "of the mean"))
    if "batch_index" in trace.series:
        indices = lookup(trace.series["batch_index"], steps)
        known, times = np.unique(indices[np.isfinite(indices)], return_counts=True)
        if times.size and times.max() > 1:
            what = f"of them at batch {known[times.argmax()]:.0f} of an epoch"
            evidence.append(Evidence("batch_index", what, int(times.max()), 1, "spikes"))
    if "epoch" in trace.series:
        epochs = lookup(trace.series["epoch"], steps)
        passed = np.ptp(epochs) if np.isfinite(epochs).all() else 0.0
        if passed >= 1:
            what = f"epochs from the first to the last of the {len(steps)}"
            evidence.append(Evidence("epoch", what, float(passed), float(len(steps) - 1), "epochs"))
    return evidence


def _treatments(
    trace: Trace, steps: IntArray, usual: float, outliers: bool
) -> tuple[Treatment, ...]:
    named = ", ".join(f"{step}" for step in steps[:3]) + (", ..." if len(steps) > 3 else "")
    plural = "s" if len(steps) > 1 else ""
    again = Treatment(
        title=f"Evaluate the batch of step {steps[0]} again without training: if its loss is high,"
        " the batch is broken",
        when="check",
        safety="safe",
        basis="heuristic",
        source="what weights did to a loss passes with them, a broken batch stays broken",
    )
    batch = Treatment(
        title=f"Look at the batch{'es' * bool(plural)} of step{plural} {named} and leave out"
        " what is broken",
        when="next",
        safety="manual",
        basis="heuristic",
        source="loss and gradient of a broken batch rise at its own step",
    )
    bound = float(f"{CLIP * usual:.2g}")
    clip = _number(trace, "max_grad_norm")
    if not outliers or bound <= 0 or (clip is not None and clip <= bound):
        return batch, again
    now = Treatment(
        title=f"Clip the gradient at {bound:g}, {CLIP:g} times its usual norm",
        changes={"max_grad_norm": (clip, bound)},
        when="now",
        safety="risky",
        basis="measured",
        source=TRIED,
        intervention="" if clip else "adaptive-clipping",
    )
    return batch, again, now


def _sick() -> Trace:
    loss, norm = falling_loss(), gradient_norms()
    loss[99::50] *= 2.5
    norm[99::50] *= 8
    return make_trace(loss=loss, grad_norm=norm)


RULE = rule.Rule(
    name="bad-batch",
    needs=("loss", "grad_norm|grad_norm_used"),
    uses=("loss_kind", "lr", "batch_index", "epoch", "max_grad_norm", *FILTERED_BY),
    explains=(
        "staircase-oscillation",
        "loss-spike",
        "gradient-outlier",
        "divergence",
        "nonfinite-gradient",
        "nan-pulse",
    ),
    transient=True,
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss(), grad_norm=gradient_norms()),
    doc=__doc__ or "",
)
