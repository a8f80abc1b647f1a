"""What a wave is, and from where on there is one."""

from typing import NamedTuple

import numpy as np

from optdoctor.store import IntArray

CYCLES = 4
"""Fewest periods in the rows looked at."""
FEW_CYCLES = 6
"""Jumps from which their distances may spread as much as `Least.spacing`; two thirds below."""


class Least(NamedTuple):
    """From where on what comes back is a wave; the statistics have no opinion of it."""

    clearness: float = 5.0  # of the comb, in its standard errors
    known_clearness: float = 3.0  # the same at a period that was not searched for
    amplitude: float = 0.03  # from bottom to top of the mean wave, in the loss's logarithm
    spacing: float = 0.15  # relative spread of the distances between jumps


class Wave(NamedTuple):
    """What comes back, in rows of the curve."""

    period: float
    clearness: float  # standard errors of the comb, 0 where jumps were counted instead
    spacing: float  # relative spread of the distances between jumps, 0 where the comb found it
    amplitude: float
    skew: float  # of its slopes: 1 only jumps up, -1 only down, 0 alike
    jumps: IntArray  # row of each jump
    lasting: bool  # whether the loss stays up for more than single rows
    smoothness: float  # likeness of neighbours in the wave, in its standard errors
    bottom: float  # of the mean wave, from the trend
    plain: bool  # whether a place of the period stands out of all others, or it rises just once


def most_spread(jumps: int, spacing: float) -> float:
    """Largest relative spread of the distances between so many jumps that is no accident."""
    return spacing if jumps >= FEW_CYCLES else spacing * 2 / 3


def is_even(rows: IntArray, spacing: float) -> bool:
    """Whether jumps hardly come at such even distances by chance."""
    apart = np.diff(rows)
    spread = float(apart.std() / apart.mean())
    return round(spread, 3) < most_spread(rows.size, spacing)
