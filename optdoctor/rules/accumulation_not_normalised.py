"""The loss is summed over the micro-batches of an update instead of averaged.

## What it finds
A first training loss that is as many times the logarithm of the number of classes as an update has
micro-batches, 2 at least, to within 15 %; or a training loss that is as many times the first
evaluation loss. An evaluation loss that is nearer to the training loss than to its share of it
contradicts both. With plain or averaged SGD it is a warning where both hold, or where one holds
beside a symptom of steps that are too large; otherwise a note.
## Why it matters
The gradient is that many times as long. For SGD the learning rate is in truth that many times the
one that is set, and a clip at a norm acts on updates that it was not meant for. Optimizers that
divide by the size of the gradient, as Adam, take the same steps as before: for them the clip and
the log are wrong, and little else.
## What to do
Divide the loss of each micro-batch by their number before its backward pass, or take the mean over
all tokens of the update. With a framework that does it, look for a loss of one's own that sums.
## When it is fine
The log may show the sum while the gradient is that of the mean: the loss then is high on paper
alone. With a learning rate that was chosen for the sum the training is as it should be, until the
number of micro-batches changes.
## Told apart from
`training-loss-floor`: the ratio grows as the evaluation loss falls. Mixed examples and strong
dropout can lift the training loss to twice the evaluation loss: with 2 micro-batches the number of
classes tells them apart, and without it the finding is a note.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import NOT_FALLING, RESCALED, RUNNING_MEAN
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

LEAST = 3
"""Fewest rows before the first evaluation."""
BESIDE = 5
"""Rows before the first evaluation whose median is the training loss there."""
FEELING = frozenset({"sgd", "asgd"})
"""Families whose steps are as long as the gradient is."""
GUESS = "logarithm of the number of classes, in the first row"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 1
    """The first rows and the first evaluation tell."""
    tolerance: float = 0.15
    """Largest distance from the number of micro-batches, as a share of it: a training loss falls
    between its rows and the evaluation, and dropout lifts it: heuristic."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    facts = trace.facts
    several = facts["accumulation_steps"]
    if not isinstance(several, int) or not 2 <= several < 2**31:
        return []
    if facts.get("losses_comparable") == "no":
        return Abstain("training and evaluation loss are not the same function of the data")
    if facts.get("loss_kind") in NOT_FALLING or facts.get("loss_form") in {RUNNING_MEAN, *RESCALED}:
        return Abstain("the training loss is not logged as a mean of falling losses")
    loss = trace.series["loss"]
    finite = np.isfinite(loss.values)
    steps, losses = loss.steps[finite], np.asarray(loss.values[finite], np.float64)
    if not losses.size:
        return []
    over_guess = _over_guess(trace, float(losses[0]))
    at_start = _off(over_guess, several) <= limits.tolerance
    evaluated = _over_evaluation(trace, steps, losses)
    since, evidence = int(steps[0]), []
    if evaluated is not None:
        near = _off(evaluated[1], several) <= limits.tolerance
        if evaluated[1] < several**0.5 or not (near or at_start):
            return []
        since = int(steps[0]) if at_start else evaluated[0]
        ratio = evaluated[1]
        evidence.append(_evidence("eval_loss", "first evaluation loss", ratio, several, limits))
    elif not at_start:
        return []
    if at_start:
        evidence.insert(0, _evidence("num_classes", GUESS, over_guess, several, limits))
    feels = facts.get("optimizer_family") in FEELING
    sure = len(evidence) == 2 and feels
    return [
        Finding(
            severity=Severity.WARN if sure else Severity.NOTE,
            summary=(
                f"The training loss is {evidence[0].observed:.3g} times the"
                f" {GUESS if at_start else 'first evaluation loss'}, and an update has"
                f" {several} micro-batches: to within"
                f" {100 * _off(evidence[0].observed, several):.2g} %"
                f" (limit {100 * limits.tolerance:g} %) their losses are summed."
            ),
            steps=(since, trace.steps[1]),
            evidence=tuple(evidence),
            awaits_symptom=feels and not sure,
            treatments=_treatments(several, feels=feels),
        )
    ]


def _over_evaluation(trace: Trace, steps: IntArray, losses: Floats) -> tuple[int, float] | None:
    """The step of the first evaluation, and the training loss there over it; None without one."""
    if not trace.has("eval_loss"):
        return None
    step, value = trace.series["eval_loss"].steps[0], float(trace.series["eval_loss"].values[0])
    beside = losses[steps <= step][-BESIDE:]
    if beside.size < LEAST or not (math.isfinite(value) and value > 0):
        return None
    return int(step), min(float(np.median(beside)) / value, 1e9)


def _off(ratio: float, several: int) -> float:
    return round(abs(ratio / several - 1), 9)


def _over_guess(trace: Trace, first: float) -> float:
    """The first training loss over that of a model that guesses; 0 where it is not known."""
    classes = trace.facts.get("num_classes")
    known = isinstance(classes, int | float) and 2 <= classes < 2**31
    if not known or trace.facts.get("loss_base", "nats") != "nats":
        return 0.0
    return min(first / math.log(float(classes or 2)), 1e9)


def _evidence(channel: str, of: str, ratio: float, several: int, limits: Limits) -> Evidence:
    what = f"training loss over the {of}; {several} micro-batches, from which it may be as far away"
    return Evidence(channel, what, ratio, several * (1 + limits.tolerance), "times")


def _treatments(several: int, *, feels: bool) -> tuple[Treatment, ...]:
    rate = ", and set the rate anew: that of the sum was chosen for a gradient as long" * feels
    return (
        Treatment(
            title="See whether the loss of each micro-batch is divided by their number before its"
            " backward pass, or only in the log",
            when="check",
            safety="safe",
            source="gradients of several backward passes add up",
        ),
        Treatment(
            title=f"Divide the loss of each micro-batch by {several}{rate}",
            safety="manual",
            source="the mean over an update is the sum over its micro-batches by their number",
        ),
    )


def _run(several: int) -> Trace:
    """400 updates of SGD on a model that knows something already, with 4 micro-batches each."""
    loss = falling_loss()
    return make_trace(
        loss=several * loss,
        eval_loss=(loss * 1.02)[9::20],
        accumulation_steps=4,
        num_classes=1000,
        optimizer_family="sgd",
        steps={"eval_loss": np.arange(10, 401, 20)},
    )


RULE = rule.Rule(
    name="accumulation-not-normalised",
    needs=("loss", "accumulation_steps", "eval_loss|num_classes"),
    uses=("loss_base", "loss_form", "loss_kind", "losses_comparable", "optimizer_family"),
    explains=("dead-units", *rule.LARGE_STEPS),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(4),
    healthy=lambda: _run(1),
    doc=__doc__ or "",
)
