"""Batch norm evaluates with statistics that have not caught up with the training.

## What it finds
How much of the statistics that the slowest batch norm was made with, mean 0 and variance 1, is left
in its running ones: (1 - momentum) to the power of the batches. A note before step 1 where more
than `left` will remain at the end of the planned run, or, of a run of unknown length, where its
memory is longer than `memory` batches. There it becomes a warning while evaluations have more
than `gap` times the training loss, as long as more than `left` remains.
## Why it matters
While training, a batch norm uses the statistics of the batch; in evaluation, the running ones. With
a momentum of 0.001 they are means over 1,000 updates: after 60 updates 94 % of them is still what
they were made with. The network is then evaluated, and saved, with numbers that it never trained
with: its evaluation looks like overfitting, and is cured without a single update.
## What to do
A momentum of 0.1 (torch's default; momentum there is the share of the new batch), or None for plain
means; or pass training batches through the model in train mode without updates before evaluating.
## When it is fine
Long runs: memories of 3,000 updates are usual there, and gone after 10,000. Statistics that were
loaded with the weights: they are not those of a start, and are not judged. Nor are batch norms that
are frozen, in evaluation mode or not used when the first update is made: theirs do not move at all.
## Told apart from
`bimodal-gap`: the network has learned its training data by heart; the same batch evaluated in both
modes decides, as it has one loss there and two here.
"""

from dataclasses import dataclass

import numpy as np

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.settings import count, positive
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

USUAL = 10
"""Memory of torch's default momentum, 0.1."""
MOST = 2**20
"""Batches an update beyond which a count is no such."""
ROUND = 5
"""Rows of the training loss up to an evaluation, whose median it is compared with."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: what is planned is known before step 1."""
    left: float = 1 / 16
    """Largest share of the first statistics that passes: what is normalized is then off by 3 % at
    most, where its variance is far above the 1 that it began with."""
    memory: float = 500.0
    """Longest memory that is not worth a note in a run of unknown length: heuristic, frameworks
    have defaults of 10 to 100 batches."""
    gap: float = 1.5
    """Largest evaluation loss, in training losses, that passes: heuristic."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    memory = positive(trace.facts["batchnorm_memory"])
    if memory is None or memory < 1:
        return []
    planned = count(trace.facts.get("total_steps")) or 0
    batches = count(trace.facts.get("accumulation_steps")) or 1
    kept = (1 - 1 / memory) ** min(batches, MOST)
    left = kept**planned
    if not (_matters(left, limits) if planned else memory > limits.memory):
        return []
    seen = _seen(trace, kept, limits)
    severity, steps = (Severity.WARN, seen[:2]) if seen else (Severity.NOTE, (0, 0))
    if seen is not None:
        _, step, ratio, left = seen
        said = (
            f"Evaluated at {ratio:.3g} times the training loss at step {step:,} (limit"
            f" {limits.gap:g}), when {left * 100:.2g} % of a batch norm's running statistics are"
            " those it was made with."
        )
        evidence = [
            Evidence("eval_loss", "evaluation loss over training loss", ratio, limits.gap, "times"),
            _left(left, f"at step {step:,}", limits),
        ]
    elif planned:
        said = (
            f"A batch norm averages over {memory:,.4g} batches: after the {planned:,} planned"
            f" updates {left * 100:.2g} % of its statistics will be those it was made with (limit"
            f" {limits.left * 100:.2g} %)."
        )
        evidence = [_left(left, "at the end of the planned run", limits)]
    else:
        said = (
            f"A batch norm averages over {memory:,.4g} batches (limit {limits.memory:,.4g}): before"
            " that many it evaluates with other statistics than it trains with."
        )
        what = "batches that the slowest batch norm averages over"
        evidence = [Evidence("batchnorm_memory", what, memory, limits.memory, "steps")]
    return [
        Finding(
            severity=severity,
            summary=said,
            steps=steps,
            evidence=tuple(evidence),
            treatments=(
                Treatment(
                    title=f"Set the batch norms' momentum to {1 / USUAL:g}: {USUAL} batches",
                    safety="risky",
                    basis="heuristic",
                    source="torch's default: of the first statistics 0.003 % is left after 100",
                ),
                Treatment(
                    title="Evaluate one training batch in both modes: two losses prove it",
                    when="check",
                    safety="safe",
                    basis="heuristic",
                    source="nothing but dropout differs between the two besides",
                ),
            ),
        )
    ]


def _matters(left: float, limits: Limits) -> bool:
    return left > limits.left


def _left(share: float, when: str, limits: Limits) -> Evidence:
    what = f"share of the first statistics that is left {when}"
    return Evidence("batchnorm_memory", what, share * 100, limits.left * 100, "%")


def _seen(trace: Trace, kept: float, limits: Limits) -> tuple[int, int, float, float] | None:
    """(first step, last step, ratio and share left at the last) of the evaluations that show it:
    those since the last one that did not, as long as the share is above its limit."""
    if "loss" not in trace.series or "eval_loss" not in trace.series:
        return None
    if trace.facts.get("losses_comparable") == "no":
        return None
    evaluated, trained = trace.series["eval_loss"], trace.series["loss"]
    start = trace.steps[0] - 1
    found: list[tuple[int, float, float]] = []
    for step, value in zip(evaluated.steps.tolist(), evaluated.values.tolist(), strict=True):
        until = int(np.searchsorted(trained.steps, step, side="right"))
        beside = np.asarray(trained.values[max(until - ROUND, 0) : until], np.float64)
        left = kept ** max(step - start, 0)
        if not _matters(left, limits):
            break
        if until < ROUND or not np.isfinite(beside).all() or not np.isfinite(value):
            continue
        usual = float(np.median(beside))
        if not usual > 0 or not value / usual > limits.gap:
            found.clear()
            continue
        found.append((step, value / usual, left))
    if not found:
        return None
    return found[0][0], found[-1][0], found[-1][1], found[-1][2]


def _run(memory: float) -> Trace:
    return make_trace(batchnorm_memory=memory, total_steps=1_000)


RULE = rule.Rule(
    name="batchnorm-statistics-lag",
    needs=("batchnorm_memory",),
    uses=("total_steps", "accumulation_steps", "loss", "eval_loss", "losses_comparable"),
    explains=("bimodal-gap",),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(1_000.0),
    healthy=lambda: _run(10.0),
    doc=__doc__ or "",
)
