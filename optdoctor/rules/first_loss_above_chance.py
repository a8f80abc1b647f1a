"""The first losses lie far above that of a model that guesses.

## What it finds
A cross-entropy whose `FIRST` first losses all lie more than `nats` above ln C, the loss of equal
odds for C classes. A note; a warning where they are also more than `times` of ln C. Only of a run
that begins at its first step, with one row an update, and of classes that are told or that the
graph of the loss shows. Of several micro-batches an update it is taken that their losses are
summed.
## Why it matters
A network that was just made knows nothing and should say so. A loss above ln C is that of one that
is sure of wrong answers: outputs of standard deviation s cost about s^2 / 2 nats more. Its first
gradients are large, and all layers first learn to make the outputs smaller. Small runs of SGD ended
at 13 times the loss from 3.4 times ln C; Adam got over that, and ended 20 % higher from 6 to 11.
## What to do
Print the standard deviation of the outputs for the first batch: 1 or less is usual. Start the
output layer smaller or at 0, scale initial weights by 1 over the root of the width, tied embeddings
too, and normalize the inputs. Of a pretrained model: look whether labels or tokens mean what they
meant to it.
## When it is fine
Fine-tuning on other data may begin above ln C. The loss of healthy small trainings began at most
0.65 nats above it, of adapters on text that their base had not read, and 1.14 times as high.
## Told apart from
`accumulation-not-normalised`: a whole multiple of ln C, by the number of micro-batches.
`gradient-abnormal-at-start`: gradients that fade or grow from layer to layer.
"""

import math
from dataclasses import dataclass

import numpy as np

from optdoctor import rule
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import NOT_FALLING, RESCALED, RUNNING_MEAN
from optdoctor.knowledge.settings import count
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

FIRST = 3
"""Losses that must all be so high: one may be that of an odd batch."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 1
    """Before the `FIRST`-th there is nothing to tell."""
    nats: float = 1.0
    """Largest distance above ln C that passes: outputs of a standard deviation of 1.4. Of healthy
    small trainings the largest was 0.65."""
    times: float = 3.0
    """Multiple of ln C from which it is a warning. Small runs whose output layer was made larger
    at the start: SGD ended at 2 times the loss for 1.5 times ln C and at 13 times for 3.4, Adam at
    1.07 for 1.9, 0.97 for 3.4 and 1.2 for 5.9 and 10.8."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    facts = trace.facts
    classes = count(facts["num_classes"])
    if classes is None or classes < 2 or facts.get("loss_base", "nats") != "nats":
        return []
    form, kind = facts.get("loss_form"), facts.get("loss_kind")
    if form in RESCALED or form == RUNNING_MEAN or kind in NOT_FALLING:
        return []
    loss = trace.series["loss"]
    steps, first = loss.steps[:FIRST], np.asarray(loss.values[:FIRST], np.float64)
    if steps.size < FIRST:
        return []
    is_first = steps[0] == trace.steps[0] and steps[-1] - steps[0] < FIRST
    if trace.has("resumed_from") or facts.get("loss_window", 1) != 1 or not is_first:
        return Abstain("the losses of the first updates are not known")
    if not np.isfinite(first).all():
        return []
    chance = math.log(classes)
    lowest = float(first.min()) / max(count(facts.get("accumulation_steps")) or 1, 1)
    above, times = round(lowest - chance, 9), round(lowest / chance, 9)
    if not above > limits.nats:
        return []
    is_far = times > limits.times
    odds = f"ln {classes:,} = {chance:.4g}, the loss of equal odds"
    evidence = [Evidence("loss", f"lowest first loss above {odds}", above, limits.nats, "nats")]
    if is_far:
        evidence.append(Evidence("loss", f"the same over {odds}", times, limits.times, "times"))
    return [
        Finding(
            severity=Severity.WARN if is_far else Severity.NOTE,
            summary=(
                f"The first {FIRST} losses are {lowest:.4g} or more, {times:.3g} times that of"
                f" equal odds for {classes:,} classes, {chance:.4g}: the model is sure of wrong"
                f" answers before it has learnt (limit {limits.nats:g} nats above)."
            ),
            steps=(int(steps[-1]), int(steps[-1])),
            evidence=tuple(evidence),
            treatments=_treatments(),
        )
    ]


def _treatments() -> tuple[Treatment, ...]:
    return (
        Treatment(
            title="Print mean and standard deviation of the inputs and of the model's outputs for"
            " the first batch",
            when="check",
            safety="safe",
            source="arithmetic: normal outputs of standard deviation s cost s^2 / 2 nats",
        ),
        Treatment(
            title="Start the output layer smaller, and initial weights by the width of their layer",
            safety="manual",
            basis="literature",
            source="bigscience-workshop/bigscience, chronicles of tr8-104B: sqrt(2 / (5 width))",
        ),
        Treatment(
            title="Of a pretrained model: decode a few examples and labels as the model reads them",
            when="check",
            safety="safe",
            source="a vocabulary in another order begins above chance",
        ),
    )


def _run(start: float) -> Trace:
    return make_trace(loss=falling_loss(start=start, end=1.2), num_classes=10)


RULE = rule.Rule(
    name="first-loss-above-chance",
    needs=("loss", "num_classes"),
    uses=(
        *("accumulation_steps", "loss_base", "loss_form", "loss_kind", "loss_window"),
        "resumed_from",
    ),
    explains=("divergence", "early-plateau", "nan-pulse"),
    check=check,
    limits=Limits(),
    sick=lambda: _run(40.0),
    healthy=lambda: _run(2.3),
    doc=__doc__ or "",
)
