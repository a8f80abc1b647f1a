"""Training went on from a checkpoint, and the optimizer's state did not.

## What it finds
A resume at which the optimizer that now trains held no state, although it keeps moments: a fact,
known at the first update after it. A note; a warning where the loss rises there by more than
`rise` and by more than `noises` times its usual change from row to row, while the rate does not
jump and the loss of the first batch, made before any update, is still where it was.
## Why it matters
The moments are empty and count their steps from 1 again. Adam's first step then is one learning
rate for each entry, however small and noisy its gradient: 0.97 to 1 rates in small runs, where
with its state it was 0.01 to 0.3. What the weights lose by that is often made up for within a few
dozen updates, and in small runs the loss did not show it; on large models it can be a spike.
## What to do
Save the state of the optimizer beside the weights and load it before the first update; of a
framework's trainer this is what a full checkpoint holds and one of the weights alone does not. If
the state is gone, let the rate rise from nearly 0 over the first updates after the resume.
## When it is fine
Where it was meant: weights of one training that begin another, with steps counted on. Optimizers
without state, as SGD without momentum, have none to lose. As long as the loss goes on as before,
there is nothing to repair.
## Told apart from
`learning-rate-restarted`: the rate begins anew, by a scheduler without its state. Other weights or
other data show in the loss of the first batch after the resume, before any update is made.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.around import Levels, levels_around
from optdoctor.curves.samples import at_samples
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.moments import AVERAGING
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Trace

MOMENTS = ("moment1_rms", "moment2_rms")
JUMP = 1.5
"""Factor of the rate at the resume from which a rise of the loss may come from the rate."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 1
    """One sample after the resume is enough: what was loaded is a fact."""
    rise: float = 0.0625
    """Share of the loss before by which the loss after is higher where state was missed: less is
    made up for within a few batches. Heuristic."""
    noises: float = 3.0
    """How many times the median change from row to row it has to be, too: medians of 16 noisy
    losses that keep their level are within 1.5 of one another."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    resumed = trace.facts["resumed_from"]
    if trace.facts["state_loaded"] != "no" or isinstance(resumed, bool):
        return []
    if not isinstance(resumed, int) or not 0 < resumed < 2**53:
        return []
    steps = _samples(trace)
    steps = steps[steps > resumed]
    if not steps.size:
        return []
    levels = levels_around(trace, resumed, resumed + 2)
    first = _first_loss(trace, resumed)
    harmed = (
        levels is not None and _missed(levels, first, limits) and not _rate_jumps(trace, resumed)
    )
    told = f"The optimizer held no state when training went on after step {resumed:,}"
    what = f"updates that the optimizer's state had seen after {resumed:,} updates of the run"
    evidence = [Evidence("state_loaded", what, 0, resumed, "updates"), *_moved(trace, steps)]
    if levels is not None:
        what = "median loss of the rows after the resume, beside that before it"
        limit = levels.before * (1 + limits.rise)
        evidence.append(Evidence("loss", what, levels.after, limit, "loss"))
    course = "."
    if harmed and levels is not None:
        course = f", and the loss rose from {levels.before:.4g} to {levels.after:.4g}."
    return [
        Finding(
            severity=Severity.WARN if harmed else Severity.NOTE,
            summary=told + course,
            steps=(int(steps[0]), int(steps[0])),
            evidence=tuple(evidence),
            treatments=_treatments(),
        )
    ]


def _samples(trace: Trace) -> IntArray:
    """Steps at which the optimizer was seen to hold moments."""
    held = [np.zeros(0, np.int64)]
    for name in MOMENTS:
        if name in trace.series:
            series = trace.series[name]
            held.append(series.steps[(np.asarray(series.values, np.float64) > 0).any(axis=1)])
    return np.unique(np.concatenate(held))


def _first_loss(trace: Trace, resumed: int) -> float | None:
    """Of the batch before the first update after the resume, where it was logged."""
    if "loss" not in trace.series:
        return None
    loss = trace.series["loss"]
    first = loss.values[np.isfinite(loss.values) & (loss.steps == resumed + 1)]
    return float(first[0]) if first.size else None


def _missed(levels: Levels, first: float | None, limits: Limits) -> bool:
    """Whether the loss rose after the first update, and not before it."""
    risen = levels.risen > limits.rise * levels.before
    if not (risen and levels.risen > limits.noises * levels.noise):
        return False
    return first is None or first - levels.before < levels.risen / 2


def _rate_jumps(trace: Trace, resumed: int) -> bool:
    if "lr" not in trace.series:
        return False
    lr = trace.series["lr"]
    before, after = lr.values[lr.steps <= resumed][-1:], lr.values[lr.steps > resumed][:1]
    return bool(before.size and after.size and after[0] > JUMP * before[0])


def _moved(trace: Trace, steps: IntArray) -> tuple[Evidence, ...]:
    """How far the first update after the resume moved the weights, of Adam kinds."""
    if trace.facts.get("optimizer_family") not in AVERAGING:
        return ()
    moved = at_samples(trace, "update_to_lr", steps[:1])[0]
    known = np.isfinite(moved)
    if not known.any():
        return ()
    num: NDArray[np.int64] = trace.num_elements[known]
    mean = float(np.sqrt(moved[known] ** 2 @ num / num.sum()))
    what = f"update of step {steps[0]} in learning rates, 1 where Adam begins from nothing"
    return (Evidence("update_to_lr", what, mean, 1.0, "learning rates"),)


def _treatments() -> tuple[Treatment, ...]:
    return (
        Treatment(
            title="Save the optimizer's state with the weights and load it before the first update",
            safety="safe",
            basis="heuristic",
            source="PyTorch's documentation on saving a general checkpoint",
        ),
        Treatment(
            title="If the state is gone and the loss has risen, resume again with a short warm-up",
            safety="risky",
            basis="heuristic",
            source="the first updates without state are as large as those of a new run",
            intervention="warmup-restart",
        ),
    )


def _run(loaded: str, rows: int = 100) -> Trace:
    """A run that was resumed at step 60."""
    tensors = small_gpt()
    wide = np.ones((rows, len(tensors)))
    return make_trace(
        loss=falling_loss(rows),
        moment2_rms=1e-6 * wide,
        resumed_from=60,
        state_loaded=loaded,
        optimizer_family="adam",
        tensors=tensors,
    )


RULE = rule.Rule(
    name="optimizer-state-lost",
    needs=("resumed_from", "state_loaded", "moment1_rms|moment2_rms"),
    uses=("loss", "lr", "update_to_lr", "optimizer_family"),
    explains=("loss-spike", "divergence"),
    mechanism=True,
    early=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run("no"),
    healthy=lambda: _run("yes"),
    doc=__doc__ or "",
)
