"""The loss is NaN or infinite.

## What it finds
Rows whose loss is NaN or infinite, and rows of a log whose loss is exactly 0 beside a gradient norm
that is NaN or infinite: the Hugging Face Trainer prints 0 for NaN while `logging_nan_inf_filter` is
on (its default). One such row suffices. The evidence says whether finite losses came back
(isolated where they are few, else that they come and go) or not (permanent), and whether the
gradient norms beside them were finite. Evaluations whose loss is NaN or infinite while the training
loss is finite are told as such: a warning where no finite one follows, else a note.
A loss that falls to exactly 0 at once, from no lower than a tenth of the first losses, and stays
there to the end is a warning where no gradient norm tells the two apart: it looks like NaN printed
as 0. Where every evaluation since is NaN or infinite, it is counted as NaN.
## Why it matters
A NaN in the weights never leaves them: each later step is wasted, and each later checkpoint is
lost. An isolated NaN loss leaves the weights whole, but its batch or its loss function is broken.
## What to do
Permanent: go back to a checkpoint from before the first NaN, and find the cause first, or it
returns. Watch the run from inside: which tensor broke, at which step, before or after the update.
Isolated: look at the batch of that step. Clipping is no cure: with one NaN in the gradient it makes
every gradient NaN.
## When it is fine
A loss of exactly 0 beside a finite gradient norm is a true zero (some reinforcement-learning losses
log it) and is not counted, nor is a loss of 0 that the doctor saw itself, nor one that falls to 0
by and by, as a hinge loss does. A gradient scaler skips
steps with infinite gradients while it searches for its scale: the loss stays finite there, and this
rule stays silent; a loss that is not, in updates that were skipped so, is a note, and so are a few
after which every weight was measured and is finite.
## Told apart from
`second-moment-underflow`: the second moment is zero before the loss breaks.
`epsilon-below-precision`: decided before step 1 from dtype and epsilon.
A batch whose labels are all ignored: NaN loss, gradient zero or finite, weights unharmed: isolated.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.masked import (
    BEFORE,
    FILTERED_BY,
    Zeros,
    masked_zeros,
    may_hide_nan,
    unmasked,
    without,
    witness,
    zeros_to_the_end,
)
from optdoctor.curves.rows import lookup, row_before, spans
from optdoctor.curves.scaler import TELLS_OF_UPDATES, scaler
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import NEVER_FALLING, RUNNING_MEAN
from optdoctor.knowledge.remedies import batches, go_back
from optdoctor.knowledge.saved_batches import saved_batches
from optdoctor.store import IntArray, Series
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace
from optdoctor.trace import Trace

PERMANENT = "permanent, no finite loss follows"
ISOLATED = "isolated, finite losses follow"
LASTING = "in one stretch, finite losses follow"
RECURRING = "they come and go, finite losses follow"
FEW = 3
"""Most losses that are called isolated, a word only: what is advised is the same."""
OPEN = "the last row is one, and what follows is not known yet"
SEARCHED = "in updates that the gradient scaler skipped while it looked for its scale"
KEPT = "the log shows a running mean, in which a single NaN stays"
EXPLODED = 10.0
"""Growth of the loss before it broke from which its steps are tried smaller."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 1
    """One row is enough: a NaN is a fact, not a statistic."""
    healthy: int = 0
    """Most NaN rows of a healthy run."""
    permanent_rows: int = 2
    """Fewest NaN rows at the end that count as permanent; one alone could be an isolated one."""
    zero_rows: int = 10
    """Fewest losses of exactly 0 at the end that look like NaN."""
    zero_share: float = 0.05
    """Least share of all losses that they are."""
    zero_height: float = 0.1
    """Least loss just before them, over the first losses: a task that is solved falls lower."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    found, loss = [], None
    if "loss" in trace.series:
        loss = unmasked(trace.series["loss"], witness(trace))
        zeros = _zeros(trace, loss, limits)
        broken = _broken_evaluations(trace, zeros)
        if zeros is not None and broken:
            loss = without(loss, zeros)
        elif zeros is not None:
            found = [_of_zeros(trace, zeros, limits)]
        found += _of_training(trace, loss, broken, limits)
    evaluated = _of_evaluation(trace, loss, limits) if "eval_loss" in trace.series else []
    return found + evaluated


def _zeros(trace: Trace, loss: Series, limits: Limits) -> Zeros | None:
    """Losses of exactly 0 to the end that look like NaN, and that nothing shows to be true ones."""
    found = zeros_to_the_end(loss) if may_hide_nan(trace) else None
    if found is None or trace.facts.get("loss_kind") in NEVER_FALLING:
        return None
    if found.rows < limits.zero_rows or found.share < limits.zero_share:
        return None
    if found.height < limits.zero_height:
        return None
    norm = trace.series.get("grad_norm")
    if norm is not None and np.any(norm.high[norm.steps >= found.step] > 0):
        return None  # it is a true zero, or NaN by the gradient norm
    return found


def _broken_evaluations(trace: Trace, zeros: Zeros | None) -> list[Evidence]:
    """That every evaluation since the first of these zeros is NaN or infinite."""
    if zeros is None or "eval_loss" not in trace.series:
        return []
    evaluated = trace.series["eval_loss"]
    since = evaluated.starts >= zeros.step
    bad, of = int(evaluated.bad[since].sum()), int(evaluated.count[since].sum())
    if not bad or bad < of:
        return []
    what = f"of {of:,} evaluations beside losses of exactly 0 NaN or infinite: NaN, printed as 0"
    return [Evidence("eval_loss", what, bad, 0, "rows")]


def _of_zeros(trace: Trace, zeros: Zeros, limits: Limits) -> Finding:
    last = int(trace.series["loss"].steps[-1])
    known = "whose norm is 0 too" if "grad_norm" in trace.series else "grad_norm would tell"
    return Finding(
        severity=Severity.WARN,
        summary=(
            f"NaN loss, as it seems: the loss is exactly 0 from step {zeros.step} to the end,"
            f" {last}, {zeros.rows:,} losses (limit {limits.zero_rows}), after {zeros.before:.4g}"
            f" one row before: a Trainer prints 0 for NaN; {known}."
        ),
        steps=(zeros.step, last),
        evidence=(
            Evidence("loss", "losses of exactly 0", zeros.rows, limits.zero_rows, "rows"),
            Evidence("loss", "of all losses", 100 * zeros.share, 100 * limits.zero_share, "%"),
            Evidence(
                "loss",
                f"the loss just before, of the first losses (median of {BEFORE}, or the last one)",
                100 * zeros.height,
                100 * limits.zero_height,
                "%",
            ),
        ),
        treatments=(
            Treatment(
                title="Run those steps again with TrainingArguments(logging_nan_inf_filter=False)"
                " and grad_norm logged: NaN is then printed as NaN",
                when="check",
                safety="safe",
                source="the Hugging Face Trainer prints 0 for NaN while that filter is on, as it is"
                " by default",
            ),
            Treatment(
                title="If no Trainer wrote this log, look at who did: rows that were never filled"
                " are 0 too",
                when="check",
                safety="safe",
                source="a mean loss does not fall to exactly 0 from one row to the next",
            ),
        ),
    )


def _of_training(
    trace: Trace, loss: Series, beside: list[Evidence], limits: Limits
) -> list[Finding]:
    """`loss` has NaN in place of zeros that stand for it, as `beside` shows or a gradient norm."""
    masked = masked_zeros(trace.series["loss"], witness(trace))  # [T]
    sick = loss.bad > 0
    if loss.bad.sum() <= limits.healthy or not sick.any():
        return []
    onset, tail = _tail(loss)
    broken = _broken_weights(trace, onset) if tail else []
    permanent = tail >= limits.permanent_rows or (tail > 0 and bool(broken))
    kept = permanent and not broken and _is_kept(trace, onset)
    permanent = permanent and not kept
    bad_rows = np.flatnonzero(sick)
    first = onset if permanent else int(loss.first_bad[bad_rows[0]])
    last = int(loss.steps[-1] if permanent else loss.last_bad[bad_rows[-1]])
    whole = [] if broken else _whole_weights(trace, first)
    num_bad = tail if permanent else int(loss.bad.sum())
    passed = ISOLATED if num_bad <= FEW else LASTING if len(spans(sick)) == 1 else RECURRING
    course = PERMANENT if permanent else KEPT if kept else OPEN if tail else passed
    if course == passed and _in_search(trace, loss):
        course = SEARCHED
    if permanent:
        where = f"from step {first} to the end, {last}"
    else:
        where = f"at step {first}" if first == last else f"between step {first} and step {last}"
    what = f"of {loss.rows:,} losses NaN or infinite: {course}"
    evidence = [Evidence("loss", what, num_bad, limits.healthy, "rows"), *beside, *broken, *whole]
    evidence += _beside(trace, loss) if course == ISOLATED else []
    if masked.any():
        evidence += _masked(trace, masked, limits)
    severity = Severity.CRITICAL if permanent else Severity.WARN
    harmless = course == SEARCHED or (course == ISOLATED and bool(whole))
    severity = Severity.NOTE if harmless else severity
    return [
        Finding(
            severity=severity,
            summary=(
                f"{_word(loss)} loss {where}: {_share(num_bad, loss.rows, permanent)}"
                f" (limit {limits.healthy}){f', {course}' if course == SEARCHED else ''}."
            ),
            steps=(first, last),
            evidence=tuple(evidence),
            treatments=(
                *saved_batches(trace, _first_ones(trace, loss, first)),
                *_treatments(first, course, trace, bool(broken), bool(whole)),
            ),
        )
    ]


def _first_ones(trace: Trace, loss: Series, first: int) -> IntArray:
    """Steps from `first` on whose loss is the first of several that are not finite, up to the
    update that broke the weights: later losses are not those of their batches."""
    bad = loss.bad > 0
    begins = bad & ~np.concatenate(([False], bad[:-1]))
    steps = loss.first_bad[begins & (loss.steps >= first)]
    last = -1 if trace.facts.get("weights_nonfinite") else _first_broken_update(trace)
    return steps if last is None else steps[steps <= last]


def _word(loss: Series) -> str:
    shown = loss.values[loss.bad > 0]
    shown = shown[~np.isfinite(shown)]
    return "Inf" if shown.size and np.isinf(shown).all() else "NaN"


def _in_search(trace: Trace, loss: Series) -> bool:
    """Whether the updates of all those losses were skipped by a scaler in its first search."""
    if "loss_scale" not in trace.series and "step_skipped" not in trace.series:
        return False
    seen = scaler(trace)
    harmless = np.union1d(seen.told[seen.searching], seen.shown[seen.searching])
    single = loss.count[loss.bad > 0] == 1  # of a thinned row nobody knows which one it was
    return bool(single.all() and np.isin(loss.steps[loss.bad > 0], harmless).all())


def _beside(trace: Trace, loss: Series) -> list[Evidence]:
    """What the gradient norms in the same rows were: the weights stay whole where finite."""
    if "grad_norm" not in trace.series:
        return []
    norm = trace.series["grad_norm"]
    rows = np.flatnonzero(np.isin(norm.steps, loss.steps[loss.bad > 0]))
    if not rows.size:
        return []
    count = int((norm.bad[rows] > 0).sum())
    what = f"of {rows.size} gradient norms beside them NaN or infinite"
    what += "" if count else ": the loss of a batch, not its gradient"
    return [Evidence("grad_norm", what, count, 0, "rows")]


def _of_evaluation(trace: Trace, loss: Series | None, limits: Limits) -> list[Finding]:
    """Evaluations that are not finite beside a training loss that is."""
    evaluated = trace.series["eval_loss"]
    bad = np.flatnonzero(evaluated.bad > 0)
    too_many = int(evaluated.bad.sum()) - limits.healthy
    if too_many <= 0:
        return []
    onset, tail = _tail(evaluated)
    first = onset if tail else int(evaluated.first_bad[bad[0]])
    if loss is not None and not (loss.bad < loss.count)[loss.steps >= first].any():
        return []  # the training broke too, and is told above
    count = tail or int(evaluated.bad.sum())
    last = int(evaluated.steps[-1] if tail else evaluated.last_bad[bad[-1]])
    course = PERMANENT if tail >= limits.permanent_rows else OPEN if tail else ISOLATED
    course = LASTING if course == ISOLATED and count > FEW else course
    where = f"at step {first}" if first == last else f"between step {first} and step {last}"
    beside = (
        "while the training loss is finite" if loss is not None else "with no training loss logged"
    )
    return [
        Finding(
            severity=Severity.WARN if course == PERMANENT else Severity.NOTE,
            summary=(
                f"{_word(evaluated)} evaluation loss {where}: {count:,} of {evaluated.rows:,}"
                f" evaluations (limit {limits.healthy}), {beside}."
            ),
            steps=(first, last),
            evidence=(
                Evidence(
                    "eval_loss",
                    f"of {evaluated.rows:,} losses NaN or infinite: {course}",
                    count,
                    limits.healthy,
                    "rows",
                ),
            ),
            treatments=(
                Treatment(
                    title=(
                        "Evaluate the batches one by one at that step: an empty set, labels all "
                        "ignored, or a number format too small for evaluation mode"
                    ),
                    when="check",
                    safety="safe",
                    source="a mean over no label is NaN; float16 ends at 65504",
                ),
            ),
        )
    ]


def _share(bad: int, rows: int, permanent: bool) -> str:
    if bad == rows:
        return f"all {rows:,} losses" if rows > 1 else "the only loss"
    return f"{'the last ' if permanent else ''}{bad:,} of {rows:,} losses"


def _is_kept(trace: Trace, onset: int) -> bool:
    """Whether a mean that was running at `onset` may have kept a single NaN to the end."""
    if trace.facts.get("loss_form") != RUNNING_MEAN:
        return False
    epoch = trace.series.get("epoch")
    since = epoch.values[epoch.steps >= onset] if epoch is not None else np.empty(0)
    since = since[np.isfinite(since)]
    # The epoch after the next begins with a mean of its own, and shows what came of it.
    return since.size == 0 or math.floor(since.max()) - math.floor(since[0]) < 2


def _tail(loss: Series) -> tuple[int, int]:
    """(first step, rows) of the bad rows at the end without a finite one between; (0, 0) if none.

    Of a bucket that is only partly bad, rows count where they are known to be its last.
    """
    full = loss.bad == loss.count
    partial = np.flatnonzero(~full)
    row = int(partial[-1]) + 1 if partial.size else 0
    rows = int(loss.bad[row:].sum())
    onset = int(loss.first_bad[row]) if rows else 0
    if row and loss.bad[row - 1] and loss.last_bad[row - 1] == loss.steps[row - 1]:
        i = row - 1
        stride = (loss.steps[i] - loss.starts[i]) / max(loss.count[i] - 1, 1)
        if loss.steps[i] - loss.first_bad[i] == (loss.bad[i] - 1) * stride:
            return int(loss.first_bad[i]), rows + int(loss.bad[i])
        return (onset, rows) if rows else (int(loss.last_bad[i]), 1)
    return onset, rows


def _masked(trace: Trace, masked: NDArray[np.bool_], limits: Limits) -> list[Evidence]:
    """What the log printed in place of NaN, and what it showed just before."""
    loss, norm = trace.series["loss"], trace.series["grad_norm"]
    count = int((unmasked(loss, norm).bad - loss.bad)[masked].sum())
    what = "printed as 0 in place of NaN, beside a gradient norm that is not finite"
    evidence = [Evidence("grad_norm", what, count, limits.healthy, "rows")]
    beside = lookup(norm, loss.steps, absent=1.0)
    row = int(np.flatnonzero(masked)[0]) - 1
    before = 0
    while row >= 0 and not math.isfinite(beside[row]):
        before, row = before + 1, row - 1
    if before:
        what = "more just before, with a finite loss and such a gradient norm"
        evidence.append(Evidence("grad_norm", what, before, limits.healthy, "rows"))
    return evidence


def _broken_weights(trace: Trace, onset: int) -> list[Evidence]:
    """What broke the weights: something before the run, or an update sampled by the onset."""
    before = trace.facts.get("weights_nonfinite")
    if isinstance(before, int) and 0 < before < 2**53:
        what = "weights NaN or infinite before the first update that was watched"
        return [Evidence("weights_nonfinite", what, before, 0, "elements")]
    if "update_nonfinite" not in trace.series:
        return []
    update = trace.series["update_nonfinite"]
    counts = np.nansum(np.asarray(update.values, np.float64), axis=1)  # [T]
    rows = np.flatnonzero((counts > 0) & (update.steps <= onset))
    if not rows.size:
        return []
    step, count = int(update.steps[rows[0]]), float(counts[rows[0]])
    what = f"weights NaN or infinite after step {step}"
    evidence = [Evidence("update_nonfinite", what, count, 0, "elements")]
    if "grad_nonfinite" in trace.series:
        gradient = trace.series["grad_nonfinite"]
        row = np.flatnonzero(gradient.steps == step)
        if row.size and np.nansum(gradient.values[row]) == 0:
            what = f"elements of that gradient, step {step}: data and loss did not break them"
            evidence.append(Evidence("grad_nonfinite", what, 0, 0, "elements"))
    return evidence


def _first_broken_update(trace: Trace) -> int | None:
    """The first sampled step after which weights were not finite."""
    if "update_nonfinite" not in trace.series:
        return None
    update = trace.series["update_nonfinite"]
    rows = np.flatnonzero(np.nansum(np.asarray(update.values, np.float64), axis=1) > 0)
    return int(update.steps[rows[0]]) if rows.size else None


def _whole_weights(trace: Trace, first: int) -> list[Evidence]:
    """That the weights stayed finite, where every update sampled since then left them so."""
    every = all(tensor.in_optimizer for tensor in trace.tensors)
    if "update_nonfinite" not in trace.series or not every:
        return []  # weights that this optimizer does not move were not looked at
    update = trace.series["update_nonfinite"]
    since = update.steps >= first
    if not since.any() or float(np.nansum(update.values[since])) > 0:
        return []
    step = int(update.steps[-1])
    what = f"weights NaN or infinite up to step {step}: data or loss function, not the weights"
    return [Evidence("update_nonfinite", what, 0, 0, "elements")]


def _treatments(
    since: int, course: str, trace: Trace, weights_broken: bool, weights_whole: bool
) -> tuple[Treatment, ...]:
    if course == SEARCHED:
        return ()  # how a scaler works: nothing is to be done
    inside = Treatment(
        title="Watch the run from inside: one line tells which update broke which weights",
        when="check",
        safety="safe",
        basis="heuristic",
        source="counters of the fault itself name what a loss curve cannot",
    )
    why = "their weights are not finite" if weights_broken else "the loss was not finite by then"
    broken = min(since, _first_broken_update(trace) or since)
    before = row_before(trace.series["loss"], since)
    known = before if broken == since else None
    back = go_back(trace, broken, f"; of later ones {why}", known)
    batch = Treatment(
        title=f"Look at {batches(since, before)}: all labels ignored, empty, or a bad number",
        when="check",
        safety="manual",
        basis="heuristic",
        source="a mean over no label is NaN with finite gradients",
    )
    wait = Treatment(
        title="Wait for the next losses: finite means a bad batch, NaN means broken weights",
        when="check",
        safety="manual",
        basis="heuristic",
        source="NaN weights give NaN at every step",
    )
    if (grown := _grown(trace, since)) and course == PERMANENT and not trace.has("resumed_from"):
        lower = Treatment(
            title=f"Restart with a tenth of the rate: the loss had grown {grown:.3g}-fold before,"
            " and if this holds, the steps were too large",
            when="check",
            safety="manual",
            basis="measured",
            source="3 of 3 small SGD runs trained: tests/clinic/test_exploded_trainings.py",
        )
        return (lower, back) if trace.tensors else (lower, back, inside)
    by_course: dict[str, tuple[Treatment, ...]] = {
        PERMANENT: (back,),
        OPEN: (wait,),
        KEPT: (wait,),
    }
    chosen = by_course.get(course, (batch,))
    if since <= trace.steps[0] and course == PERMANENT and not weights_broken:
        chosen = (back, batch)  # no earlier step can tell that it was not the data
    chosen = (batch,) if weights_whole else chosen
    return chosen if trace.tensors else (*chosen, inside)


def _grown(trace: Trace, since: int) -> float | None:
    """The last finite loss before that step over the first ones, where it had exploded."""
    loss = unmasked(trace.series["loss"], witness(trace))
    before = loss.values[np.isfinite(loss.values) & (loss.steps < since)]
    if before.size < FEW or not float(np.median(before[:FEW])) > 0:
        return None
    grown = float(before[-1] / np.median(before[:FEW]))
    return grown if EXPLODED < grown < np.inf else None


def _sick() -> Trace:
    loss, norm = falling_loss(), gradient_norms()
    loss[300:] = np.nan
    norm[300:] = np.nan
    return make_trace(loss=loss, grad_norm=norm)


RULE = rule.Rule(
    name="nan-pulse",
    needs=("loss|eval_loss",),
    uses=(
        *TELLS_OF_UPDATES[1:],
        "loss_form",
        "loss_kind",
        "epoch",
        "update_nonfinite",
        "grad_nonfinite",
        "weights_nonfinite",
        "resumed_from",
        *FILTERED_BY,
    ),
    explains=("loss-scale-collapse",),
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss(), grad_norm=gradient_norms()),
    doc=__doc__ or "",
)
