"""Spikes of a curve: peaks that come back, beside what its own noise lets expect of them."""

import math
from typing import NamedTuple

import numpy as np

from optdoctor.curves.deviations import (
    half_width,
    median_of_fifteen,
    median_of_five,
    spread_of,
)
from optdoctor.curves.level import Floats
from optdoctor.curves.peaks import EARLY, SEEN, SIDE, Spike, peaks_of
from optdoctor.curves.trend import trend
from optdoctor.store import IntArray, Series

HALF_CLEAR = 0.5
"""Clearness of a peak of noise."""
SIDES = 64
"""Most rows on a side whose median is its level."""
HASTE = 2.0
"""How much more is asked of a spike in the first tenth of the rows, where curves fall fast."""
COMPANY = 6.0
"""Deviation of the gradient norm, in standard deviations, that confirms a spike of the loss."""
FEW = 20.0
"""Rows at which the noise of a curve is known only to a factor of two."""
WIDE = 200
"""Rows from which peaks of fifteen rows are looked for."""
FIVE, FIFTEEN = 0.45, 0.27
"""Least spread of running medians of 5 and 15 rows, over that of a row: white noise has 0.54 and
0.32, and the few values of a short series show less by chance."""
CHANCE, USUAL = 0.03, 0.15
"""Lasting peaks that chance alone may make, as batches of two kinds form rows of high ones, and the
share of other rows from which their height is a usual one."""


class Reach(NamedTuple):
    """What peaks of healthy runs reach: deviations, and the multiple of the next highest peak.

    A peak that stands apart of the next one counts from the deviations on, one among others of
    its height from `ALONE` times as many.
    """

    single: tuple[float, float]  # of one or two rows
    lasting: tuple[float, float]  # of three and more, by running medians and their own spread
    joined: tuple[float, float]  # where a second series rises too
    joined_lasting: tuple[float, float]
    towering: float = np.inf  # height from which other peaks do not matter


ALONE = 4.0
"""Multiple of the deviations from which the next highest peak does not matter."""
LIGHT = 4.0
"""Highest peaks of noise without a heavy tail; beyond, the next one may be higher by that much."""
LOSSES = Reach((15.0, 3.0), (7.0, 1.5), (6.0, 1.3), (5.5, 1.15))
"""Of single batches."""
SMOOTHED = Reach((12.0, 2.5), (10.0, 2.0), (6.0, 1.3), (7.0, 1.3))
"""Of moving averages, in which one batch lasts."""
MEANS = Reach((7.5, 2.0), (7.0, 1.5), (4.5, 1.15), (5.5, 1.15))
"""Of means over many batches, as evaluations are: no single example makes a row."""
NORMS = Reach((5.0, 1.4), (7.0, 1.5), (5.0, 1.4), (7.0, 1.5), towering=3.9)
"""Of the logarithm of gradient norms."""


def beside_nan(series: Series, steps: IntArray, spike: Spike) -> bool:
    """Whether a value that is not finite lies in the spike, or a few rows beside it.

    Args:
        steps: [n] step of each row of the curve.
    """
    broken = series.bad > 0
    if not broken.any():
        return False
    start = int(steps[max(spike.first - SIDE, 0)])
    end = int(steps[min(spike.back + SIDE, steps.size - 1)])
    return bool(((series.first_bad[broken] <= end) & (series.last_bad[broken] >= start)).any())


def spikes_of(
    level: Floats,
    reach: Reach,
    *,
    least_height: float,
    least_spread: float | Floats = 1e-4,
    company: Floats | None = None,
) -> list[Spike]:
    """Every peak of at least `least_height` that came back, in order of rows.

    None is judged: a rule asks for a clearness; below `HALF_CLEAR` it is left out.

    Args:
        level: [n] on a scale of which differences matter, a logarithm.
        company: [n] deviations of a second series, NaN where it has none.
    """
    rows = len(level)
    half, wide = half_width(rows), max(rows // 8, half_width(rows))
    of_five = median_of_five(level)
    scans = [(level, half, 1.0), (of_five, half, FIVE)]
    if rows >= WIDE:
        scans += [(of_five, wide, FIVE), (median_of_fifteen(of_five), wide, FIFTEEN)]
    of_rows = {width: _around(level, width, least_spread) for width in {half, wide}}
    found: list[Spike] = []
    for values, width, share in scans:
        base, spread = of_rows[width]
        if share < 1:
            base, spread = _around(values, width, share * spread)
        peaks = peaks_of(level, values, base, spread, min(half, SIDES), least_height)
        peaks = [_accompanied(spike, company) for spike in peaks if spike.lasting == (share < 1)]
        found += _with_reach(peaks, reach, rows)
    chosen: list[Spike] = []
    taken = np.zeros(rows, bool)
    for spike in sorted(found, key=lambda spike: -spike.clearness):
        if spike.clearness < HALF_CLEAR:
            break
        if not taken[spike.first : spike.last + 1].any():
            chosen.append(spike)
            taken[spike.first : spike.last + 1] = True
    return sorted(_beyond_chance(chosen, level, wide))


def _beyond_chance(spikes: list[Spike], level: Floats, width: int) -> list[Spike]:
    """Those that rows as high as half of them, in any order, would hardly make.

    Of n rows, of which a share q is that high, about n * C(m, k) * q^k windows of m rows hold k of
    them. A second series that rises too is no chance; nor are k peaks where fewer than k * `CHANCE`
    were to be expected (as Benjamini and Hochberg count discoveries).
    """
    lasting = [spike for spike in spikes if spike.lasting and spike.company <= COMPANY]
    if not lasting:
        return spikes
    base = _means(level, width)  # a median would be that of one kind or the other
    left = level - base
    ordered = np.sort(left)
    ranked = sorted((_by_chance(spike, left, ordered, base), spike) for spike in lasting)
    places = [place for place, (count, _) in enumerate(ranked, 1) if count <= CHANCE * place]
    made = {spike for _, spike in ranked[max(places, default=0) :]}
    return [spike for spike in spikes if spike not in made]


def _by_chance(spike: Spike, left: Floats, ordered: Floats, base: Floats) -> float:
    """How many peaks of so many high rows rows in any order would have.

    Args:
        left: [n] rows above their base [n]; `ordered` the same, the lowest first.
    """
    half = max(spike.before + spike.height / 2 - float(base[spike.top]), spike.height / 4)
    own = left[max(spike.first - 2, 0) : spike.last + 3]
    others = left.size - own.size
    high = left.size - int(np.searchsorted(ordered, half, "right")) - int((own > half).sum())
    share = (high + 1) / (others + 1)
    if share > USUAL:
        return math.inf
    length, rows = spike.last - spike.first + 1, spike.rows
    ways = math.lgamma(length + 1) - math.lgamma(rows + 1) - math.lgamma(length - rows + 1)
    count = math.log(left.size) + ways + rows * math.log(share)
    return math.exp(min(count, 300.0))


def _means(values: Floats, width: int) -> Floats:
    """[n]: running mean over +-`width` rows, narrower towards both ends."""
    rows = np.arange(values.size)
    reach = np.minimum(width, np.minimum(rows, values.size - 1 - rows))
    sums = np.append(0.0, np.cumsum(values))
    return np.asarray((sums[rows + reach + 1] - sums[rows - reach]) / (2 * reach + 1), np.float64)


def _around(values: Floats, width: int, least: float | Floats) -> tuple[Floats, Floats]:
    """[n] each: the trend, and the spread around it."""
    base = trend(values, width)
    return base, spread_of(values - base, width, least)


def _accompanied(spike: Spike, company: Floats | None) -> Spike:
    if company is None:
        return spike
    beside = company[max(spike.first - 2, 0) : spike.last + 3]
    known = beside[np.isfinite(beside)]
    return spike._replace(company=float(known.max(initial=0.0)))


def _with_reach(peaks: list[Spike], reach: Reach, rows: int) -> list[Spike]:
    """The same peaks with what was to be expected of each.

    Several that are alike are judged together: the gap behind the lowest of them is that of all.
    """
    ranked = sorted(peaks, key=lambda spike: -spike.deviations)
    few = 1 + FEW / rows
    following, is_clear = SEEN, False
    for place in range(len(ranked) - 1, -1, -1):
        spike = ranked[place]
        kind = reach.lasting if spike.lasting else reach.single
        if spike.company > COMPANY:
            kind = reach.joined_lasting if spike.lasting else reach.joined
        least, apart = kind
        heavy = max(following / LIGHT, 1.0)
        expected = max(least, min(apart * following * heavy, ALONE * least))
        if is_clear or spike.height > reach.towering:
            expected = least
        expected *= few * (HASTE if spike.first < EARLY * rows else 1)
        ranked[place] = spike._replace(reach=expected)
        is_clear, following = is_clear or ranked[place].clearness >= 1, spike.deviations
    return ranked
