"""The loss is NaN or infinite.

## What it finds
Rows whose loss is NaN or infinite, and rows whose loss is exactly 0 beside a gradient norm that is
NaN or infinite: the Hugging Face Trainer prints 0 for NaN while `logging_nan_inf_filter` is on (its
default). One such row suffices. The evidence says whether finite losses came back (isolated) or
not (permanent).
## Why it matters
A NaN in the weights never leaves them: each later step is wasted, and each later checkpoint is
lost. An isolated NaN loss leaves the weights whole, but its batch or its loss function is broken.
## What to do
Permanent: go back to a checkpoint from before the first NaN, and find the cause first, or it
returns. Watch the run from inside: which tensor broke, at which step, before or after the update.
Isolated: look at the batch of that step. Clipping is no cure: with one NaN in the gradient it makes
every gradient NaN.
## When it is fine
A loss of exactly 0 beside a finite gradient norm is a true zero (some reinforcement-learning
losses log it) and is not counted. A gradient scaler skips steps with infinite gradients while it
searches for its scale: the loss stays finite there, and this rule stays silent.
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
from optdoctor.curves import lookup, masked_zeros, spans
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.store import Series
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace
from optdoctor.trace import Trace

PERMANENT = "permanent, no finite loss follows"
ISOLATED = "isolated, finite losses follow"
OPEN = "in the last row, and what follows is not known yet"


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    rows: int = 1
    """One row is enough: a NaN is a fact, not a statistic."""
    healthy: int = 0
    """Most NaN rows of a healthy run."""
    permanent_rows: int = 2
    """Fewest NaN rows at the end that count as permanent; one alone could be an isolated one."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    loss = trace.series["loss"]
    masked = _masked(trace)  # [T]
    sick = _with_first_window((loss.bad > 0) | masked, masked, trace)
    rows_bad = np.where(loss.bad > 0, loss.bad, np.where(sick, loss.count, 0))  # [T]
    if rows_bad.sum() <= limits.healthy:
        return []
    stretches = spans(sick)
    start, end = stretches[-1]
    follows = end < len(sick) - 1 or (math.isfinite(loss.values[end]) and not masked[end])
    broken = _broken_weights(trace, _step_of(loss, start))
    permanent = not follows and (rows_bad[start:].sum() >= limits.permanent_rows or bool(broken))
    if not permanent:
        start = stretches[0][0]
    first, last = _step_of(loss, start), int(loss.steps[end])
    num_bad, num_rows = int(rows_bad[start:].sum()), int(loss.count[start : end + 1].sum())
    course = PERMANENT if permanent else ISOLATED if follows else OPEN
    if permanent:
        where = f"from step {first} to the end, {last}"
    else:
        where = f"at step {first}" if first == last else f"between step {first} and step {last}"
    what = f"of {num_rows:,} losses NaN or infinite: {course}"
    evidence = [Evidence("loss", what, num_bad, limits.healthy, "rows"), *broken]
    if masked.any():
        what = "losses printed as 0 in place of NaN: their gradient norm is not finite"
        evidence.append(Evidence("grad_norm", what, int(masked.sum()), limits.healthy, "rows"))
    return [
        Finding(
            severity=Severity.CRITICAL if permanent else Severity.WARN,
            summary=(
                f"NaN loss {where}: {num_bad:,} of {num_rows:,} losses (limit {limits.healthy})."
            ),
            steps=(first, last),
            evidence=tuple(evidence),
            treatments=_treatments(first, course, bool(broken), bool(trace.tensors)),
        )
    ]


def _masked(trace: Trace) -> NDArray[np.bool_]:
    """[T]: losses of exactly 0 at steps whose gradient norm is not finite."""
    return masked_zeros(trace.series["loss"], trace.series.get("grad_norm"))


def _with_first_window(
    sick: NDArray[np.bool_], masked: NDArray[np.bool_], trace: Trace
) -> NDArray[np.bool_]:
    """`sick` with the rows before a masked stretch whose gradient norm was already not finite.

    The first window that holds a NaN is logged as the mean of its finite part.
    """
    if not masked.any():
        return sick
    loss = trace.series["loss"]
    norm = lookup(trace.series["grad_norm"], loss.steps, absent=1.0)
    wide = sick.copy()
    for start, _ in spans(masked):
        row = start - 1
        while row >= 0 and not wide[row] and not math.isfinite(norm[row]):
            wide[row] = True
            row -= 1
    return wide


def _step_of(loss: Series, row: int) -> int:
    return int(loss.first_bad[row]) if loss.bad[row] else int(loss.steps[row])


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


def _treatments(
    since: int, course: str, weights_broken: bool, watched: bool
) -> tuple[Treatment, ...]:
    inside = Treatment(
        title="Watch the run from inside: one line tells which update broke which weights",
        when="check",
        safety="safe",
        basis="heuristic",
        source="counters of the fault itself name what a loss curve cannot",
    )
    why = "their weights are not finite" if weights_broken else "the loss was NaN by then"
    back = Treatment(
        title=f"Go back to a checkpoint from before step {since}; of later ones {why}",
        when="next",
        safety="safe",
        basis="heuristic",
        source="arithmetic: NaN plus anything is NaN",
    )
    batch = Treatment(
        title=f"Look at the batch of step {since}: all labels ignored, empty, or a bad number",
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
    chosen = {PERMANENT: (back,), ISOLATED: (batch,), OPEN: (wait,)}[course]
    return chosen if watched else (*chosen, inside)


def _sick() -> Trace:
    loss, norm = falling_loss(), gradient_norms()
    loss[300:] = np.nan
    norm[300:] = np.nan
    return make_trace(loss=loss, grad_norm=norm)


RULE = rule.Rule(
    name="nan-pulse",
    needs=("loss",),
    uses=("grad_norm", "update_nonfinite", "grad_nonfinite", "weights_nonfinite"),
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss(), grad_norm=gradient_norms()),
    doc=__doc__ or "",
)
