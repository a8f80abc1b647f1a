"""One layer learns at a far other rate than the rest of the network.

## What it finds
Weights whose group's learning rate is more than `rate_factor` times the most common one, or whose
update, relative to their own size, is more than `update_factor` times that of the run's median
tensor, or less than one part of it, in each of the last `lasting` samples. Always a note: layers of
healthy networks differ, and such a layer has not been shown to do harm here.
## Why it matters
A layer that moves much faster than those around it is a moving target for them; one that hardly
moves is a layer that is paid for and not used. Both come from a group that was given another rate,
or from weights much larger or smaller than the others'.
## What to do
Check that the rate was meant. If not, try the layer at half its rate, or at twice where it lags; a
factor beyond 2 is never proposed, because what a layer needs does not follow from these ratios.
## When it is fine
Rates that were set by layer on purpose: a new head on a pretrained network, decay by depth, scaling
by width. Norms, biases, embeddings, heads and adapters are not judged, nor are weights that began
near zero and have grown since, nor small tensors. The gradient norm of attention over that of the
other blocks is not judged at all: it differs in healthy networks.
## Told apart from
`second-moment-underflow` and `update-lost-to-rounding`: a layer whose updates are wrong or lost,
whatever its rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.store import Series
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

UNJUDGED = frozenset({"norm", "bias", "embedding", "head", "adapter"})
"""Kinds that healthy recipes give another rate, or that begin at zero."""
FAMILIAR = frozenset({"attention", "mlp", "conv", "recurrent"})
"""Kinds whose updates are compared: of others it is not known whether they are a head."""
SMALL = 64
"""Elements below which a tensor is not judged: its size is no statistic."""
FEW = 4
"""Tensors below which a median of them says nothing."""
GROWN = 2.0
"""Growth of the weights since the first sample beyond which they began near zero."""
STEP = 2.0
"""Factor of the rate that is proposed, and the largest that ever is."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 16
    """As many samples as it must last."""
    rate_factor: float = 5.0
    """Largest rate of a group, in most common rates, that passes: heuristic."""
    update_factor: float = 32.0
    """Largest ratio between a tensor's relative update and the median one that passes: heuristic,
    because layers of healthy networks differ by large factors too."""
    lasting: int = 16
    """Fewest samples in a row, the newest included, that it lasts."""


class _Odd(NamedTuple):
    """Tensors that stand out in one channel."""

    channel: str
    tensors: NDArray[np.int64]  # worst first
    ratio: float
    """Of the worst, over the common value, in the newest sample."""
    since: int
    until: int


def check(trace: Trace, limits: Limits) -> list[Finding]:
    kinds = np.array([t.kind for t in trace.tensors], object)
    large = np.array([len(t.shape) > 1 and t.num_elements >= SMALL for t in trace.tensors], bool)
    judged = large & np.array([t.in_optimizer and t.trainable for t in trace.tensors], bool)
    found = []
    if "tensor_lr" in trace.series:
        rates = trace.series["tensor_lr"]
        usual = _most_common(np.asarray(rates.values, np.float64), trace.num_elements)
        among = judged & ~np.isin(kinds, list(UNJUDGED))
        found += _odd("tensor_lr", rates, usual, among, (0.0, limits.rate_factor), limits)
    if "update_ratio" in trace.series:
        updates = trace.series["update_ratio"]
        among = judged & np.isin(kinds, list(FAMILIAR)) & ~_began_small(trace)
        values = np.where(among, np.asarray(updates.values, np.float64), np.nan)
        counted = np.isfinite(values).sum(axis=1)
        usual = np.full(len(values), np.nan)
        enough = counted >= FEW
        usual[enough] = np.nanmedian(values[enough], axis=1)
        band = (1 / limits.update_factor, limits.update_factor)
        found += _odd("update_ratio", updates, usual, among, band, limits)
    if not found:
        return []
    first = found[0]
    names = tuple(dict.fromkeys(trace.tensors[i].name for odd in found for i in odd.tensors))
    what = {
        "tensor_lr": "the learning rate of {}, in most common rates",
        "update_ratio": "update over weight of {}, in medians of the layers",
    }
    evidence = tuple(
        Evidence(
            odd.channel,
            what[odd.channel].format(trace.tensors[odd.tensors[0]].name),
            odd.ratio,
            _limit(odd, limits),
            "times",
        )
        for odd in found
    )
    verb = "learns" if len(names) == 1 else "learn"
    said = {
        "tensor_lr": f"at {first.ratio:.3g} times the most common rate",
        "update_ratio": f"{first.ratio:.3g} times as fast as the median layer",
    }[first.channel]
    return [
        Finding(
            severity=Severity.NOTE,
            summary=(
                f"{len(names)} of {judged.sum()} weights {verb} {said}"
                f" (limit {_limit(first, limits):.3g})."
            ),
            steps=(min(odd.since for odd in found), max(odd.until for odd in found)),
            tensors=names,
            evidence=evidence,
            treatments=_treatments(first, trace, judged),
        )
    ]


def _limit(odd: _Odd, limits: Limits) -> float:
    if odd.channel == "tensor_lr":
        return limits.rate_factor
    return limits.update_factor if odd.ratio > 1 else 1 / limits.update_factor


def _most_common(rates: Floats, num_elements: NDArray[np.int64]) -> Floats:
    """[T]: the rate of the most elements at each sample; NaN where none is positive."""
    usual = np.full(len(rates), np.nan)
    for row, values in enumerate(rates):
        known = np.isfinite(values) & (values > 0)
        if known.any():
            distinct, which = np.unique(values[known], return_inverse=True)
            weight = np.bincount(which, weights=num_elements[known])
            usual[row] = distinct[weight.argmax()]
    return usual


def _began_small(trace: Trace) -> NDArray[np.bool_]:
    """[P]: weights that have grown severalfold since they were first measured."""
    grown = np.zeros(len(trace.tensors), bool)
    if "param_rms" not in trace.series:
        return grown
    values = np.asarray(trace.series["param_rms"].values, np.float64)
    for i, column in enumerate(values.T):
        known = column[np.isfinite(column)]
        grown[i] = bool(known.size) and bool(known[-1] > GROWN * known[0])
    return grown


def _odd(
    channel: str,
    series: Series,
    usual: Floats,
    among: NDArray[np.bool_],
    band: tuple[float, float],
    limits: Limits,
) -> list[_Odd]:
    """The tensors whose ratio to the usual value has left the band, in all of the last samples.

    All on the side of the worst. A ratio of 0 is no rate: the tensor is frozen.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.asarray(series.values, np.float64) / usual[:, None]  # [T, P]
    ratios[~(np.isfinite(ratios) & (ratios > 0))] = np.nan
    since: dict[int, int] = {}
    newest: dict[int, float] = {}
    for i in np.flatnonzero(among):
        rows = np.flatnonzero(np.isfinite(ratios[:, i]))
        own = ratios[rows, i]
        high = bool(own.size) and own[-1] > 1
        outside = own > band[1] if high else own < band[0]
        inside = np.flatnonzero(~outside)
        stretch = rows[inside[-1] + 1 :] if inside.size else rows
        if len(stretch) >= limits.lasting:
            since[int(i)], newest[int(i)] = int(series.steps[stretch[0]]), float(own[-1])
    if not since:
        return []
    worst = max(newest, key=lambda i: abs(np.log(newest[i])))
    side = [i for i in newest if (newest[i] > 1) == (newest[worst] > 1)]
    side.sort(key=lambda i: (-abs(np.log(newest[i])), i))
    first = min(since[i] for i in side)
    chosen = np.array(side, np.int64)
    return [_Odd(channel, chosen, newest[worst], first, int(series.steps[-1]))]


def _treatments(odd: _Odd, trace: Trace, judged: NDArray[np.bool_]) -> tuple[Treatment, ...]:
    names = [trace.tensors[i].name for i in odd.tensors]
    others = [trace.tensors[i].name for i in np.flatnonzero(judged) if i not in odd.tensors]
    part = _part(names, others)
    meant = Treatment(
        title=f"Check that {part or names[0]} was meant to learn at another rate than the rest",
        when="check",
        safety="manual",
        basis="heuristic",
        source="a group of its own in the optimizer is somebody's decision",
    )
    if not part or "tensor_lr" not in trace.series:
        return (meant,)
    column = np.asarray(trace.series["tensor_lr"].values, np.float64)[:, odd.tensors[0]]
    known = column[np.isfinite(column) & (column > 0)]
    if not known.size:
        return (meant,)
    peak = float(f"{known.max():.6g}")  # float32: 0.001 is not 0.0010000000474974513
    new = float(f"{peak / STEP if odd.ratio > 1 else peak * STEP:.6g}")
    scaled = Treatment(
        title=f"Try {part} at {'half' if odd.ratio > 1 else 'twice'} its rate, {peak:g} to {new:g}",
        changes={f"tensor_lr:{part}": (peak, new)},
        when="next",
        safety="risky",
        basis="heuristic",
        source="a factor of 2 bounds what a wrong guess costs",
    )
    return meant, scaled


def _part(names: Sequence[str], others: Sequence[str]) -> str:
    """The shortest run of name parts that all `names` have and none of `others`; "" if none."""
    words = names[0].split(".")
    for length in range(1, len(words) + 1):
        for start in range(len(words) - length + 1):
            part = ".".join(words[start : start + length])
            if all(f".{part}." in f".{name}." for name in names) and not any(
                f".{part}." in f".{name}." for name in others
            ):
                return part
    return ""


def _run(factor: float) -> Trace:
    """Twenty samples in which all layers learn alike, and twenty in which one does not."""
    tensors = tuple(
        replace(
            t, kind="attention" if ".attn." in t.name else "mlp" if ".mlp." in t.name else "norm"
        )
        for t in small_gpt()
    )
    rates = np.full((40, len(tensors)), 1e-3)
    updates = rates.copy()
    odd = [i for i, t in enumerate(tensors) if t.name.startswith("h.1.attn.")]
    rates[20:, odd] *= factor
    updates[20:, odd] *= factor**2
    return make_trace(tensor_lr=rates, update_ratio=updates, tensors=tensors)


RULE = rule.Rule(
    name="layer-learning-rate-mismatch",
    needs=("tensor_lr|update_ratio",),
    uses=("param_rms",),
    check=check,
    limits=Limits(),
    sick=lambda: _run(20.0),
    healthy=lambda: _run(1.0),
    doc=__doc__ or "",
)
