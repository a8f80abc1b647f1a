"""A learning rate far beyond the size of the weights that it moves.

## What it finds
A learning rate that is large beside the weights themselves. Their size is that of a typical entry
when watching began: the root mean square of each trained matrix of linear, convolutional, recurrent
and attention layers, and of these the median. Judged are optimizers that move
each weight by up to one learning rate an update whatever its gradient: Adam, AdamW, NAdam, RAdam,
Adamax, StableAdamW, Adam-mini and Lion. A rate above `noted` sizes is a note, above `far` a
warning, above `lost` critical; Lion's limits are a third of that. What is judged is the largest
rate that an update has used; before the first update it is the planned one, and a note only. A
note is a warning where the matrices have grown more than `grown` times since the first sample. A
group of layers with a higher rate than the main one is judged by its own matrices. Of a log, which
has no weights, it is a rate above 0.1 in a network of a thousand weights or more: a warning
where the loss stands above 60 % of its start, else a note.
## Why it matters
At a ratio of 1 an update moves every weight by as much as there is of it. At 6 the first update
leaves one part in 37 of a matrix's squared size to its initialisation. 14 small networks of 14
kinds were trained with AdamW at seven or eight rates each: the best were 0.02 to 1.4 sizes, and
from 2.6 sizes on 14 of 14 ended at least 6 % above their best loss. At 31 sizes 8 of 8 lost more
than half of what they could learn. Weights that have grown tenfold hold a hundredth of their
squared size from the initialisation: the steps made them.
## What to do
Lower the rate: 0.03 sizes is usual. Lion wants 3 to 10 times less than AdamW, by its authors.
Look for a slip of the pen first: a rate meant for SGD, a missing exponent, a base rate of 1 that a
scheduler was to scale. Clipping does not help: these optimizers do not feel how large a gradient
is.
## When it is fine
A model of one matrix, as a linear probe, bears rates of several sizes: it is a note there. A base
rate that a scheduler scales down is not used, and no finding once the first update shows it.
Weights that begin near zero: below a root mean square of 0.001, as the second half of an adapter,
they are not counted, and below a tenth of 1 over the root of a matrix's inputs the rate is compared
with that tenth, since they have yet to grow to their size.
Embeddings, and tensors of no known layer, as an optimized image or a table of features, are not
counted. SGD, Adafactor, Muon, Prodigy and others whose updates follow another size are not judged.
## Told apart from
`layer-learning-rate-mismatch`: one group's rate beside the others'.
`divergence`, `early-plateau`: what the loss shows of it later.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.matrices import (
    PAIR,
    faster_groups,
    growth_of,
    least_size,
    main_group,
    matrices,
)
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.in_a_log import stands_at, weights
from optdoctor.knowledge.losses import NOT_FALLING
from optdoctor.knowledge.precision import short
from optdoctor.knowledge.settings import positive
from optdoctor.store import IntArray
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

BOUNDED = frozenset({"adam", "adam_mini", "adamax", "lion", "nadam", "radam", "stable_adamw"})
"""Families whose update of a weight is about one learning rate at most."""
USUAL = 0.03
"""Rate that is proposed, in sizes of the weights: heuristic, near the mean of many kinds of run."""
HUNDREDTH = 0.01
"""Of the rate that no network bears: what is proposed where the weights are not known."""
UNHEARD = 0.1
"""Largest rate that is no note in a log, which has no weights: 17 kinds of small networks did best
with Adam kinds at 0.0009 to 0.05; those of published networks are lower."""
STANDING = 0.6
"""Loss, in parts of its start, up to which a run at such a rate is seen to learn all the same:
heuristic."""
NETWORK = 1000
"""Trained weights from which a log is taken to be that of a network: fewer are a curve that is
fitted, at rates of a tenth and more."""
EXACT = 1e-6
"""Share by which a rate may differ from the planned one and be the same."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: decided before step 1, and again from the rates that were used."""
    noted: float = 1.0
    """Largest rate, in sizes of the weights, that is not worth a note: physical, an update moves
    every weight by its own size; 2 of 14 kinds of small runs did best at it or above."""
    far: float = 6.0
    """Largest rate that is a note only: of the best rates of 14 kinds of small runs the logarithms
    have mean -0.75 and spread 0.55, so that a further kind exceeds it with a chance of 1 %. Chosen
    after runs of the clinic's open half were seen."""
    lost: float = 30.0
    """Largest rate at which a run is not called lost: initial weights are a thousandth of the
    squared size after one update."""
    grown: float = 10.0
    """Largest growth of the matrices, in the median, that leaves a rate above `noted` a note:
    physical, a hundredth of their squared size is left from the start. Healthy trainings of 17
    kinds of small networks with such optimizers reached 6.6; at rates above `noted` those beyond 10
    ended 1 % to 10 times worse than at the best one."""
    lion: float = 1 / 3
    """Share of these limits that holds for Lion: each update moves every weight by the whole rate,
    and its authors advise a third to a tenth of AdamW's. Six kinds of small runs did best at 0.01
    to 0.3 sizes, and at 1.0 ended at least 10 % above that."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    family = trace.facts["optimizer_family"]
    size, planned = positive(trace.facts["weights_rms"]), positive(trace.facts["peak_lr"])
    if family not in BOUNDED or size is None or planned is None:
        return []
    scale = limits.lion if family == "lion" else 1.0
    noted, far, lost = (limit * scale for limit in (limits.noted, limits.far, limits.lost))
    least = _least_size(trace)
    of = "the size of the weights that it moves"
    if least > size:
        size, of = least, "the least size that the weights it moves have to grow to"
    used = _used(trace)
    rate, steps, growth = planned, (0, 0), 1.0
    names: tuple[str, ...] = ()
    if used is not None:
        rates, at = used
        rate = float(rates.max())
        above = at[rates / size > noted]
        if above.size and rate > planned * (1 + EXACT):
            steps = (int(above[0]), int(above[-1]))
        main = main_group(trace)
        growth = growth_of(trace, [i for i in matrices(trace) if trace.tensors[i].group == main])
        faster = faster_groups(trace, rate * (1 + EXACT), noted)
        if faster and max(group.rate / group.size for group in faster) > rate / size:
            worst = max(faster, key=lambda group: group.rate / group.size)
            rate, size, steps, growth, names = worst
            of = f"the size of the {len(names)} matrices of its group, as {names[0]}"
    ratio = rate / size
    if not ratio > noted or not math.isfinite(ratio):
        return []
    severity, limit = Severity.NOTE, noted
    has_grown = growth > limits.grown
    if used is not None and (names or _is_deep(trace)):
        if has_grown:
            severity = Severity.WARN
        if ratio > far:
            severity, limit = Severity.WARN, far
        if ratio > lost:
            severity, limit = Severity.CRITICAL, lost
    said = "is planned" if used is None else "was used"
    optimizer = trace.facts.get("optimizer") or family
    new = float(f"{USUAL * scale * size:.1g}")
    channel = "tensor_lr" if names else "peak_lr" if used is None else "lr"
    what = "largest learning rate over the median root mean square of the matrices"
    told, grew = [Evidence(channel, what, ratio, limit, "times")], ""
    if has_grown:
        grew = f"; they have grown to {growth:.3g} times that (limit {limits.grown:g})"
        what = "size of these matrices over that of the first sample, median"
        told.append(Evidence("param_rms", what, growth, limits.grown, "times"))
    return [
        Finding(
            severity=severity,
            summary=(
                f"A learning rate of {short(rate)} {said} with {optimizer}, {ratio:.3g} times {of},"
                f" {size:.3g} (limit {limit:.3g}){grew}."
            ),
            steps=steps,
            tensors=names,
            evidence=tuple(told),
            treatments=_treatments(
                rate, new, f"{USUAL * scale:.2g} times the size of the weights", names
            ),
            awaits_symptom=severity is Severity.NOTE,
        )
    ]


def _least_size(trace: Trace) -> float:
    """What a matrix has to be at least to begin at a size of its own: `NEAR_ZERO` of 1 over the
    root of its inputs, in the middle of those that are trained; 0 where none is."""
    least = [least_size(trace.tensors[i]) for i in matrices(trace)]
    return float(np.median(least)) if least else 0.0


def check_log(trace: Trace, limits: Limits) -> list[Finding]:
    """By the rate and what became of the loss: no weights are known to compare it with."""
    family, number = trace.facts["optimizer_family"], weights(trace)
    used = _used(trace)
    if family not in BOUNDED or used is None or number is None or number < NETWORK:
        return []
    scale = limits.lion if family == "lion" else 1.0
    rates, at = used
    above, rate = rates > UNHEARD * scale, float(rates.max())
    if not above.any() or not math.isfinite(rate):
        return []
    stands = None if trace.facts.get("loss_kind") in NOT_FALLING else stands_at(trace)
    ill = stands is not None and stands > STANDING
    optimizer, limit = trace.facts.get("optimizer") or family, UNHEARD * scale
    what = "largest learning rate, of a network whose weights are not known"
    told, course = [Evidence("lr", what, rate, limit, "1")], ""
    if stands is not None:
        course = f", and the loss stands at {100 * stands:.3g} % of its start" * ill
        what = "the newest loss over the first one, or over that of a guess"
        told.append(Evidence("loss", what, stands, STANDING, "times"))
    return [
        Finding(
            severity=Severity.WARN if ill else Severity.NOTE,
            summary=(
                f"A learning rate of {short(rate)} was used with {optimizer}, more than networks"
                f" bear (limit {limit:.3g})"
                f"{course}."
            ),
            steps=(int(at[above][0]), int(at[above][-1])),
            evidence=tuple(told),
            treatments=_treatments(
                rate, float(f"{HUNDREDTH * limit:.1g}"), "a hundredth of that limit"
            ),
            awaits_symptom=not ill,
        )
    ]


def _treatments(
    rate: float, new: float, usual: str, names: tuple[str, ...] = ()
) -> tuple[Treatment, ...]:
    """For the run, or for the group that has these tensors: no knob holds the rate of a group."""
    of = f" of the group of {names[0]}" if names else ""
    return (
        Treatment(
            title=f"Lower the learning rate{of}, {short(rate)} to about {short(new)}",
            changes={"peak_lr": (rate, new)} if rate != new and not names else {},
            safety="risky",
            basis="heuristic",
            source=f"{usual} is usual",
        ),
        Treatment(
            title="Check that this rate was meant, and what the scheduler multiplies it by",
            when="check",
            safety="safe",
            basis="heuristic",
            source="a rate meant for another optimizer, or a base rate to be scaled",
        ),
    )


def _used(trace: Trace) -> tuple[NDArray[np.float64], IntArray] | None:
    """(rates, steps) of the updates so far; None where no rate is known."""
    if "lr" not in trace.series:
        return None
    rates = np.asarray(trace.series["lr"].values, np.float64)
    known = np.isfinite(rates) & (rates >= 0)
    return (rates[known], trace.series["lr"].steps[known]) if known.any() else None


def _is_deep(trace: Trace) -> bool:
    """Whether several matrices are trained, one after the other."""
    return len(matrices(trace)) >= PAIR


def _run(rate: float, updates: int = 0) -> Trace:
    facts = {"optimizer": "AdamW", "optimizer_family": "adam", "weights_rms": 0.02}
    rates = {"lr": np.full(updates, rate)} if updates else {}
    return make_trace({**facts, **rates, "peak_lr": rate}, tensors=small_gpt())


RULE = rule.Rule(
    name="learning-rate-absurd",
    needs=("peak_lr", "weights_rms", "optimizer_family"),
    uses=(
        *("lr", "loss_base", "loss_kind", "num_classes", "optimizer"),
        *("param_rms", "tensor_lr", "update_rms"),
    ),
    explains=("attention-saturated", "dead-units", "nonfinite-state", *rule.LARGE_STEPS),
    mechanism=True,
    check=check,
    on_log=rule.LogForm(("lr", "loss", "num_parameters", "optimizer_family"), check_log),
    limits=Limits(),
    sick=lambda: _run(2.0),
    healthy=lambda: _run(3e-4, updates=3),
    doc=__doc__ or "",
)
