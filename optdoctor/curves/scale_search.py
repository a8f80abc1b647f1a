"""Where a gradient scaler looks for its scale, and where it has found one."""

import numpy as np
from numpy.typing import NDArray

from optdoctor.curves.level import Floats
from optdoctor.store import IntArray
from optdoctor.trace import Trace

SEARCH = 100
"""Updates in which a scaler finds its scale: down from 2 to the 32 it takes some 20 of them."""
SETTLED = 8
"""Updates without a skipped one, after a skipped one, that end a search: a scale that is held."""
INITIAL = 7.0
"""Logarithm to base 2 of the smallest scale that a scaler which prints its skips starts from:
fairseq's; those of the others are 15 and more."""
REBORN = 1.6
"""Rise of that logarithm from row to row above which the scale was set anew: growth doubles it."""

Calm = tuple[IntArray, IntArray]
"""First and last steps of stretches without a skipped update."""


def set_anew(trace: Trace, rows: IntArray, levels: Floats) -> IntArray:
    """Steps from which a scaler looks for its first scale."""
    anew = rows[1:][np.diff(levels) > REBORN].tolist()
    anew += [event.step for event in trace.events if event.kind in ("start", "resume")]
    first = trace.steps[0]
    return np.sort(np.array([*anew, *([first] if first <= SEARCH else [])], np.int64))


def calm_of(told: IntArray, made: IntArray) -> Calm:
    """First and last step of each `SETTLED` updates and more that were made in a row."""
    if not made.size:
        return made, made
    cuts = np.searchsorted(made, told, "right")  # in the longer of the two: it is sorted
    first = np.unique(np.append(0, cuts[cuts < made.size]))
    starts, ends = made[first], made[np.append(first[1:], made.size) - 1]
    long = ends - starts >= SETTLED
    return starts[long], ends[long]


def is_in(calm: Calm, steps: IntArray) -> NDArray[np.bool_]:
    starts, ends = calm
    return np.asarray(np.append(-1, ends)[np.searchsorted(starts, steps, "right")] >= steps)


def latest_end(calm: Calm, steps: IntArray) -> IntArray:
    """[len(steps)]: of the newest calm that is over by then; -1 where there is none."""
    return np.asarray(np.append(-1, calm[1])[np.searchsorted(calm[1], steps)])


def was_found(anew: IntArray, calm: Calm, told: IntArray) -> NDArray[np.bool_]:
    """[K]: whether a search was over: it had skipped an update, and then the scale was held."""
    skips = np.sort(told)
    first = np.append(skips, np.iinfo(np.int64).max)[np.searchsorted(skips, anew)]
    after = np.searchsorted(calm[0], first, "right")
    over = np.append(calm[1], np.iinfo(np.int64).max)[after]
    era = np.searchsorted(anew, told, "right")
    return np.asarray(np.append(np.iinfo(np.int64).max, over)[era] < told)


def latest(anew: IntArray, steps: IntArray) -> IntArray:
    """[len(steps)]: when the scaler last began to look for its scale; before all steps if never."""
    newest = np.append(-SEARCH - 1, anew)[np.searchsorted(anew, steps, "right")]
    return np.asarray(newest)


def soon_after(anew: IntArray, steps: IntArray) -> NDArray[np.bool_]:
    return np.asarray(steps <= latest(anew, steps) + SEARCH)


def is_search(
    trace: Trace, steps: IntArray, scales: Floats, made: IntArray, early: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """[K]: early, or before any update that was made: a log may begin with a resumed run.

    A passage that begins at a scale from which no scaler starts is from the midst of a run.
    """
    if not steps.size:
        return early
    leading = (steps < (made[0] if made.size else np.inf)) & (steps < steps[0] + SEARCH)
    is_passage = not made.size or trace.steps[0] > SEARCH
    if is_passage and scales[0] < INITIAL:
        return np.asarray(early & ~leading)
    return np.asarray(early | leading)
