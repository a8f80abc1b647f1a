"""A gradient is NaN or infinite.

## What it finds
Watched from inside: the first update made with such a gradient, and the tensors that had it first,
seen before a clip spreads it over all. From a log: rows whose gradient norm is NaN or infinite.
Updates that a gradient scaler left out are not counted. Critical where no finite loss or norm
follows, a warning where one does: the weights are whole then.
## Why it matters
An optimizer that takes in one NaN writes it into its moments and the weights, and a norm clip
divides every gradient by a NaN norm: one bad element spoils all tensors in that update. Where the
backward pass broke, the loss shows it one update later at the earliest.
## What to do
Let the loop leave such an update out: `clip_grad_norm_(.., error_if_nonfinite=True)` raises before
the weights are touched. A clip alone is not enough. Restart from a checkpoint from before the
first one, and look at that step: its batch, and the operation whose backward pass broke. Where the
loss of that very update was not finite either, the loss broke first: look at its batch. Rows that
are several steps apart do not tell which of the two was first; the last finite row is the last
that is known to be sound.
## When it is fine
A gradient scaler searches for its scale by overflowing: rows before the first finite norm, and
later a few, are how it works. From a log up to `few` of the rows pass where finite losses or norms
follow, and all of them where no norm ever was finite and every loss was: the log is at fault.
## Told apart from
`nan-pulse`: the loss itself. Where it was not finite in the same row, this is a warning beside it.
`loss-scale-collapse`: updates that were left out, again and again.
`second-moment-underflow`: the gradient is finite in the step that breaks the weights.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.masked import FILTERED_BY, may_hide_nan, unmasked, witness
from optdoctor.curves.rows import row_before
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.remedies import batches, go_back
from optdoctor.knowledge.saved_batches import saved_batches
from optdoctor.store import Series
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace, small_gpt
from optdoctor.trace import Trace

COUNTS = ("grad_nonfinite_raw", "grad_nonfinite")
"""Elements in the samples, best first: before a clip, and after it."""
NORMS = ("grad_norm", "grad_norm_used")
"""Of every update; of the second, a sampled row is over finite elements only."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 1
    """One row is enough: a NaN is a fact, not a statistic."""
    few: float = 0.05
    """Largest share of a log's rows that pass where the losses stay finite: a scaler that doubles
    its scale every 2,000 updates overflows once in as many."""


class _Seen(NamedTuple):
    """What is known of the gradients that were not finite."""

    first: int
    last: int
    evidence: tuple[Evidence, ...]
    tensors: tuple[str, ...] = ()
    """Those that had it first, from the end of the network."""
    share: float = 1.0
    """Of the rows; 1 where the update is known to have been made."""
    sound: int = 0
    """The newest step before the first at which the gradient was looked at."""


Loss = Literal["finite", "first", "together"]
"""What the loss was when the gradient broke; `together`: not finite in the same row of a log,
where nobody knows which of the two was first."""
ONE_UPDATE = frozenset({"torch", "lightning"})
"""Frameworks in which the doctor itself saw the loss of each update that has a row."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    norms = _from_norms(trace)
    seen = _from_inside(trace) or (None if _is_artefact(trace) else norms)
    if seen is None:
        return []
    sound = _sound_after(trace, seen.first)
    if sound and seen.share <= limits.few:
        return []
    last = max(seen.last, *(_last_bad(trace, name) for name in NORMS))
    made = bool(seen.tensors)  # the update, not only the attempt
    lost = sound is False or (sound is None and made)
    loss = _loss_at(trace, seen)
    before = _known_sound(trace, seen)
    weights = _broken_weights(trace, seen.first)
    evidence = (*seen.evidence, *(weights or _loss_beside(seen.first, before, loss)))
    # Of a loss that broke too `nan-pulse` tells, and how grave it is.
    critical = lost and loss not in ("first", "together")
    whose = f" of {seen.tensors[0]}" if made else ", of a tensor that the log does not name,"
    if len(seen.tensors) > 1:
        whose += f" and {len(seen.tensors) - 1} more"
    course = f"; the loss of step {seen.first} is finite: the backward pass broke"
    return [
        Finding(
            severity=Severity.CRITICAL if critical else Severity.WARN,
            summary=(
                f"Gradient{whose} NaN or infinite {_where(trace, seen.first, last)}"
                f"{course if loss == 'finite' else ''}."
            ),
            steps=(seen.first, last),
            tensors=seen.tensors,
            evidence=evidence,
            treatments=(
                *(() if weights else saved_batches(trace, [seen.first])),
                *_treatments(trace, seen.first, before, lost, loss, bool(weights)),
            ),
        )
    ]


def _where(trace: Trace, first: int, last: int) -> str:
    if first == last:
        return f"at step {first}"
    several = [trace.series[name] for name in (*NORMS, *COUNTS) if name in trace.series]
    ends = last >= max(int(series.steps[-1]) for series in several)
    return f"from step {first} to {'the end, ' if ends else ''}{last}"


def _last_bad(trace: Trace, name: str) -> int:
    """The last step at which that norm of an update was not finite, 0 if it always was."""
    if name not in trace.series:
        return 0
    rows = _made(trace, trace.series[name]) > 0
    return int(trace.series[name].last_bad[rows].max(initial=0))


def _from_inside(trace: Trace) -> _Seen | None:
    """From updates that were made: the tensors that were first, and until when samples show it."""
    start, end = trace.steps
    onset, last = math.inf, 0
    names: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    sound = 0
    for name in COUNTS[::-1]:
        if name not in trace.series:
            continue
        series = trace.series[name]
        counts = np.where(np.isfinite(series.values), np.maximum(series.values, 0), 0)  # [T, P]
        rows = np.flatnonzero(counts.sum(axis=1) > 0)
        if rows.size and series.steps[rows[0]] <= onset:
            onset, row = int(series.steps[rows[0]]), counts[rows[0]]
            names, sound = _from_the_end(trace, row > 0), row_before(series, onset)
            what = f"of the gradient NaN or infinite at step {onset}, {_stage(name)}"
            evidence = (Evidence(name, what, float(row.sum()), 0, "elements"),)
        last = max([last, *series.steps[rows].tolist()])
    if "first_nonfinite_step" in trace.series:
        steps = np.asarray(trace.series["first_nonfinite_step"].values, np.float64)
        steps = np.where((steps >= start) & (steps <= end), steps, np.inf)
        by_tensor = steps.min(axis=0)  # [P]
        if by_tensor.min(initial=np.inf) <= onset and np.isfinite(by_tensor).any():
            onset = int(by_tensor.min())
            at_once, sound = by_tensor == onset, onset - 1
            names = _from_the_end(trace, at_once)
            what = f"of {by_tensor.size} had it first, at step {onset}"
            what += f"; backward meets {names[0]} first"
            count = Evidence("first_nonfinite_step", what, int(at_once.sum()), 0, "tensors")
            evidence = (count, *(e for e in evidence if f"step {onset}," in e.what))
    if not names:
        return None
    return _Seen(int(onset), max(int(onset), last), evidence, names, sound=sound)


def _stage(name: str) -> str:
    return "before a clip" if name == "grad_nonfinite_raw" else "as the optimizer took it"


def _from_the_end(trace: Trace, among: NDArray[np.bool_]) -> tuple[str, ...]:
    """Names, in the order in which the backward pass meets them."""
    chosen = [tensor for tensor, one in zip(trace.tensors, among, strict=True) if one]
    return tuple(tensor.name for tensor in sorted(chosen, key=lambda t: -t.order))


def _from_norms(trace: Trace) -> _Seen | None:
    """From logged norms, without skipped updates and those before the first finite norm."""
    if "grad_norm" not in trace.series:
        return None
    norm = trace.series["grad_norm"]
    bad = _made(trace, norm)
    finite = np.flatnonzero(norm.bad < norm.count)
    if finite.size:  # a scaler that searched for its scale
        bad = np.where(np.arange(bad.size) < finite[0], 0, bad)
    rows = np.flatnonzero(bad > 0)
    if not rows.size:
        return None
    first, last = int(norm.first_bad[rows[0]]), int(norm.last_bad[rows[-1]])
    what = f"of {norm.rows:,} gradient norms NaN or infinite; a log does not tell of which tensor"
    count = int(bad.sum())
    evidence = (Evidence("grad_norm", what, count, 0, "rows"),)
    sound = row_before(norm, first)
    return _Seen(first, last, evidence, share=count / norm.rows, sound=sound)


def _is_artefact(trace: Trace) -> bool:
    """Whether no logged norm ever was finite and every loss was: such a norm tells nothing."""
    norm, loss = trace.series.get("grad_norm"), trace.series.get("loss")
    if norm is None or bool((norm.bad < norm.count).any()):
        return False
    return loss is None or not unmasked(loss, witness(trace)).bad.any()


def _made(trace: Trace, norm: Series) -> NDArray[np.int64]:
    """[T]: norms that are not finite, without those of skipped updates."""
    return norm.bad - np.minimum(_skipped(trace, norm), norm.bad)


def _skipped(trace: Trace, norm: Series) -> NDArray[np.int64]:
    """[T]: skipped updates in each row of `norm`."""
    if "step_skipped" not in trace.series:
        return np.zeros(norm.steps.size, np.int64)
    skipped = trace.series["step_skipped"]
    steps = skipped.steps[skipped.values > 0]
    before = np.searchsorted(steps, norm.starts, "left")
    return np.asarray(np.searchsorted(steps, norm.steps, "right") - before, np.int64)


def _sound_after(trace: Trace, step: int) -> bool | None:
    """Whether a finite loss or norm follows, so that the weights are whole; None if no row does."""
    loss, norm = trace.series.get("loss"), trace.series.get("grad_norm")
    several = [unmasked(loss, witness(trace))] if loss is not None else []
    several += [norm] if norm is not None else []
    later = [series.starts > step for series in several]
    if not any(rows.any() for rows in later):
        return None
    finite = [series.bad < series.count for series in several]
    return any(bool((a & b).any()) for a, b in zip(later, finite, strict=True))


def _loss_at(trace: Trace, seen: _Seen) -> Loss | None:
    """The loss of that update, or of the row that ends with it; None where nothing tells.

    A finite loss in a log that hides NaN proves nothing.
    """
    if "loss" not in trace.series:
        return None
    window = trace.facts.get("loss_window")
    loss = unmasked(trace.series["loss"], witness(trace))
    row = np.flatnonzero(loss.steps == seen.first)
    if not row.size:
        return None
    if math.isfinite(loss.values[row[0]]):
        return None if window not in (None, 1) or may_hide_nan(trace) else "finite"
    if (loss.bad[: row[0]] > 0).any():
        return None  # after an earlier loss that broke, this one is no more to blame
    # A loss is there before its gradient: where both are of one update, it broke first.
    is_one_update = window == 1 or trace.facts.get("framework") in ONE_UPDATE
    return "first" if is_one_update and seen.sound == seen.first - 1 else "together"


def _known_sound(trace: Trace, seen: _Seen) -> int:
    """The newest step before the first whose loss or gradient is known to be finite."""
    if "loss" not in trace.series:
        return seen.sound
    loss = unmasked(trace.series["loss"], witness(trace))
    before = row_before(loss, seen.first)
    finite = loss.steps[loss.bad == 0]
    return max(seen.sound, before) if before in finite else seen.sound


def _loss_beside(step: int, before: int, loss: Loss | None) -> tuple[Evidence, ...]:
    """That the loss of that update broke first, or broke in the same row."""
    if loss not in ("first", "together"):
        return ()
    what = f"loss of step {step} NaN or infinite: it broke first"
    if loss == "together":
        what = f"loss NaN or infinite in the same row, {_stretch(step, before)}"
        what += ": which of the two broke first is not known"
    return (Evidence("loss", what, 1, 0, "rows"),)


def _stretch(step: int, before: int) -> str:
    """The steps that the row at `step` may tell of."""
    if before >= step - 1:
        return f"step {step}"
    return f"steps {before + 1} to {step}"


def _broken_weights(trace: Trace, step: int) -> tuple[Evidence, ...]:
    """That the weights were not finite before that step: no batch and no loss is to blame."""
    before = trace.facts.get("weights_nonfinite")
    if isinstance(before, int) and 0 < before < 2**53:
        what = "weights NaN or infinite before the first update that was watched"
        return (Evidence("weights_nonfinite", what, before, 0, "elements"),)
    if "update_nonfinite" not in trace.series:
        return ()
    update = trace.series["update_nonfinite"]
    counts = np.nansum(np.asarray(update.values, np.float64), axis=1)  # [T]
    rows = np.flatnonzero((counts > 0) & (update.steps < step))
    if not rows.size:
        return ()
    what = f"weights NaN or infinite after step {update.steps[rows[0]]}"
    return (Evidence("update_nonfinite", what, float(counts[rows[0]]), 0, "elements"),)


def _treatments(
    trace: Trace,
    since: int,
    before: int,
    lost: bool,
    loss: Loss | None,
    weights_broken: bool,
) -> tuple[Treatment, ...]:
    guard = Treatment(
        title="Leave such updates out: clip_grad_norm_(.., error_if_nonfinite=True) raises in time",
        when="next" if lost else "now",
        safety="manual",
        basis="literature",
        source="torch.nn.utils.clip_grad_norm_",
        intervention="step-guard",
    )
    repeat = Treatment(
        title=f"Repeat step {since} on its batch under torch.autograd.detect_anomaly()",
        when="check",
        safety="manual",
        basis="literature",
        source="torch.autograd.detect_anomaly names the operation whose backward pass gave NaN",
    )
    course = "its loss broke first, and the gradient with it"
    if loss == "together":
        course = "loss and gradient broke in the same row"
    batch = Treatment(
        title=f"Look at {batches(since, before)}: {course}",
        when="check",
        safety="manual",
        basis="heuristic",
        source="the gradient of a loss that is not finite is not finite",
    )
    back = go_back(trace, since, ", where the gradient broke", before)
    if weights_broken:
        return (back,)
    if loss in ("first", "together"):
        return (batch, guard)
    return (back, guard, repeat) if lost else (guard, repeat)


def _run(broken_at: int | None) -> Trace:
    """400 updates, every tenth sampled and that one; from it on all is lost."""
    tensors = small_gpt()
    loss, norm = falling_loss(), gradient_norms()
    sampled = np.arange(10, 401, 10)
    first = np.full((sampled.size, len(tensors)), np.nan)
    if broken_at is not None:
        loss[broken_at:], norm[broken_at - 1 :] = np.nan, np.nan
        first[sampled >= broken_at, :6] = broken_at
        first[sampled > broken_at, 6:] = broken_at + 1
    return make_trace(
        {"loss": loss, "grad_norm": norm, "first_nonfinite_step": first},
        tensors=tensors,
        steps={"first_nonfinite_step": sampled},
    )


RULE = rule.Rule(
    name="nonfinite-gradient",
    needs=("first_nonfinite_step|grad_nonfinite_raw|grad_nonfinite|grad_norm",),
    uses=(
        "loss",
        "grad_norm_used",
        "step_skipped",
        "update_nonfinite",
        "weights_nonfinite",
        "resumed_from",
        *FILTERED_BY,
    ),
    explains=("nan-pulse",),
    check=check,
    limits=Limits(),
    sick=lambda: _run(300),
    healthy=lambda: _run(None),
    doc=__doc__ or "",
)
