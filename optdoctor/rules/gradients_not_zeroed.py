"""Gradients are not set to zero between updates.

## What it finds
More than `passing` updates in a row whose backward passes found the gradient of the update before
still in place: the same tensor, written to by nobody since, of the same size and not 0. Watched in
one small tensor at every update, by identity, number of writes and sum of absolute values, so that
it is a fact and no estimate. It is critical with SGD where nothing has been set to zero since,
else a warning. Of a log it is an estimate, and a warning: a gradient norm that grows more than 8
times above all it was and is as smooth as a sum, while the loss comes back from where it was, by
less than the root of that.
## Why it matters
Backward passes add to what is there. Every update then follows the sum of all gradients since the
last time that they were set to zero, as with a momentum of 1 that forgets nothing: the weights
overshoot, come back and overshoot again, further each time. Adam divides by the growing size of the
sum, which hides the growth and not the direction, which is old.
## What to do
Call `optimizer.zero_grad()` once for each update, before its first backward pass or after its
step. With accumulation that is once for all micro-batches of an update, not for each.
## When it is fine
Within one update gradients are meant to add up, over micro-batches or over several losses; only
what is left from the update before counts here, and is there whole: a loop that shrinks it after
its step, as a momentum of gradients, means to keep it. A loop that assigns its gradients, or an
optimizer that keeps them in a buffer of its own, is not judged: no backward pass adds to the tensor
then. Layers that begin at zero have gradients that grow as smoothly as a sum, while the loss stands
or falls: of such a log nothing is said.
## Told apart from
`momentum-too-long`: the optimizer remembers long because its settings say so.
`accumulation-not-normalised`: sums that are meant, and larger than the rate was chosen for.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.rows import spans
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import NOT_FALLING
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

UNDAMPED = frozenset({"asgd", "sgd"})
"""Families whose step is as long as the gradient, and grows with its sum."""


GROWN = 8.0
"""Growth of the gradient norm of a log, from what it was to its end, beyond which it may be a sum:
heuristic; a loop that forgets for the last half of 220 updates reached 23 to 49."""
NOISE = 0.2
"""Largest median of the second differences of its logarithm then, from row to row: heuristic. Where
batches scatter by 20 % it is 0.33; such sums had 0.05 and less."""
PART = 0.2
"""Largest such difference as a part of the loss's own, where the loss has grown as well: batches
that make losses scatter make gradients scatter: heuristic."""
SMOOTH_ROWS = 4
"""Fewest rows of a log before and within a stretch of sums."""
LEVEL = 3
"""Rows whose median is the norm at the end."""
BACK = 0.05
"""Least height by which three of four of the newest losses lie above three of four of an earlier
stretch, as a share of them: heuristic. Four such runs of small models had 14 to 98 %."""
STRETCHES = 10
"""Stretches of a log whose losses are compared with the last, as long as they have enough rows."""
_TREATMENTS = (
    Treatment(
        title="Call optimizer.zero_grad() once for each update, before its first backward pass",
        safety="manual",
        basis="literature",
        source="torch documentation of Optimizer.zero_grad: gradients add up",
    ),
)


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 8
    """As many updates as it must last."""
    passing: int = 7
    """Most updates in a row that pass: a loop that sets gradients to zero at all does so within a
    few updates. It is chosen, not measured."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    kept = trace.series["gradients_kept"]
    whole = (kept.low == 1) & (kept.high == 1) & (kept.bad == 0)  # all updates of a bucket
    several = [(a, b, int(kept.count[a : b + 1].sum())) for a, b in spans(whole)]
    several = [(a, b, number) for a, b, number in several if number > limits.passing]
    if not several:
        return []
    first, last = int(kept.starts[several[0][0]]), int(kept.steps[several[-1][1]])
    begin, end, longest = max(several, key=lambda stretch: (stretch[2], stretch[0]))
    to_the_end = end == kept.steps.size - 1
    since = int(kept.starts[begin])
    if to_the_end:
        when, reach = f"From step {since} to {last}", "all gradients since then"
    else:
        # Of a thinned row nobody knows how many updates at its edge belong to the stretch.
        least = "at least " if (kept.count > 1).any() else "up to "
        more = f"{len(several)} times from step" if len(several) > 1 else "From step"
        when, reach = f"{more} {first} to {last}", f"its own and {least}{longest} before it"
    is_grave = to_the_end and trace.facts.get("optimizer_family") in UNDAMPED
    return [
        Finding(
            severity=Severity.CRITICAL if is_grave else Severity.WARN,
            summary=(
                f"{when} gradients were not set to zero in {longest} updates"
                f" in a row (limit {limits.passing}): each follows the sum of {reach}."
            ),
            steps=(first, last),
            evidence=(
                Evidence(
                    "gradients_kept",
                    "updates in a row that began with the gradient of the one before",
                    float(longest),
                    float(limits.passing),
                    "updates",
                ),
            ),
            treatments=_TREATMENTS,
        )
    ]


def check_log(trace: Trace, limits: Limits) -> list[Finding]:
    """By a gradient norm that grows a long way and loses its noise, as a sum of all gradients does:
    one more batch changes it little. The loss has to have come back from where it was, as behind
    updates that overshoot, and must not have grown with the norm."""
    norms = trace.series["grad_norm"]
    kept = np.isfinite(norms.values) & (norms.values > 0)
    steps, logs = norms.steps[kept], np.log(np.asarray(norms.values[kept], np.float64))
    if trace.facts.get("loss_kind") in NOT_FALLING or logs.size < 2 * SMOOTH_ROWS:
        return []
    late = _sum_since(logs)
    if late is None:
        return []
    usual, end = float(np.median(logs[:late])), float(np.median(logs[-LEVEL:]))
    noise = _scatter(logs[late:])
    since = int(steps[late])
    if not _comes_back(trace) or _loss_grows(trace, since, (end - usual) / 2, noise):
        return []
    first, last = int(steps[late]), int(steps[-1])
    return [
        Finding(
            severity=Severity.WARN,
            summary=(
                f"Gradients seem not to be set to zero: from step {first} to {last} their norm"
                f" grows {np.exp(end - usual):.3g} times (limit {GROWN:g}) and loses its noise, as"
                " a sum of all gradients does, and the loss is above where it was."
            ),
            steps=(first, last),
            evidence=(
                Evidence(
                    "grad_norm",
                    "norm of the newest rows over that before",
                    float(np.exp(end - usual)),
                    GROWN,
                    "times",
                ),
                Evidence(
                    "grad_norm",
                    "second difference of its logarithm since, median",
                    noise,
                    NOISE,
                    "1",
                ),
            ),
            treatments=_TREATMENTS,
        )
    ]


def _comes_back(trace: Trace) -> bool:
    """Whether the newest losses lie above those of an earlier stretch."""
    losses = np.asarray(trace.series["loss"].values, np.float64)
    if losses.size < 2 * SMOOTH_ROWS:
        return False
    rows = max(SMOOTH_ROWS, losses.size // STRETCHES)
    stretches = losses[losses.size % rows :].reshape(-1, rows)
    newest = np.percentile(stretches[-1], 25)
    earlier = np.percentile(stretches[:-1], 75, axis=1)
    return bool((newest - earlier > BACK * abs(newest)).any())


def _loss_grows(trace: Trace, since: int, most: float, noise: float) -> bool:
    """Whether the loss is not finite, or has grown by more than `most` in its logarithm and is
    nearly as smooth: then both explode, and nothing is known of a sum."""
    loss = trace.series["loss"]
    values, late = np.asarray(loss.values, np.float64), loss.steps >= since
    before, after = values[~late & np.isfinite(values)], values[late]
    if not np.isfinite(after).all() or not before.size or not after.size or values[late].min() <= 0:
        return True
    grown = float(np.log(np.median(after))) - float(np.log(max(np.median(before), 1e-300)))
    return grown > most and noise > PART * _scatter(np.log(after))


def _scatter(logs: NDArray[np.float64]) -> float:
    """What is left of a curve without its level and slope, median of the second differences: over
    all of it or its later half, whichever is smoother."""
    late = logs[min(logs.size // 2, logs.size - SMOOTH_ROWS) :]
    return min(float(np.median(np.abs(np.diff(part, 2)))) for part in (logs, late))


def _sum_since(logs: NDArray[np.float64]) -> int | None:
    """The row from which on the norm is above all that it was, if it then grows far and smoothly;
    None where it does not."""
    for row in range(SMOOTH_ROWS, logs.size - SMOOTH_ROWS + 1):
        if logs[row:].min() <= logs[:row].max():
            continue
        grown = float(np.median(logs[-LEVEL:])) - float(np.median(logs[:row]))
        return row if grown > np.log(GROWN) and _scatter(logs[row:]) < NOISE else None
    return None


def _run(forgets: bool) -> Trace:
    """100 updates of SGD, of which the last 60 forget to set gradients to zero, or do not."""
    kept = np.where(np.arange(99) < 39, 0.0, float(forgets))
    return make_trace(
        gradients_kept=kept,
        loss=falling_loss(100),
        optimizer_family="sgd",
        steps={"gradients_kept": np.arange(2, 101)},
    )


RULE = rule.Rule(
    name="gradients-not-zeroed",
    needs=("gradients_kept",),
    uses=("loss_kind", "optimizer_family"),
    explains=("dead-units", "decay-shrinks-weights", "staircase-oscillation", *rule.LARGE_STEPS),
    mechanism=True,
    check=check,
    on_log=rule.LogForm(("grad_norm", "loss"), check_log),
    limits=Limits(),
    sick=lambda: _run(forgets=True),
    healthy=lambda: _run(forgets=False),
    doc=__doc__ or "",
)
