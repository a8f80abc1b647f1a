"""The loss takes probabilities for logits, as where a softmax is applied to a softmax.

## What it finds
A loss whose graph shows that what it takes as logits comes out of a softmax or a sigmoid: a fact,
read off the first losses that are seen with their graph. Where none is, as in a log, a loss that
lies between ln(1 + (C - 1) / e) and 1 above it in every row, C being the number of classes, that
comes to within 1 % of this floor, and whose median over each tenth of the later half of the run is
at most 15 % above it. For 2, 3, 10 and 100 classes the floor is 0.3133, 0.5514, 1.4612 and 3.6222
nats. By its curve it is a note below 5 classes, as good losses often end at such a height, and
above 200, as the floor lies about 1 below ln C there: a language model passes it on its way.
## Why it matters
A cross-entropy takes logits and applies the softmax itself. Given probabilities, which lie between
0 and 1, the second softmax makes them almost equal: the loss stays between these two bounds
whatever the model says, and its gradient is a fraction of what it should be.
## What to do
Hand the logits to the cross-entropy and take the softmax out of the model, or take the logarithm of
the probabilities and use the negative log-likelihood. In evaluation apply the softmax once. The
same holds of a sigmoid before a binary cross-entropy with logits.
## When it is fine
Where the loss is bounded on purpose, as some do against wrong labels. A plain cross-entropy may
happen to end near the floor, but its batches scatter to both sides of it, and a model that guesses
starts it at ln C. Of a curve only nats are judged, and only a number of classes that is known.
## Told apart from
`early-plateau`: a loss that stands still at any height, for any reason.
"""

import math
from dataclasses import dataclass

import numpy as np

from optdoctor import rule
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import NOT_FALLING, RESCALED
from optdoctor.knowledge.settings import count
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

ROUNDED = 5e-4
"""Share of the floor by which a printed loss may lie beyond a bound that holds exactly."""
MOST = 2**31
"""What is no number of classes."""
MANY = 5
"""Classes below which good losses end at the height of the floor too often for a warning."""
VOCABULARY = 200
"""Classes above which 15 % of the floor is most of the way down from ln C: no place of rest."""
CURVE = 40
"""Rows of loss that a curve is judged from: four in each part of the later half."""
LEAST = 20
"""Finite losses below which none of those parts has a median."""
LOOKS = {
    "softmax": "Print the sum of one output over the classes: 1 means that it is a probability"
    " already",
    "sigmoid": "Print the least and the largest output: within 0 and 1 they are probabilities",
}
"""{value of `loss_input`: the check that shows it}."""
PARTS = 5
"""Parts of the later half whose medians must all lie near the floor."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 1
    """What the graph shows needs no curve."""
    nearest: float = 0.01
    """How near to the floor the lowest loss must come, as a share of it: batches of which the model
    is sure lie there, and no other loss has a reason to."""
    above: float = 0.15
    """How far above it the medians of the later half may lie, as a share of it: heuristic."""


def floor(classes: int) -> float:
    """The least cross-entropy of a softmax of probabilities."""
    return math.log1p((classes - 1) / math.e)


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    made_by = trace.facts.get("loss_input")
    if made_by in LOOKS:
        return [_of_graph(trace, str(made_by))]
    rows = trace.series["loss"].rows
    if rows < CURVE:
        return Abstain(f"{rows} rows of loss, needs {CURVE}")
    return _of_curve(trace, limits)


def _classes(trace: Trace) -> int | None:
    classes = count(trace.facts.get("num_classes"))
    return classes if classes is not None and 2 <= classes < MOST else None


def _of_graph(trace: Trace, made_by: str) -> Finding:
    """What every update shows from the first on."""
    classes = _classes(trace) if made_by == "softmax" else None
    share = math.e / (math.e + (classes or 2) - 1)
    among = f"{classes:,} classes" if classes else "two classes"
    steps = trace.series["loss"].steps
    return Finding(
        severity=Severity.WARN,
        summary=(
            f"The loss takes the output of a {made_by} as its logits: they lie between 0 and 1, so"
            f" that one of {among} gets {share:.3g} of the probability at most."
        ),
        steps=(int(steps[0]), int(steps[-1])),
        evidence=(
            Evidence(
                "loss_input",
                f"largest probability that logits between 0 and 1 can give one of {among}",
                100 * share,
                100.0,
                "%",
            ),
        ),
        treatments=_treatments(made_by),
    )


def _of_curve(trace: Trace, limits: Limits) -> list[Finding]:
    classes = _classes(trace)
    if classes is None:
        return []
    facts = trace.facts
    if facts.get("loss_base", "nats") != "nats" or facts.get("loss_form") in RESCALED:
        return []
    if facts.get("loss_kind") in NOT_FALLING:
        return []
    loss, least = trace.series["loss"], floor(classes)
    finite = np.isfinite(loss.values)
    steps, losses = loss.steps[finite], np.asarray(loss.values[finite], np.float64)
    if losses.size < LEAST:
        return []
    slack = ROUNDED * least
    lowest, highest = float(loss.low[finite].min()), float(loss.high[finite].max())
    if lowest < least - slack or highest > least + 1 + slack:
        return []
    nearest = round(max(lowest / least - 1, 0.0), 9)
    medians = [float(np.median(p)) for p in np.array_split(losses[losses.size // 2 :], PARTS)]
    above = round(max(medians) / least - 1, 9)
    if nearest > limits.nearest or above > limits.above:
        return []
    heights = np.round(np.maximum(loss.low[finite] / least - 1, 0.0), 9)
    since = int(steps[np.flatnonzero(heights <= limits.nearest)[0]])
    return [
        Finding(
            severity=Severity.WARN if MANY <= classes <= VOCABULARY else Severity.NOTE,
            summary=(
                f"The loss lies on {least:.4f}, the floor of a softmax applied twice to"
                f" {classes:,} classes: its lowest value is {lowest:.4f},"
                f" {100 * nearest:.2g} % above it (limit {100 * limits.nearest:g} %)."
            ),
            steps=(since, int(steps[-1])),
            evidence=(
                Evidence(
                    "loss",
                    f"lowest loss above ln(1 + ({classes} - 1) / e) = {least:.4f}",
                    100 * nearest,
                    100 * limits.nearest,
                    "%",
                ),
                Evidence(
                    "loss",
                    "highest median of a tenth of the run, of its later half, above that floor",
                    100 * above,
                    100 * limits.above,
                    "%",
                ),
            ),
            treatments=_treatments("softmax"),
        )
    ]


def _treatments(made_by: str) -> tuple[Treatment, ...]:
    return (
        Treatment(
            title=f"Hand logits to the cross-entropy: take the {made_by} out of the model",
            safety="manual",
            source=f"a cross-entropy of logits applies the {made_by} itself",
        ),
        Treatment(
            title=LOOKS[made_by],
            when="check",
            safety="safe",
            source="probabilities lie between 0 and 1, logits do not",
        ),
    )


def _sick() -> Trace:
    """400 rows of a loss over 10 classes that falls to near the floor, and not below."""
    noise = np.abs(np.random.default_rng(0).standard_normal(400))
    loss = floor(10) * (1 + 0.004 * noise) + 0.8 * np.exp(-np.arange(400) / 30)
    return make_trace(loss=loss, num_classes=10)


RULE = rule.Rule(
    name="softmax-applied-twice",
    needs=("loss", "loss_input|num_classes"),
    uses=("loss_base", "loss_form", "loss_kind"),
    explains=("early-plateau",),
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss(start=2.3, end=1.2), num_classes=10),
    doc=__doc__ or "",
)
