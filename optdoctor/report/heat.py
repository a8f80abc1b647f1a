"""A heat map of one tensor channel: tensors in order of depth, samples by step, one hue."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor.channels import Axis, channel
from optdoctor.findings import Evidence, Finding
from optdoctor.report.curve import LOG_RATIO
from optdoctor.store import Series
from optdoctor.trace import TensorInfo, Trace

CLASSES = 8
"""Steps of the hue; the last one lies beyond the limit."""
COLUMNS = 240
"""Columns of the map; of several samples in one the worst counts."""
FEW = 12
"""Samples up to which each has a column of its own, as wide as the others."""
_REACH = 3  # usual distances between samples over which a sample's colour lasts
_SEEN = 3  # columns that a sample beyond the limit takes at least
_DECADES = 7  # of the scale below the limit


@dataclass(frozen=True, slots=True)
class Scale:
    """Edges between the classes, from harmless to grave."""

    edges: tuple[float, ...]
    """Of classes 1 to 7; of the last alone where the limit is 0."""
    limit: float | None
    above: bool
    unit: str

    def classes(self, values: NDArray[np.float64]) -> NDArray[np.int8]:
        """The class of each value; -1 for what was not measured."""
        towards = values if self.above else -values
        edges = np.array(self.edges) if self.above else -np.array(self.edges)
        # Beyond the limit means past it, not on it.
        found = np.searchsorted(edges, towards, side="left")
        if len(edges) == 1:
            found *= CLASSES - 1
        return np.where(np.isnan(values), -1, found).astype(np.int8)


@dataclass(frozen=True, slots=True)
class Map:
    """One channel of the tensors that have it, in order of depth."""

    channel: str
    scale: Scale
    tensors: tuple[TensorInfo, ...]  # [R]
    cells: NDArray[np.int8]  # [R, COLUMNS] classes, -1 where nothing was measured
    worst: NDArray[np.float64]  # [R] furthest towards the limit over the whole run
    beyond: NDArray[np.float64]  # [R] share of samples beyond the limit
    at_onset: NDArray[np.float64]  # [R] value at the finding's first sample
    worst_step: NDArray[np.int64]  # [R], NO_STEP where unknown
    samples: int
    onset: int
    sick: frozenset[str]
    """Names of the tensors that the finding holds."""
    columns: tuple[int, ...] = ()
    """The steps of the columns where each sample has its own; empty where x is the step."""


def heat_map(findings: Sequence[Finding], trace: Trace) -> tuple[int, Map] | None:
    """(position, map) of the first finding that cites a measured tensor channel, if one does."""
    for position, finding in enumerate(findings):
        cited = [e for e in finding.evidence if _is_measured(e, trace) and e.observed != e.limit]
        # A number in the channel's own unit brings the limit with it.
        cited.sort(key=lambda e: not _comparable(e))
        if cited:
            return position, _map(cited[0], finding, trace)
    return None


def _is_measured(evidence: Evidence, trace: Trace) -> bool:
    series = trace.series.get(evidence.channel)
    if channel(evidence.channel).unit == "step":  # a date has no colour
        return False
    return series is not None and series.values.ndim == 2 and series.values.size > 0


def _comparable(evidence: Evidence) -> bool:
    known = channel(evidence.channel)
    return known.axis is Axis.TENSOR and evidence.unit in (known.unit, "%")


def _map(evidence: Evidence, finding: Finding, trace: Trace) -> Map:
    series = trace.series[evidence.channel]
    values = np.asarray(series.values, np.float64)
    measured = np.flatnonzero(~np.isnan(values).all(axis=0))
    order = sorted(measured.tolist(), key=lambda i: (trace.tensors[i].order, i))
    values = values[:, order]
    limit = None
    if _comparable(evidence):
        in_percent = evidence.unit == "%" and channel(evidence.channel).unit == "share"
        limit = evidence.limit / 100 if in_percent else evidence.limit
    above = evidence.observed > evidence.limit
    # Over a long run a few samples would be slivers in a void.
    columns = tuple(series.steps.tolist()) if series.steps.size <= FEW else None
    scale = _scale(values, limit, above, channel(evidence.channel).unit)
    classes = scale.classes(values)  # [T, R]
    last = CLASSES - 1
    count = np.maximum((classes >= 0).sum(axis=0), 1)
    onset = int(np.searchsorted(series.steps, finding.steps[0]))
    worst = (series.high if above else series.low)[order]
    return Map(
        channel=evidence.channel,
        scale=scale,
        tensors=tuple(trace.tensors[i] for i in order),
        cells=_cells(classes, series, trace.steps) if columns is None else _even(classes),
        worst=np.asarray(worst, np.float64),
        beyond=(classes == last).sum(axis=0) / count if limit is not None else count * 0.0,
        at_onset=values[min(onset, len(values) - 1)],
        worst_step=series.high_step[order] if above else np.full(len(order), -1),
        samples=int(series.count.max(initial=0)),
        onset=int(series.steps[min(onset, len(values) - 1)]),
        sick=frozenset(finding.tensors),
        columns=() if columns is None else columns,
    )


def _scale(values: NDArray[np.float64], limit: float | None, above: bool, unit: str) -> Scale:
    """Even steps up to the limit, of the logarithm where the values span more than 20 times."""
    finite = values[np.isfinite(values)]
    if limit == 0 and above:
        return Scale((0.0,), limit, above, unit)
    positive = finite[finite > 0]
    if limit is None:
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        edges = _steps(low, high, positive)[1:-1]
        return Scale(tuple(edges), None, above, unit)
    side = finite[finite <= limit] if above else finite[finite >= limit]
    far = float(side.min() if above else side.max()) if side.size else limit
    edges = _steps(far, limit, positive[positive <= limit] if above else positive)[2:]
    return Scale(tuple(edges), limit, above, unit)


def _steps(start: float, end: float, positive: NDArray[np.float64]) -> list[float]:
    """CLASSES + 1 numbers from `start` to `end`, evenly in value or in its logarithm."""
    if end == start:
        start = end - abs(end) / 2 if end else -1.0
    smallest = float(positive.min()) if positive.size else 0.0
    low, high = sorted((start, end))
    if low <= 0 < high and smallest and high / smallest > LOG_RATIO:
        low = smallest
    if low > 0 and high / low > LOG_RATIO:
        low = max(low, high / 10.0**_DECADES)
        ends = (low, high) if start <= end else (high, low)
        return list(np.geomspace(*ends, CLASSES + 1).tolist())
    return list(np.linspace(start, end, CLASSES + 1).tolist())


def _even(classes: NDArray[np.int8]) -> NDArray[np.int8]:
    """[R, COLUMNS]: the samples side by side."""
    at = np.arange(COLUMNS) * len(classes) // COLUMNS
    return classes[at].T.copy()


def _cells(classes: NDArray[np.int8], series: Series, span: tuple[int, int]) -> NDArray[np.int8]:
    """[R, COLUMNS]: the worst class of each column; a sample lasts until the next, if near."""
    length = max(span[1] - span[0], 1)
    at = np.minimum(((series.steps - span[0]) / length * COLUMNS).astype(int), COLUMNS - 1)
    cells = np.full((COLUMNS, classes.shape[1]), -1, np.int8)
    np.maximum.at(cells, at, classes)
    taken = np.unique(at)
    usual = int(np.median(np.diff(taken))) if taken.size > 1 else 1
    for column, following in zip(taken, np.append(taken[1:], COLUMNS), strict=True):
        end = min(int(following), int(column) + _REACH * max(usual, 1))
        cells[column:end] = cells[column]
    beyond = cells == CLASSES - 1
    for further in range(1, _SEEN):  # never thinner than can be seen
        cells[further:][beyond[:-further]] = CLASSES - 1
    return cells.T.copy()
