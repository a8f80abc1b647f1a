"""Traces of a loss that rises, made to a figure: for the tests of the rules that judge rises."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from optdoctor.curves.level import Curve, curve
from optdoctor.curves.rise import Rise, rise_of
from optdoctor.engine import examine
from optdoctor.findings import Finding, Status
from optdoctor.rule import Rule
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

Floats = NDArray[np.float64]
Pair = tuple[Callable[[], Trace], Callable[[], Trace]]


def blocks(levels: ArrayLike, swing: float = 1e-3, rows: int = 10) -> Trace:
    """40 blocks of these levels (a first loss of 1 has log 1.05), each up or down by `swing`."""
    up_and_down = swing * (-1.0) ** np.arange(len(np.asarray(levels)))
    up_and_down[:3] = 0
    loss = np.exp(np.asarray(levels) + up_and_down) - 0.05
    return make_trace(loss=np.repeat(loss, rows))


def course(rise: float, *, ramp: float = 0.0, low: float = -1.0, at: int = 12) -> Floats:
    """[40]: down to `low` in `at` blocks, then up by `rise`, the share `ramp` of it slowly."""
    later = 40 - at - 3
    up = (1 - ramp) + ramp * np.linspace(0, 1, later)
    return np.concatenate(
        (np.linspace(np.log(1.05), low, at), np.full(3, low), low + rise * np.asarray(up))
    )


def climb(rise: float, share: float) -> Floats:
    """[40]: down for 16 blocks, then up by `rise` in a straight line over `share` of the run."""
    levels = np.full(40, -1.0)
    levels[:13] = np.linspace(np.log(1.05), -1, 13)
    levels[16:] += rise * np.minimum(np.arange(1, 25) / (40 * share), 1)
    return levels


def coming_back(rise: float, end: float) -> Floats:
    """[40]: up by `rise` for ten blocks, then back to `end` above the best."""
    levels = course(rise)
    levels[25:] = -1.0 + end
    return levels


def exploded(up: float) -> Trace:
    """Two first losses of 1, and all later ones at one level above it."""
    levels = np.log(1.05) + up + 1e-3 * (-1.0) ** np.arange(40)
    loss = np.repeat(np.exp(levels) - 0.05, 10)
    loss[:2] = 1.0
    return make_trace(loss=loss)


def ending(factor: float, rows: int = 5, length: int = 400, noise: float = 0.02) -> Floats:
    """[length]: the last rows are `factor` times as high."""
    loss = falling_loss(length, noise=noise)
    loss[-rows:] *= factor
    return loss


def filling(rows: int = 400, share: float = 0.98) -> Floats:
    """[rows]: a moving average, from 0 on, of a loss that falls from 8 to 2.5."""
    mean, loss = 0.0, np.empty(rows)
    for i, value in enumerate(2 + 6 * np.arange(1, rows + 1) ** -0.4):
        mean = share * mean + (1 - share) * value
        loss[i] = mean
    return loss


def noisy(ramp: float, at: int, rise: float) -> Callable[[float], Trace]:
    """Traces of a rise with ever less noise."""
    return lambda calm: blocks(course(rise, ramp=ramp, at=at), swing=0.05 / max(calm, 1e-3))


def rising(rise: float = 0.25, rows: int = 400, seed: int = 0) -> Floats:
    """[rows]: falls for half the run, then creeps up by `rise` on a log scale."""
    loss = falling_loss(rows, seed=seed)
    loss[rows // 2 :] *= np.exp(np.linspace(0, rise, rows - rows // 2))
    return loss


def jumping(factor: float, at: int = 250, rows: int = 400, seed: int = 0) -> Floats:
    """[rows]: `factor` times as high from row `at` on."""
    loss = falling_loss(rows, seed=seed)
    loss[at:] *= factor
    return loss


def with_evaluation(trace: Trace, factor: float) -> Trace:
    """Twenty evaluations, which change by the factor over the later half of the 400 steps."""
    at = np.arange(20, 401, 20)
    evaluation = np.where(at <= 200, 2.4, 2.4 * factor ** ((at - 200) / 200))
    loss = trace.series["loss"].values
    return make_trace(loss=loss, eval_loss=evaluation, steps={"eval_loss": at})


def with_gradient(trace: Trace) -> Trace:
    """The same loss beside a gradient norm that grows 4 times in 50 rows, or in an eighth of few.

    Gradients that grow with the loss say that the rise is the model's own.
    """
    loss = trace.series["loss"].values
    return make_trace(loss=loss, grad_norm=4.0 ** (np.arange(loss.size) / min(50, loss.size / 8)))


def line_of(trace: Trace) -> Curve:
    """The loss as a curve."""
    line = curve(trace.series["loss"])
    assert line is not None
    return line


def figure(trace: Trace, of: Callable[[Curve], Rise | None] = rise_of) -> Rise:
    """The rise of the loss."""
    rise = of(line_of(trace))
    assert rise is not None
    return rise


def where(
    name: str,
    value: float,
    make: Callable[[float], Trace],
    high: float,
    of: Callable[[Curve], Rise | None] = rise_of,
) -> Trace:
    """The trace of a rising family of them whose figure is exactly `value`."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        found = getattr(figure(make(middle), of), name)
        if found == value:
            return make(middle)
        low, high = (middle, high) if found < value else (low, middle)
    raise AssertionError(f"no trace with {name} {value}")


def pair(
    name: str,
    limit: float,
    make: Callable[[float], Trace],
    high: float,
    step: float = 0.001,
    of: Callable[[Curve], Rise | None] = rise_of,
) -> Pair:
    """Two neighbours, one of which has the figure at the limit, and one a step beyond."""
    within = lambda: where(name, limit, make, high, of)  # noqa: E731 (two of a kind)
    return within, lambda: where(name, round(limit + step, 3), make, high, of)


def only_finding(rule: Rule, trace: Trace) -> Finding:
    """What the rule finds."""
    outcome = examine(rule, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def told(finding: Finding, part: str) -> float:
    """The number of the only evidence whose text holds `part`."""
    (evidence,) = (e for e in finding.evidence if part in e.what)
    return evidence.observed


def clear(rule: Rule, trace: Trace) -> bool:
    """Whether the rule looked and found nothing."""
    outcome = examine(rule, trace)
    assert outcome.status in (Status.CLEAR, Status.FOUND), outcome.reason
    return outcome.status is Status.CLEAR


def silent(rule: Rule, trace: Trace) -> bool:
    """The same, or that it abstained."""
    return examine(rule, trace).status in (Status.CLEAR, Status.ABSTAINED)
