"""Adam's second moment is far below the gradients that now come in.

## What it finds
Gradients that are several times as large as those that the optimizer remembers. Adam's second
moment is a running mean of squared gradients; the mean square of the gradients that come in is
divided by it, and the root of that says how many times larger they are. It is told where the root
is above `ratio` in `samples` sampled updates in a row, once the moment has seen `after` updates; or
in one, if the updates from there on are more than `growth` times as large, in learning rates, as
those before. A note; a warning where the loss rises there by more than `rise` and by more than
`noises` times its usual change from row to row. What is compared are the gradients that the
optimizer consumed, after clipping. The root mean square of the moment stands for its mean, which is
never larger: the ratio shown is a lower bound. Of a log, which has no moments, a running mean of
the squared gradient norm stands for them, and two rows in a row have to show it.
## Why it matters
Adam divides by the root of the moment, so that steps are about one learning rate large. Gradients
that grow faster than the moment can follow, which takes 1/(1-beta2) updates, move the weights by
several rates, until it has caught up. In 18 small runs whose loss was multiplied by 10 to 1000 at
step 151 the ratio rose to 5.6 to 7.7 with beta2 0.999 and to 2.5 with 0.95. All of them ended as
well as their twins; three in which gradients grew a thousandfold near the end, at a constant rate,
ended 7 to 41 % worse. Gradients that grow are an answer to a fault as often as its cause.
## What to do
Find what changed where it begins: other data, another weight of the loss, layers that were set
free. If it returns, give the moment a shorter memory, or lower the rate before such a change. Do
not set the moment to zero by itself: with beta2 0.999 the next step is 32 times too large.
## When it is fine
Right after a change that was meant, for as long as the moment takes to follow. In 36 healthy small
runs with AdamW, Adam, NAdam and RAdam the ratio that three samples held was 1.6 at most; in 20
of them updates after a single sample above 2 were at most 1.9 times as large as before it.
The other direction is not judged: where a problem is nearly solved the gradients fall, and healthy
runs came to 2 % of what pure noise would move the weights by.
## Told apart from
`gradient-outlier`: one step that stands out; here the gradients stay large.
`second-moment-underflow`: the moment is 0, as its dtype cannot hold so small a square.
`bad-batch`: gone in the next step.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.around import levels_around
from optdoctor.curves.rows import spans
from optdoctor.curves.samples import at_samples
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.in_a_log import steps_by_gradient
from optdoctor.knowledge.moments import AVERAGING
from optdoctor.store import IntArray
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Trace

BEFORE, NEXT = 16, 4
"""Samples whose median update is compared, before one and from it on."""
LOGGED = 2
"""Rows of a log in a row that have to agree: between them lie updates that nobody logged."""
SHORTER = 0.95
"""The beta2 to try."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 3
    """As many samples as have to agree."""
    ratio: float = 2.0
    """Largest root of the gradients' mean square over the second moment: 1 by definition where
    gradients neither grow nor fall, 1.6 at most held by three samples of 36 healthy small runs."""
    samples: int = 3
    """Samples in a row that have to be above it: single ones reached 3.3 in a healthy run with two
    examples a batch."""
    growth: float = 2.5
    """Factor by which updates grow, in learning rates, from which one sample above `ratio` is
    enough: 1.9 at most after such a sample of 20 healthy small runs."""
    rise: float = 0.0625
    """Share by which the loss is higher afterwards for a warning. Heuristic."""
    noises: float = 1.5
    """How many times the median change from row to row it has to be, too: three standard errors
    of a difference of medians of 16 normal losses. Chosen after runs of the clinic's open half
    were seen."""
    after: int = 20
    """Updates of the state before which nothing is judged: the first moments are means of few
    gradients, which often grow from 0."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    family, beta2 = trace.facts["optimizer_family"], trace.facts["beta2"]
    if family not in AVERAGING:
        return []
    if not isinstance(beta2, float) or not 0 < beta2 < 1:
        return Abstain(f"beta2 {beta2} gives no running mean")
    form = trace.facts.get("moment2_form")
    if form not in ("full", None):
        return Abstain(f"second moments are held {form}: they are no square for each weight")
    steps = trace.series["grad_rms"].steps
    by_tensor = _ratios(trace, steps, beta2, limits)
    ratio = _pooled(by_tensor, trace.num_elements)
    above = np.isfinite(ratio) & (ratio > limits.ratio)
    grown = _growth(trace, steps)
    stretches = [
        (a, b)
        for a, b in spans(above)
        if b - a + 1 >= limits.samples or (grown[a : b + 1] > limits.growth).any()
    ]
    if not stretches:
        return []
    first, last = stretches[0][0], stretches[-1][1]
    least = limits.ratio
    worst = max((row for a, b in stretches for row in range(a, b + 1)), key=lambda r: ratio[r])
    what = "gradients consumed, over the root of the second moment, at step"
    evidence = [
        Evidence("grad_rms", f"{what} {steps[row]}", float(ratio[row]), limits.ratio, "times")
        for row in dict.fromkeys((first, worst))
    ]
    harmed, course = _risen(trace, int(steps[max(first - 1, 0)]), int(steps[first]), limits)
    evidence += harmed
    return [
        Finding(
            severity=Severity.WARN if harmed else Severity.NOTE,
            awaits_symptom=not harmed,
            summary=(
                f"From step {steps[first]} on gradients are at least {ratio[first]:.3g} times as"
                f" large as Adam's second moment remembers (limit {limits.ratio:g}){course}"
            ),
            steps=(int(steps[first]), int(steps[last])),
            tensors=trace.worst(by_tensor[worst], by_tensor[worst] > least),
            evidence=(*evidence, *_moved(trace, steps[worst : worst + 1])),
            treatments=_treatments(beta2, int(steps[first])),
        )
    ]


def check_log(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    """By the norm of the gradient, and a running mean of its square as the moment's is: that of
    rows, each for the updates since the last."""
    family, beta2 = trace.facts["optimizer_family"], trace.facts["beta2"]
    if family not in AVERAGING or not isinstance(beta2, float) or not 0 < beta2 < 1:
        return []
    known = steps_by_gradient(trace)
    steps, squares = known.steps, known.norms**2
    if steps.size < limits.rows:
        return []
    ratio = _ratio_of_log(steps, squares, beta2, limits)
    stretches = [(a, b) for a, b in spans(ratio > limits.ratio) if b - a + 1 >= LOGGED]
    if not stretches:
        return []
    first, last = stretches[0][0], stretches[-1][1]
    worst = int(np.nanargmax(ratio))
    what = "norm of the gradient over the root of the running mean of its square, at step"
    evidence = [
        Evidence("grad_norm", f"{what} {steps[row]}", float(ratio[row]), limits.ratio, "times")
        for row in dict.fromkeys((first, worst))
    ]
    harmed, course = _risen(trace, int(steps[max(first - 1, 0)]), int(steps[first]), limits)
    return [
        Finding(
            severity=Severity.WARN if harmed else Severity.NOTE,
            awaits_symptom=not harmed,
            summary=(
                f"From step {steps[first]} on gradients are {ratio[first]:.3g} times as large as"
                f" Adam's second moment can remember (limit {limits.ratio:g}){course}"
            ),
            steps=(int(steps[first]), int(steps[last])),
            evidence=(*evidence, *harmed),
            treatments=_treatments(beta2, int(steps[first])),
        )
    ]


def _risen(trace: Trace, before: int, step: int, limits: Limits) -> tuple[list[Evidence], str]:
    """Evidence that the loss rose there, and how the sentence ends; none where it did not."""
    levels = levels_around(trace, before, step + 1)
    if levels is None or levels.risen <= limits.rise * levels.before:
        return [], "."
    if levels.risen <= limits.noises * levels.noise:
        return [], "."
    what = "median loss of the rows after it, beside that before"
    limit = levels.before * (1 + limits.rise)
    told = [Evidence("loss", what, levels.after, limit, "loss")]
    return told, f", and the loss rose from {levels.before:.4g} to {levels.after:.4g}."


def _ratio_of_log(
    steps: IntArray, squares: Floats, beta2: float, limits: Limits
) -> NDArray[np.float64]:
    """[T]: norm of the gradient over the root of the mean that the moment holds after that update;
    NaN where the moment is young."""
    moment, told = 0.0, np.full(steps.size, np.nan)
    before = int(steps[0]) - int(np.diff(steps[:2])[0]) if steps.size > 1 else int(steps[0]) - 1
    age = max(int(steps[0]) - max(before, 0), 1)
    for row, step in enumerate(steps):
        if row:
            age += int(step - steps[row - 1])
        apart = int(step - steps[row - 1]) if row else age
        kept = beta2**apart
        moment = kept * moment + (1 - kept) * float(squares[row])
        held = moment / (1 - beta2**age)
        if age >= limits.after and held > 0:
            told[row] = math.sqrt(float(squares[row]) / held)
    return told


def _ratios(trace: Trace, steps: IntArray, beta2: float, limits: Limits) -> Floats:
    """[T, P]: root of the gradient's mean square over the second moment; NaN where not judged."""
    gradient = at_samples(trace, "grad_rms", steps)
    moment = at_samples(trace, "moment2_rms", steps)
    seen = np.isfinite(gradient) & np.isfinite(moment) & (moment > 0) & (gradient >= 0)
    updates = _updates(trace, steps, seen)
    judged = seen & (updates >= limits.after) & _wide_enough(trace)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = gradient * np.sqrt((1 - beta2**updates) / moment)
    return np.asarray(np.where(judged & np.isfinite(found), found, np.nan), np.float64)


def _updates(trace: Trace, steps: IntArray, seen: NDArray[np.bool_]) -> Floats:
    """[T, P]: updates that each moment has seen at least: since its first sample, or since the
    resume that began without state.

    Fewer than there were make a ratio smaller: the error is on the side of silence.
    """
    begun = np.where(seen.any(axis=0), steps[seen.argmax(axis=0)], steps[-1] + 1)  # [P]
    updates = np.broadcast_to(steps[:, None] - begun + 1, seen.shape)
    resumed = trace.facts.get("resumed_from")
    if trace.facts.get("state_loaded") == "no" and isinstance(resumed, int):
        late = steps[:, None] > resumed
        updates = np.where(late, np.minimum(updates, steps[:, None] - resumed), updates)
    return np.asarray(np.maximum(updates, 0), np.float64)


def _wide_enough(trace: Trace) -> NDArray[np.bool_]:
    """[P]: not held in float16, which turns small squares into 0."""
    return np.array([t.state_dtype != "float16" for t in trace.tensors], bool)


def _pooled(values: Floats, num_elements: NDArray[np.int64]) -> Floats:
    """[T]: root mean square over the elements of the tensors that have a value."""
    has = np.isfinite(values)
    squares = np.where(has, values, 0) ** 2 @ num_elements
    counted = has @ num_elements
    means = np.sqrt(squares / np.maximum(counted, 1))
    return np.asarray(np.where(counted > 0, means, np.nan), np.float64)


def _growth(trace: Trace, steps: IntArray) -> Floats:
    """[T]: median update of the next samples over that of the samples before, in learning rates;
    0 where one of them is not known."""
    moved = _pooled(at_samples(trace, "update_to_lr", steps), trace.num_elements)
    found = np.zeros(len(steps))
    for row in range(NEXT, len(steps) - NEXT + 1):
        before, after = moved[max(0, row - BEFORE) : row], moved[row : row + NEXT]
        if np.isfinite(before).all() and np.isfinite(after).all() and np.median(before) > 0:
            found[row] = np.median(after) / np.median(before)
    return found


def _moved(trace: Trace, step: IntArray) -> tuple[Evidence, ...]:
    """How far the weights moved then, where it was measured."""
    moved = float(_pooled(at_samples(trace, "update_to_lr", step), trace.num_elements)[0])
    if not math.isfinite(moved):
        return ()
    what = f"root mean square of the update of step {step[0]}, in learning rates, beside Adam's one"
    return (Evidence("update_to_lr", what, moved, 1.0, "learning rates"),)


def _treatments(beta2: float, since: int) -> tuple[Treatment, ...]:
    look = Treatment(
        title=f"Look at what changed at step {since}: data, weights of the loss, layers set free",
        when="check",
        safety="safe",
        basis="heuristic",
        source="a second moment is above its gradients unless they grow",
    )
    shorter = Treatment(
        title=f"If it returns, shorten the memory: beta2 = {SHORTER:g}",
        changes={"beta2": (beta2, SHORTER)},
        safety="risky",
        basis="literature",
        source="arXiv 2304.13013: spikes after the second moment lagged, fewer with a lower beta2",
    )
    return (look, shorter) if beta2 > SHORTER else (look,)


def _run(growth: float, rows: int = 40) -> Trace:
    """Samples of every tenth step; the gradients grow to so many times in the middle."""
    tensors = small_gpt()
    steps = np.arange(1, rows + 1) * 10
    gradient = np.where(steps > 200, growth, 1.0) * 1e-3
    gap = np.maximum(steps - 200, 0)
    moment = 1e-6 * (1 + (growth**2 - 1) * (1 - 0.999**gap)) * (1 - 0.999**steps)
    sampled = dict.fromkeys(("grad_rms", "moment2_rms"), steps)
    wide = np.ones((1, len(tensors)))
    return make_trace(
        loss=falling_loss(),
        grad_rms=gradient[:, None] * wide,
        moment2_rms=moment[:, None] * wide,
        beta2=0.999,
        optimizer_family="adam",
        tensors=tensors,
        steps=sampled,
    )


RULE = rule.Rule(
    name="second-moment-stale",
    needs=("grad_rms", "moment2_rms", "beta2", "optimizer_family"),
    uses=(
        *("loss", "max_grad_norm", "moment2_form", "resumed_from", "state_loaded"),
        "update_to_lr",
    ),
    explains=("loss-spike", "divergence"),
    spares=("sgd",),
    check=check,
    on_log=rule.LogForm(("grad_norm", "lr", "beta2", "optimizer_family"), check_log),
    limits=Limits(),
    sick=lambda: _run(10.0),
    healthy=lambda: _run(1.0),
    doc=__doc__ or "",
)
