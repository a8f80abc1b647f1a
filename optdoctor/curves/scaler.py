"""What a gradient scaler did: the updates that it skipped, and how its scale fell meanwhile."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor.curves.level import Floats
from optdoctor.curves.scale_search import (
    calm_of,
    is_in,
    is_search,
    latest,
    latest_end,
    set_anew,
    soon_after,
    was_found,
)
from optdoctor.store import IntArray, Series
from optdoctor.trace import Trace

TELLS_OF_UPDATES = ("loss", "grad_norm", "grad_norm_used", "lr", "loss_scale", "step_skipped")
"""Channels a row of which tells of an update that was attempted: made, where not skipped."""
WHOLE = 0.02
"""What a fall of that logarithm may lack of a whole number: scales are printed rounded."""
NOTHING = -1000.0
"""Logarithm of a scale of 0. Nothing can be divided by it, so such an update is skipped."""


class Scaler(NamedTuple):
    """The K skipped updates of a run, and its scales in N rows; scales are logarithms to base 2."""

    steps: IntArray  # [K] of each; spread evenly between two rows where only their number is known
    told: IntArray  # [K] the step at which the log has it
    shown: IntArray  # [K] the step of the row that shows it
    scales: Floats  # [K] the scale that overflowed, or the one after it; NaN where it is unknown
    searching: NDArray[np.bool_]  # [K] whether the scaler was looking for its first scale
    used: NDArray[np.bool_]  # [K] whether updates were made before it, without a skipped one
    rows: IntArray  # [N] steps of the rows below
    levels: Floats  # [N]
    held: NDArray[np.bool_]  # [N] whether the scale was as high in the next row, after a search
    made: IntArray  # steps of rows that tell of updates that were not skipped
    last: float  # newest scale, also where only the line of the last skipped update tells it
    has_ended: bool  # whether the scaler ended the run, at its least scale

    @property
    def trailing(self) -> int:
        """How many of the K follow the last update that is known to have been made."""
        return int((self.told > (self.made[-1] if self.made.size else -1)).sum())


def scaler(trace: Trace) -> Scaler:
    """What `loss_scale` and `step_skipped` tell, beside rows of the other channels.

    A scale lower by 2 to the n than in the row before tells of n skipped updates at least, also
    where no row says so. A caller declares `TELLS_OF_UPDATES`.
    """
    rows, levels = _levels(trace.series.get("loss_scale"))
    flagged = _flagged(trace.series.get("step_skipped"))
    if (zero := levels <= NOTHING).any():
        flagged = np.union1d(flagged, rows[zero])
    attempted = [trace.series[n].steps for n in TELLS_OF_UPDATES if n in trace.series]
    made = _without(_all_of(attempted), flagged)
    inferred, shown, before = _inferred(rows, levels, flagged)
    steps = np.concatenate([_spread(flagged, made), inferred])
    order = np.argsort(steps, kind="stable")
    told = np.concatenate([flagged, inferred])[order]
    scales = np.concatenate([_at(rows, levels, flagged), before])[order]
    steps = steps[order]
    if levels.size > 1 and made.size and made[-1] == rows[-1] and levels[-1] < levels[-2] - 0.5:
        made = made[:-1]  # what became of the last attempt of a falling scale nobody knows
    made = _without(made, inferred)
    last, has_ended = _after(trace, rows, levels)
    anew = set_anew(trace, rows, levels)
    calm = calm_of(told, made)
    held = np.append(levels[1:] >= levels[:-1] - 0.5, np.zeros(min(levels.size, 1), bool))
    found = ~soon_after(anew, rows)
    found[~found] = is_in(calm, rows[~found])  # which are few
    return Scaler(
        steps=steps,
        told=told,
        shown=np.concatenate([flagged, shown])[order],
        scales=scales,
        searching=is_search(trace, steps, scales, made, soon_after(anew, steps))
        & ~was_found(anew, calm, told),
        rows=rows,
        levels=levels,
        held=held & found,
        made=made,
        last=last,
        has_ended=has_ended,
        used=latest_end(calm, told) > latest(anew, told),
    )


def _levels(series: Series | None) -> tuple[IntArray, Floats]:
    if series is None:
        return np.zeros(0, np.int64), np.zeros(0)
    kept = np.isfinite(series.values) & (series.values >= 0)
    scales = np.asarray(series.values[kept], np.float64)
    return series.steps[kept], np.log2(np.maximum(scales, 2.0**NOTHING))


def _at(rows: IntArray, levels: Floats, steps: IntArray) -> Floats:
    """[len(steps)]: the scale in the row of exactly that step, NaN where there is none."""
    if not rows.size:
        return np.full(steps.size, np.nan)
    at = np.minimum(np.searchsorted(rows, steps), rows.size - 1)
    return np.where(rows[at] == steps, levels[at], np.nan)


def _flagged(series: Series | None) -> IntArray:
    """Steps of rows that say so; of a thinned row all where each says so, else one."""
    if series is None:
        return np.zeros(0, np.int64)
    some = series.high >= 1
    count = np.where(series.low >= 1, series.count - series.bad, 1)[some]
    starts, ends = series.starts[some], series.steps[some]
    apart = np.repeat((ends - starts) / np.maximum(count - 1, 1), count)
    return np.asarray(np.repeat(starts, count) + _within(count) * apart, np.int64)


def _within(count: IntArray) -> IntArray:
    """0, 1, 2 ... in each of the groups of so many."""
    return np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)


def _inferred(
    rows: IntArray, levels: Floats, flagged: IntArray
) -> tuple[IntArray, IntArray, Floats]:
    """Skipped updates that only the fall of the scale tells of: step, row that shows it, scale."""
    fall = levels[:-1] - levels[1:] + WHOLE
    fell = np.flatnonzero(fall >= 1)
    before, after = rows[fell], rows[fell + 1]
    told = np.searchsorted(flagged, after, "right") - np.searchsorted(flagged, before)
    count = np.clip(np.floor(fall[fell]) - told, 0, after - before).astype(np.int64)
    within = _within(count)
    apart = np.repeat(after - before, count)
    place = (within + 0.5) / np.repeat(np.maximum(count, 1), count) * apart
    steps = np.repeat(before, count) + place.astype(np.int64)
    return steps, np.repeat(after, count), np.repeat(levels[fell], count) - within


def _spread(flagged: IntArray, made: IntArray) -> IntArray:
    """[len(flagged)]: evenly between the rows around: a log may tell only how many there were."""
    if not flagged.size:
        return flagged
    group = np.searchsorted(made, flagged)
    first = np.flatnonzero(np.diff(group, prepend=-1))
    count = np.diff(first, append=flagged.size)
    ends = np.append(made, 0)[group[first]]
    starts = np.where(group[first] > 0, np.append(0, made)[group[first]], flagged[first] - 1)
    apart = np.repeat((ends - starts) / (count + 1), count)
    even = np.repeat(starts, count) + (_within(count) + 1) * apart
    steps = np.where(group < made.size, np.maximum(even, flagged), flagged)
    return np.asarray(steps, np.int64)


def _all_of(channels: list[IntArray]) -> IntArray:
    """The steps of all channels, in order and each once; most channels have the same ones."""
    distinct: list[IntArray] = []
    for steps in channels:
        if not any(np.array_equal(steps, other) for other in distinct):
            distinct.append(steps)
    joined = np.concatenate([*distinct, np.zeros(0, np.int64)])
    if len(distinct) > 1:
        joined = np.sort(joined, kind="stable")  # which merges runs that are in order already
    return np.asarray(joined[np.diff(joined, prepend=-1) > 0], np.int64)


def _without(steps: IntArray, others: IntArray) -> IntArray:
    """The steps, in order and each once, that are not among the others."""
    at = np.searchsorted(steps, others)
    known = at < steps.size
    at = at[known]
    kept = np.ones(steps.size, bool)
    kept[at[steps[at] == others[known]]] = False
    return steps[kept]


def _after(trace: Trace, rows: IntArray, levels: Floats) -> tuple[float, bool]:
    """Scale after the newest row, and whether the scaler ended the run."""
    last = int(rows[-1]) if rows.size else 0
    for event in trace.events[::-1]:
        if event.step < last:
            break
        if event.kind == "step-skipped" and isinstance(event.new, int | float) and event.new >= 0:
            return float(np.log2(max(float(event.new), 2.0**NOTHING))), bool(event.text)
    return float(levels[-1]) if levels.size else np.nan, False
