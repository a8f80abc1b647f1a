"""Rows at uneven distances: on a grid of steps where few are missing, or the longest even part."""

from dataclasses import fields, replace

import numpy as np

from optdoctor.curves.level import Floats
from optdoctor.store import IntArray, Series

FILLED = 0.7
"""Least share of the places of a grid that have a row."""
ALONE = 0.9
"""Least share of the rows that have a place of their own."""
EQUAL = 0.25
"""Relative difference up to which two distances are the same."""


def on_grid(steps: IntArray, values: Floats) -> tuple[Floats, IntArray] | None:
    """[G]: values at even distances, the few that are missing interpolated, and the row of each.

    None where the distances are too uneven for it.
    """
    apart = max(float(np.median(np.diff(steps))), 1.0)
    place = np.round((steps - steps[0]) / apart)
    size = int(min(place[-1] + 1, 2 * steps.size + 2))
    apiece = int(np.count_nonzero(np.diff(place))) + 1
    if apiece < max(FILLED * size, ALONE * steps.size):
        return None
    if size == apiece == steps.size:
        return values, np.arange(size)
    grid = np.arange(size)
    rows = np.minimum(np.searchsorted(place, grid), steps.size - 1)
    return np.interp(grid, place, values), rows


def even_part(series: Series) -> Series:
    """The series, or where its finite rows fit no grid the longest stretch at one distance."""
    kept = series.steps[np.isfinite(series.values)]
    if kept.size < 3 or on_grid(kept, kept.astype(np.float64)) is not None:
        return series
    apart = np.diff(series.steps)
    changes = np.flatnonzero(np.abs(apart[1:] - apart[:-1]) > EQUAL * apart[:-1]) + 1
    edges = np.concatenate([[0], changes, [apart.size]])
    longest = int(np.diff(edges).argmax())
    part = slice(int(edges[longest]), int(edges[longest + 1]) + 1)
    return replace(series, **{f.name: getattr(series, f.name)[part] for f in fields(series)})
