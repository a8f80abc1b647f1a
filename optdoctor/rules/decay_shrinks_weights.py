"""Weight decay takes so much at each update that the weights forget what they learnt.

## What it finds
Two numbers at once, in `lasting` samples in a row. Learning rate times weight decay, the share of
a weight that each update takes away (with momentum of SGD over 1 minus it), is above `share`: the
weights remember fewer than 1 over that many updates. And what decay takes is more than `part` of
the measured update. The median of the decayed matrices of 64 elements or more is judged. It is
critical once the weights have shrunk to `kept` of what they were, else a warning. A share above
`noted` is a note that a symptom of the loss makes a warning. In a log, which has no weights, the
first number alone is judged, and is a warning above `share`.
## Why it matters
In balance, decay takes as much as gradients add. A memory of 30 updates holds 30 batches: the
network forgets faster than it can learn, its weights shrink towards 0, and the loss stops early.
## What to do
Choose the decay from the memory that it leaves: with a decay such that rate times decay is a
thousandth, weights remember a thousand updates. Common recipes have 0.01 to 0.1 for AdamW.
## When it is fine
Networks whose norms undo the size of their weights settle at a balance of decay and gradients; in
those the share that decay takes is as large, and the memory is thousands of updates. Optimizers
that add the decay to a gradient which they rescale (Adam, RMSprop) do not take that share.
## Told apart from
`step-too-large`: shrunk weights make ordinary updates large beside them; that comes later.
"""

from dataclasses import dataclass, replace

import numpy as np

from optdoctor import rule
from optdoctor.curves.rows import lookup, spans
from optdoctor.curves.step_sizes import Floats, StepSizes, step_sizes
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

RESCALED = frozenset(
    {"Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "Rprop", "Adam8bit"}
)
"""Classes that add the decay to a gradient which they rescale, as they are used by default."""
DECOUPLED = frozenset(
    {
        "adam",
        "adam_mini",
        "adan",
        "ademamix",
        "came",
        "galore",
        "lion",
        "muon",
        "nadam",
        "radam",
        "sgd",
        "soap",
        "sophia",
        "stable_adamw",
    }
)
"""Families in which rate times decay is the share that an update takes, or, of SGD, that it adds
up to with the momentum."""
LARGEST = 1e9
"""Decay above which a log is damaged."""
MEMORY = 1000
"""Updates that weights remember with the decay that is proposed."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 3
    """As many samples as it must last."""
    share: float = 0.03
    """Largest share of a weight that decay may take at one update: a memory of 33 updates. Healthy
    runs elsewhere had 0.02 at most: heuristic; 41 here 0.003."""
    noted: float = 0.01
    """Largest share that is not worth a note: a memory of 100 updates. Heuristic: two small
    language models with AdamW ended 1 % better to 5 % worse at it than without decay, and 2 to 6 %
    worse at 0.02."""
    part: float = 0.3
    """Largest part of the measured update that decay may be: heuristic. Healthy runs with norms
    exceed it, with a memory of thousands of updates."""
    lasting: int = 3
    """Fewest samples in a row with both."""
    kept: float = 0.85
    """Norm of the weights, in parts of its first, below which they have shrunk: heuristic."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    decay = _decay(trace)
    if isinstance(decay, Abstain):
        return decay
    sizes = step_sizes(trace)
    if not decay or not sizes.steps.size:
        return []
    rates = lookup(trace.series["lr"], sizes.steps)  # [T]
    taken = rates * decay * _longer(trace)
    share = _part_of_update(trace, sizes, taken)
    stretches, limit = _stretches(taken, share, limits.share, limits), limits.share
    if not stretches:
        stretches, limit = _stretches(taken, share, limits.noted, limits), limits.noted
    if not stretches:
        return []
    first, last = stretches[0][0], stretches[-1][1]
    inside = np.concatenate([np.arange(a, b + 1) for a, b in stretches])
    largest, middle = float(taken[inside].max()), float(np.median(share[inside]))
    kept = float(sizes.size[last] / sizes.size[0])
    severity = Severity.CRITICAL if kept < limits.kept else Severity.WARN
    is_note = limit < limits.share
    return [
        Finding(
            severity=Severity.NOTE if is_note else severity,
            awaits_symptom=is_note,
            summary=_summary(largest, limit),
            steps=(int(sizes.steps[first]), int(sizes.steps[last])),
            evidence=(
                _taken(trace, largest, limit),
                Evidence(
                    "update_rms",
                    f"what decay takes over the measured update, median of {len(inside)} samples",
                    middle,
                    limits.part,
                    "times",
                ),
                Evidence(
                    "param_rms",
                    f"norm of the weights at step {sizes.steps[last]} over the first one",
                    kept,
                    limits.kept,
                    "times",
                ),
            ),
            treatments=_treatments(trace, decay, largest),
        )
    ]


def check_log(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    """By rate and decay alone: a memory so short is a warning whatever the weights do, and no
    proof that they have shrunk."""
    decay = _decay(trace)
    if isinstance(decay, Abstain):
        return decay
    rates = trace.series["lr"]
    taken = np.asarray(rates.values, np.float64) * decay * _longer(trace)
    stretches = [(a, b) for a, b in spans(taken > limits.share) if b - a + 1 >= limits.lasting]
    if not stretches:
        return []
    first, last = stretches[0][0], stretches[-1][1]
    largest = float(taken[first : last + 1].max())
    if not np.isfinite(largest):
        return []
    return [
        Finding(
            severity=Severity.WARN,
            summary=_summary(largest, limits.share),
            steps=(int(rates.steps[first]), int(rates.steps[last])),
            evidence=(_taken(trace, largest, limits.share),),
            treatments=_treatments(trace, decay, largest),
        )
    ]


def _decay(trace: Trace) -> float | Abstain:
    """The decay, where rate times it is the share that an update takes; 0 if there is none."""
    decay, family = trace.facts["weight_decay"], trace.facts["optimizer_family"]
    name = str(trace.facts.get("optimizer") or "")
    if not isinstance(decay, int | float) or isinstance(decay, bool) or not 0 < decay < LARGEST:
        return 0.0
    if family not in DECOUPLED:
        return Abstain(f"what decay takes at an update is not known of {family}")
    if name in RESCALED:
        return Abstain(f"{name} adds the decay to a gradient that it rescales")
    return float(decay)


def _stretches(taken: Floats, part: Floats, share: float, limits: Limits) -> list[tuple[int, int]]:
    """The first and last sample of each run of enough of them in which decay takes so much."""
    ill = (taken > share) & (part > limits.part)
    return [(a, b) for a, b in spans(ill) if b - a + 1 >= limits.lasting]


def _summary(largest: float, limit: float) -> str:
    return (
        f"Weight decay takes up to {100 * largest:.3g} % of the weights at each update"
        f" (limit {100 * limit:.3g} %): they remember {max(1 / largest, 1):.0f}"
        f" update{'s'[: largest < 1]}."
    )


def _taken(trace: Trace, largest: float, limit: float) -> Evidence:
    over = " over 1 minus momentum" * (_longer(trace) != 1)
    what = f"largest learning rate times weight decay{over}"
    return Evidence("lr", what, 100 * largest, 100 * limit, "%")


def _longer(trace: Trace) -> float:
    """By how much the momentum of SGD prolongs what one gradient, and its decay, does."""
    momentum = trace.facts.get("momentum")
    if trace.facts["optimizer_family"] != "sgd" or not isinstance(momentum, int | float):
        return 1.0
    return 1 / (1 - momentum) if 0 < momentum < 1 else 1.0


def _part_of_update(trace: Trace, sizes: StepSizes, taken: Floats) -> Floats:
    """[T]: what decay takes over the measured update, the median of the decayed tensors."""
    decayed = np.array([t.weight_decay > 0 for t in trace.tensors], bool)
    among = decayed if decayed.any() else np.ones(len(trace.tensors), bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = taken[:, None] * sizes.weight / sizes.update
    parts[~(np.isfinite(parts) & among)] = np.nan
    known = np.isfinite(parts).any(axis=1)
    middle = np.full(len(parts), np.nan)
    middle[known] = np.nanmedian(parts[known], axis=1)
    return middle


def _treatments(trace: Trace, decay: float, largest: float) -> tuple[Treatment, ...]:
    new = float(f"{decay / (largest * MEMORY):.1g}")
    return (
        Treatment(
            title=f"Restart with a weight decay that leaves a memory of {MEMORY:,} updates",
            changes={"weight_decay": (decay, new)} if 0 < new != decay else {},
            when="next",
            safety="risky",
            basis="heuristic",
            source="1 over rate times decay is the number of updates that weights remember",
        ),
    )


def _run(decay: float) -> Trace:
    """Forty samples at a constant rate; in all but the first ten decay has its way."""
    tensors = tuple(replace(t, weight_decay=decay) for t in small_gpt())
    rates = np.full(40, 1e-3)
    rates[:10] = 1e-5
    weights = np.full(40, 0.1)
    weights[10:] = 0.1 * np.maximum((1 - 1e-3 * decay) ** np.arange(30), 0.1)
    updates = np.maximum(rates * 0.5, rates * decay * weights)
    return make_trace(
        optimizer="AdamW",
        optimizer_family="adam",
        weight_decay=decay,
        lr=rates,
        param_rms=np.repeat(weights[:, None], len(tensors), axis=1),
        update_rms=np.repeat(updates[:, None], len(tensors), axis=1),
        tensors=tensors,
    )


RULE = rule.Rule(
    name="decay-shrinks-weights",
    needs=("weight_decay", "optimizer_family", "lr", "param_rms", "update_rms"),
    uses=("optimizer", "momentum"),
    explains=("early-plateau", "step-too-large", "upward-drift"),
    mechanism=True,
    check=check,
    on_log=rule.LogForm(("weight_decay", "optimizer", "optimizer_family", "lr"), check_log),
    limits=Limits(),
    sick=lambda: _run(60.0),
    healthy=lambda: _run(0.1),
    doc=__doc__ or "",
)
