"""The loss has nothing to be computed from: every label of a batch is masked.

## What it finds
Rows whose loss is NaN while the norm of the gradient in the same row is exactly 0, or finite where
an update is known to add up several micro-batches or processes, of which another may have labels;
and rows whose loss and gradient norm are both exactly 0 while the losses before them are not small.
Critical where ten at least end the run, each with a gradient norm of exactly 0, in a log that
leaves no update out: nothing is learnt. A warning where more than half of the rows since the first
have it. Else a note: the weights stay whole. Where all NaN losses of the run are of this kind, as
far as is known, the note is a warning beside the `nan-pulse` whose cause it is. Rows that are means
of several updates count only with a norm of exactly 0, and so do rows beside a gradient scaler,
which leaves broken updates out. Without a logged norm the sampled updates count. Where no norm is
known at all, and no number has 16 bits, finite losses or evaluations that come back after NaN, time
and again, show that the weights stayed whole; such losses are told where they are ten at least and
more than half of the rows since the first.
## Why it matters
A mean over no label is 0 / 0, which is NaN, and its gradient is exactly 0: the batch is lost, the
weights are not. A sum over no label is 0. Where every batch is like that, for example because a
chat template or a length limit cuts all answers off, the run costs its time and teaches nothing.
## What to do
Count the labels of a batch that are not masked, and print the text they stand for. Look at the
longest examples first: a limit of the length that cuts the answer leaves only masked labels. Make
the mean safe by dividing by at least 1. Do not clip, and do not lower the rate.
## When it is fine
A single such batch in a run costs one update. A policy loss of 0 with a gradient that is not 0 is
usual, as in the first steps of GRPO. A hinge loss falls to 0 with its gradient when the task is
solved: a 0 after small losses is left out.
## Told apart from
`nan-pulse`: NaN of any origin; with a norm that is NaN too the numbers broke, not the labels. A
guard that leaves out the updates of NaN losses keeps the weights whole as well: without a norm the
two look the same, and both are proposed to be looked at. A
reward that is the same for all answers to a prompt also gives a loss and a gradient of 0: these two
numbers cannot tell it from masked labels, and both are proposed to be looked at.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.store import IntArray, Series
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace
from optdoctor.trace import Trace

AROUND = 20
"""Rows before a loss of 0, or after it where none is, whose lowest tells whether 0 is near."""
RETURNS = 3
"""Times that finite numbers came back after NaN below which the run may have been set back."""
SMALL = 0.1
"""Share of the first losses below which a loss is small: a task that is solved falls lower."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 1
    """One row is enough: a NaN beside a norm of 0 is a fact."""
    unlabelled: int = 0
    """Most rows without a label in a healthy run."""
    lasting: int = 10
    """Fewest such rows at the end from which nothing is learnt."""
    idle: float = 0.5
    """Largest share of rows with a gradient of exactly 0, since the first of them, that is not a
    waste: at half, each second batch is computed for nothing."""


class _Masked(NamedTuple):
    """Rows of single updates, [T], and those of them that had no label."""

    steps: IntArray
    losses: Floats
    norms: Floats
    rows: IntArray
    idle: float
    """Share of rows since the first of them that have a gradient of exactly 0."""
    returns: int = 0
    """Times that finite numbers came back; 0 where the norms are known."""
    is_part: bool = False
    """Whether the loss has more rows than those of which the norm is known."""
    nan_since: int = 0
    """Step of the first NaN loss, where all of them are of this kind as far as is known; else 0."""
    num_nan: int = 0
    """Those NaN losses."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    if not trace.has("grad_norm") and not trace.has("grad_norm_used"):
        return _without_norms(trace, limits)
    steps, norms = _norms(trace)
    loss = trace.series["loss"]
    single = loss.count == 1  # of a thinned row nobody knows whose loss it shows
    steps, at, beside = np.intersect1d(loss.steps[single], steps, return_indices=True)
    losses, norms = np.asarray(loss.values[single][at], np.float64), norms[beside]
    still = norms == 0
    nan = np.isnan(losses) & np.isfinite(norms)
    if _may_be_skipped(trace) or not _adds_up(trace):
        nan &= still
    empty = nan | ((losses == 0) & still & ~_solved(losses))
    rows = np.flatnonzero(empty)
    if not rows.size > limits.unlabelled:
        return []
    telling = loss.steps[np.isfinite(loss.values) & (loss.values != 0)]
    last = max(telling.max(initial=-1), steps[~empty].max(initial=-1))
    tail = np.flatnonzero(steps > last)
    ended = tail.size >= limits.lasting and bool(still[tail].all())
    lost = ended and _is_each_update(trace, last)
    idle = round(float((empty & still)[rows[0] :].mean()), 9)
    wasted = rows.size >= limits.lasting and idle > limits.idle
    if trace.facts.get("loss_kind") == "reward" and not ended:
        return []  # some prompts have answers that are all alike
    severity = Severity.CRITICAL if lost else Severity.WARN if wasted else Severity.NOTE
    if not nan[rows].any() and telling.min(initial=steps[-1]) < steps[rows[0]]:
        severity = Severity.NOTE  # a hinge may come from a loss to none in a few updates
    told = tail if lost else rows
    found = _Masked(steps, losses, norms, told, idle, is_part=steps.size < loss.rows)
    if _is_all_nan(loss, steps, nan):
        broken = (loss.bad > 0) & (loss.first_bad > (last if lost else -1))
        since, count = int(loss.first_bad[broken].min()), int(loss.bad[broken].sum())
        found = found._replace(nan_since=since, num_nan=count)
    channel = "grad_norm" if trace.has("grad_norm") else "grad_norm_used"
    return [_finding(found, severity, channel, limits)]


def _is_each_update(trace: Trace, since: int) -> bool:
    """Whether the losses after that step leave no update out: where every fifth batch has no label,
    those that a log of every tenth update shows may be just those."""
    loss = trace.series["loss"]
    late = loss.steps > since
    window = trace.facts.get("loss_window")
    # A mean of exactly 0 is one of zeros; a mean that is NaN may hold a single NaN.
    is_mean = isinstance(window, int | float) and bool((loss.high[late] == 0).all())
    updates = loss.count[late] * (float(window or 1) if is_mean else 1.0)
    return bool((np.diff(loss.steps[late]) <= updates[1:]).all())


def _is_all_nan(loss: Series, steps: IntArray, nan: NDArray[np.bool_]) -> bool:
    """Whether every loss that is not finite is of a batch without labels, as far as is known: it is
    one of `nan`, [T] at `steps`, or its norm is not known and a finite loss follows it."""
    known, broken = np.isin(loss.steps, steps), loss.bad > 0
    others = loss.last_bad[broken & ~known].max(initial=-1)
    is_known = int((broken & known).sum()) == int(nan.sum())
    return bool(nan.any()) and is_known and others <= loss.steps[~broken].max(initial=-1)


def _without_norms(trace: Trace, limits: Limits) -> list[Finding]:
    """The same by what comes after NaN losses, where nothing is known of gradients."""
    if _may_be_skipped(trace) or _may_overflow(trace):
        return []
    loss = trace.series["loss"]
    single = loss.count == 1
    steps, losses = loss.steps[single], np.asarray(loss.values[single], np.float64)
    nan, sound = steps[np.isnan(losses)], loss.steps[np.isfinite(loss.values)]
    if trace.has("eval_loss"):
        held_out = trace.series["eval_loss"]
        sound = np.union1d(sound, held_out.steps[np.isfinite(held_out.values)])
    nan = nan[nan < sound.max(initial=-1)]  # of the weights after the last nothing is known
    returns = np.unique(np.searchsorted(sound, nan, side="right")).size
    rows = np.flatnonzero(np.isin(steps, nan))
    if returns < RETURNS or rows.size < limits.lasting:
        return []
    idle = round(float(np.isnan(losses[rows[0] : rows[-1] + 1]).mean()), 9)
    if not idle > limits.idle:
        return []
    found = _Masked(steps, losses, np.full(steps.size, np.nan), rows, idle, returns)
    return [_finding(found, Severity.WARN, "loss", limits)]


def _may_overflow(trace: Trace) -> bool:
    """Whether numbers may be so coarse that updates are left out by design, or none is known."""
    kinds = [trace.facts.get(name) for name in ("param_dtype", "compute_dtype")]
    return trace.facts.get("scaler") == "on" or not any(kinds) or "float16" in kinds


def _norms(trace: Trace) -> tuple[IntArray, Floats]:
    """Steps and gradient norms of single updates, NaN where the gradient was not finite."""
    if trace.has("grad_norm"):
        norm = trace.series["grad_norm"]
        single = norm.count == 1
        return norm.steps[single], np.asarray(norm.values[single], np.float64)
    if not trace.has("grad_nonfinite"):
        return np.zeros(0, np.int64), np.zeros(0)
    norm, broken = trace.series["grad_norm_used"], trace.series["grad_nonfinite"]
    count = np.nansum(np.asarray(broken.values, np.float64), axis=1)  # [T]
    steps, at, beside = np.intersect1d(
        norm.steps[norm.count == 1], broken.steps, return_indices=True
    )
    norms = np.asarray(norm.values[norm.count == 1][at], np.float64)
    return steps, np.where(count[beside] > 0, np.nan, norms)


def _may_be_skipped(trace: Trace) -> bool:
    """Whether the update of a NaN loss may have been left out, so that its norm is of another."""
    window = trace.facts.get("loss_window")
    several = isinstance(window, int | float) and window > 1
    return several or trace.has("loss_scale") or trace.has("step_skipped")


def _adds_up(trace: Trace) -> bool:
    """Whether an update is known to add gradients of several batches, one of which may have labels
    where another has none."""
    parts = (trace.facts.get(name) for name in ("accumulation_steps", "world_size"))
    return any(isinstance(n, int | float) and n > 1 for n in parts)


def _solved(losses: Floats) -> NDArray[np.bool_]:
    """[T]: rows around which the losses have become small, so that 0 is near."""
    known = np.where(np.isfinite(losses) & (losses != 0), np.abs(losses), np.nan)
    if not np.isfinite(known).any():
        return np.zeros(losses.size, bool)
    first = float(np.median(known[np.isfinite(known)][:3]))
    solved = np.zeros(losses.size, bool)
    for row in np.flatnonzero(losses == 0):
        before = known[:row][np.isfinite(known[:row])][-AROUND:]
        near = before if before.size else known[row:][np.isfinite(known[row:])][:AROUND]
        solved[row] = near.size > 0 and float(near.min()) < SMALL * first
    return solved


def _finding(found: _Masked, severity: Severity, channel: str, limits: Limits) -> Finding:
    steps, losses, rows = found.steps, found.losses, found.rows
    first, last = int(steps[rows[0]]), int(steps[rows[-1]])
    nan = int(np.isnan(losses[rows]).sum())
    highest = float(found.norms[rows].max()) if not found.returns else np.nan
    where = f"at step {first:,}" if first == last else f"from step {first:,} to {last:,}"
    shown = "NaN" if nan == rows.size else "exactly 0" if not nan else "NaN or exactly 0"
    norm = "exactly 0" if highest == 0 else f"finite, at most {highest:.3g}"
    which, means = f"{rows.size:,} of {losses.size:,} rows", "the weights stay whole"
    if severity is Severity.CRITICAL:
        which, means = f"all {rows.size:,} rows", "nothing is learnt"
    elif severity is Severity.WARN:
        means = f"{100 * found.idle:.3g} % of the rows since then teach nothing"
        means += f" (limit {100 * limits.idle:g} %)"
    of_zeros = "Labels all masked or rewards all alike, as it seems"
    which += " of which loss and gradient norm are known," * found.is_part
    word = "Labels all masked, as it seems" if nan == rows.size else of_zeros
    what_norm = "highest gradient norm beside them: not NaN, as broken numbers make it"
    beside = f"beside a gradient norm that is {norm}"
    evidence = [
        Evidence("loss", f"rows whose loss is {shown}", rows.size, limits.unlabelled, "rows")
    ]
    if found.returns:
        beside = f"and finite numbers came back after them {found.returns} times"
        what = "times that finite losses or evaluations came back after them"
        evidence.append(Evidence("loss", what, found.returns, RETURNS - 1, "times"))
    else:
        evidence.append(Evidence(channel, what_norm, highest, 0, "loss/weight"))
    if found.num_nan > nan:
        what = "NaN losses in all, the others at updates of which no gradient norm is known"
        evidence.append(Evidence("loss", what, found.num_nan, limits.unlabelled, "rows"))
    if severity is not Severity.NOTE:
        what = "rows with a gradient of exactly 0 since the first of them"
        if found.returns:
            what = "rows whose loss is NaN from the first of them to the last"
        evidence.append(Evidence(channel, what, 100 * found.idle, 100 * limits.idle, "%"))
    return Finding(
        severity=severity,
        summary=(
            f"{word}: the loss is {shown} in {which} {where} (limit {limits.unlabelled}) {beside}:"
            f" {means}."
        ),
        steps=(min(first, found.nan_since or first), last),
        evidence=tuple(evidence),
        awaits_symptom=severity is Severity.NOTE and found.num_nan > 0,
        treatments=(
            *_treatments(rows.size, first, is_zero=nan < rows.size),
            *((_GUARD,) if found.returns else ()),
        ),
    )


_GUARD = Treatment(
    title="Or look for a guard in the loop that leaves updates out, and for NaN in the inputs",
    when="check",
    safety="safe",
    source="weights stay whole where an update with a NaN gradient is not made",
)


def _treatments(count: int, first: int, *, is_zero: bool) -> tuple[Treatment, ...]:
    batches = f"the batch of step {first:,}" + (" and the others" if count > 1 else "")
    look = Treatment(
        title=f"Count the labels that are not masked in {batches}, and print their text",
        when="check",
        safety="safe",
        source="a mean over no label is 0 / 0 with a gradient of exactly 0; a sum is 0",
    )
    mean = Treatment(
        title="Leave examples without a label out, or divide the sum by max(labels, 1)",
        safety="manual",
        source="the quotient is then 0 with the gradient 0",
    )
    reward = Treatment(
        title="In reinforcement learning look at the rewards: the same for all answers to a prompt"
        " gives a loss and a gradient of 0 too",
        when="check",
        safety="safe",
        source="advantages are differences from the mean reward of a prompt",
    )
    return (look, mean, reward) if is_zero else (look, mean)


def _run(masked: bool) -> Trace:
    """400 updates; all labels of the batches from step 301 on are masked."""
    loss, norm = falling_loss(), gradient_norms()
    if masked:
        loss[300:], norm[300:] = np.nan, 0.0
    return make_trace(loss=loss, grad_norm=norm)


RULE = rule.Rule(
    name="labels-masked",
    needs=("loss",),
    uses=(
        "accumulation_steps",
        "compute_dtype",
        "eval_loss",
        "grad_nonfinite",
        "grad_norm",
        "grad_norm_used",
        "loss_kind",
        "loss_scale",
        "loss_window",
        "param_dtype",
        "scaler",
        "step_skipped",
        "world_size",
    ),
    explains=("nan-pulse",),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(masked=True),
    healthy=lambda: _run(masked=False),
    doc=__doc__ or "",
)
