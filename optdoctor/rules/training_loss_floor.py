"""The training loss stands on a floor far above the evaluation loss.

## What it finds
Five evaluations in a row up to the newest at which the median training loss is more than 1.62 times
the evaluation loss and above a fifth of its first value, while it fell by less than a tenth in the
last eighth of the run, in the median of the five. A note: two numbers cannot tell labels that are
wrong in the training data alone from a training loss that is made harder on purpose. It is a
warning where a plateau is found beside it, or where the run says that both losses are the same
function of the data.
## Why it matters
A model that generalizes cannot learn labels that contradict each other: its training loss stops at
the entropy of the noise, while clean evaluation data show what it knows. What it then goes on to
learn are the wrong labels by heart, and the evaluation gets worse.
## What to do
Look at the training examples with the largest loss. Read a few hundred labels, or train on a small
part that was checked. Evaluate the training data as the evaluation data are: without dropout,
without augmentation, with the same loss. If the two then agree, the floor was made on purpose.
## When it is fine
Dropout, augmentation, mixed examples, label smoothing, a distilled or weighted training loss, and
harder training data all lift the training loss. So does a running mean, which lags behind, and a
loss that is summed over its micro-batches; where the log says so, nothing is compared.
## Told apart from
`accumulation-not-normalised`: the same ratio from the start, and it is the number of micro-batches.
`bimodal-gap`: the other sign, an evaluation loss far above the training loss. `early-plateau`: a
training loss that stands still, whatever the evaluations say.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import NOT_FALLING, RESCALED, RUNNING_MEAN
from optdoctor.store import Series
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

WINDOW = 32
"""Most rows before an evaluation whose median is the training loss there."""
LEAST = 3
"""Fewest of them."""
FIRST = 5
"""Rows whose median is the first training loss."""
SCALED = 1000.0
"""Ratio of the losses above which one of them was multiplied, as by a gradient scaler."""
WHOLE = 0.15
"""Distance from the number of micro-batches, as a share of it, up to which a ratio may be that."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 5
    """As many evaluations as must agree."""
    octaves: float = 0.7
    """Largest binary logarithm of the training loss over the evaluation loss: heuristic."""
    height: float = 0.2
    """Share of the first training loss below which the training is no floor but goes well."""
    fall: float = 0.1
    """Least fall of the training loss, in the last eighth of the run, that is still progress."""
    evaluations: int = 5
    """Evaluations in a row that must agree."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    facts = trace.facts
    if facts.get("losses_comparable") == "no":
        return Abstain("training and evaluation loss are not the same function of the data")
    if facts.get("loss_kind") in NOT_FALLING or facts.get("loss_form") in {RUNNING_MEAN, *RESCALED}:
        return Abstain("the training loss is not logged as a mean of falling losses")
    loss, evaluated = trace.series["loss"], trace.series["eval_loss"]
    kept = np.isfinite(evaluated.values) & (evaluated.values > 0)
    at, evaluations = evaluated.steps[kept], np.asarray(evaluated.values[kept], np.float64)
    finite = np.isfinite(loss.values)
    losses = np.asarray(loss.values[finite], np.float64)
    if losses.size < FIRST or losses.min() < 0 or not at.size:
        return []
    first = float(np.median(losses[:FIRST]))
    levels = np.array([_level(loss, int(step)) for step in at])
    earlier = np.array([_level(loss, _eighth_before(loss, int(step))) for step in at])
    with np.errstate(invalid="ignore", divide="ignore"):
        octaves = np.asarray(np.round(np.log2(levels / evaluations), 9), np.float64)
        fallen = np.round(1 - levels / earlier, 9)
        heights = np.round(levels / first, 9) if first > 0 else np.full(at.size, np.nan)
    stands = (octaves > limits.octaves) & (heights > limits.height)
    since = int(np.flatnonzero(~stands)[-1]) + 1 if not stands.all() else 0
    if at.size - since < limits.evaluations:
        return []
    fall = float(np.median(fallen[-limits.evaluations :]))
    if not fall < limits.fall:
        return []
    ratio = float(np.median(2.0 ** octaves[since:]))
    if ratio > SCALED:
        return Abstain(f"the losses differ by a factor of {ratio:.3g}: one of them is scaled")
    if _is_accumulation(trace, ratio):
        return Abstain("the ratio of the losses is the number of micro-batches of an update")
    steps = (int(at[since]), int(at[-1]))
    return [_finding(trace, octaves[since:], heights[-1], fall, steps, limits)]


def _level(loss: Series, step: int) -> float:
    """The median training loss of the rows up to that step; NaN where they are too few."""
    end = int(np.searchsorted(loss.steps, step, "right"))
    rows = loss.values[max(end - WINDOW, 0) : end]
    known = rows[np.isfinite(rows)]
    return float(np.median(known)) if known.size >= LEAST else math.nan


def _eighth_before(loss: Series, step: int) -> int:
    """The step an eighth of the run so far before this one, a window away at least."""
    row = int(np.searchsorted(loss.steps, step, "right"))
    return int(loss.steps[max(row - 1 - max(row // 8, 1), 0)])


def _is_accumulation(trace: Trace, ratio: float) -> bool:
    several = trace.facts.get("accumulation_steps")
    if not isinstance(several, int) or not 2 <= several < 2**31:
        return False
    return abs(ratio / several - 1) <= WHOLE


def _finding(
    trace: Trace,
    octaves: Floats,
    height: float,
    fallen: float,
    steps: tuple[int, int],
    limits: Limits,
) -> Finding:
    comparable = trace.facts.get("losses_comparable") == "yes"
    times, limit = float(np.median(2.0**octaves)), 2.0**limits.octaves
    otherwise = "" if comparable else ", or a training loss that is harder on purpose"
    return Finding(
        severity=Severity.WARN if comparable else Severity.NOTE,
        summary=(
            f"The training loss stands at {times:.3g} times the evaluation loss (limit {limit:.3g})"
            f" in {octaves.size} evaluations from step {steps[0]:,} to {steps[1]:,}: wrong labels"
            f" in the training data alone{otherwise}."
        ),
        steps=steps,
        awaits_symptom=not comparable,
        evidence=(
            Evidence("loss", "training loss over evaluation loss, median", times, limit, "times"),
            Evidence(
                "loss",
                "fall of the training loss in the last eighth of the run, median of evaluations",
                100 * fallen,
                100 * limits.fall,
                "%",
            ),
            Evidence(
                "loss",
                "training loss as a share of its first value",
                100 * height,
                100 * limits.height,
                "%",
            ),
            Evidence(
                "eval_loss",
                "evaluations in a row at which all of this holds",
                octaves.size,
                limits.evaluations,
                "evaluations",
            ),
        ),
        treatments=(
            Treatment(
                title="Evaluate some of the training data as the evaluation data are, without"
                " dropout and augmentation: a loss that stays high means labels, one that falls to"
                " that of the evaluation means that the floor was made on purpose",
                when="check",
                safety="safe",
                source="the two losses then differ in the data alone",
            ),
            Treatment(
                title="Read the labels of the training examples with the largest loss",
                when="check",
                safety="safe",
                source="a model that generalizes gives a wrong label a high loss",
            ),
        ),
    )


def _run(octaves: float) -> Trace:
    """400 updates, evaluated every 20; from step 181 on the evaluations are so far below."""
    row = np.arange(400)
    noise = np.exp(0.02 * np.random.default_rng(0).standard_normal(400))
    loss = (1.3 + 1.0 * np.exp(-row / 40)) * noise
    evaluations = (1.3 * 2.0 ** np.where(row < 180, 0.0, -octaves) + np.exp(-row / 40))[19::20]
    steps = {"eval_loss": np.arange(20, 401, 20)}
    return make_trace(loss=loss, eval_loss=evaluations, steps=steps)


def _healthy() -> Trace:
    steps = {"eval_loss": np.arange(20, 401, 20)}
    evaluations = falling_loss(noise=0.0)[19::20] * 1.02
    return make_trace(loss=falling_loss(), eval_loss=evaluations, steps=steps)


RULE = rule.Rule(
    name="training-loss-floor",
    needs=("loss", "eval_loss"),
    uses=("accumulation_steps", "loss_form", "loss_kind", "losses_comparable"),
    explains=("early-plateau",),
    onset="estimated",
    check=check,
    limits=Limits(),
    sick=lambda: _run(1.2),
    healthy=_healthy,
    doc=__doc__ or "",
)
