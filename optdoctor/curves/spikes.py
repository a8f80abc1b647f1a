"""Rows of a curve that stand above both their sides and come back, against its own noise."""

from typing import NamedTuple

import numpy as np

from optdoctor.curves.level import TRIFLE, Curve, Floats, curve
from optdoctor.curves.trend import trend
from optdoctor.store import IntArray, Series

NEAR = 16
"""Rows to each side of one whose median is its base, in short curves."""
MOST = 200
"""Peaks that are looked at, the highest first."""
HALF_CLEAR = 0.5
"""Clearness of a peak of noise."""
SEEN = 3.0
"""Deviation, in standard deviations of a row, from which a peak is looked at."""
BACK = 0.3
"""Share of a spike's height that may be left when the curve counts as back."""
NEARLY = 0.1
"""The same when no lower level is looked for."""
SIDE = 3
"""Rows that a peak needs on each side: the second and third update of a sound run can explode."""
SIDES = 64
"""Most rows on a side whose median is its level."""
EDGE = 2
"""The same in short curves."""
LASTING = 3
"""Rows above half the height from which a peak is no single one."""
EARLY = 0.1
"""Share of the rows in which a curve falls so fast that twice as much is asked of a spike."""
FEW = 20.0
"""Rows at which the noise of a curve is known only to a factor of two."""
COMPANY = 6.0
"""Deviation of the gradient norm, in standard deviations, that confirms a spike of the loss."""
WIDE = 200
"""Rows from which peaks of fifteen rows are looked for."""


FIVE, FIFTEEN = 0.45, 0.27
"""Least spread of running medians of 5 and 15 rows, over that of a row: white noise has 0.54 and
0.32, and the few values of a short series show less by chance."""


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


class Spike(NamedTuple):
    """One peak of a curve, in rows."""

    first: int
    """First row above half its height,"""
    last: int
    """the last of them,"""
    top: int
    """and the highest."""
    back: int
    """Row at which the curve is back: `BACK` of the height above the level before, or less."""
    rows: int
    """Rows above half the height."""
    before: float
    """Level before, the median of some rows,"""
    height: float
    """and how far it stands above that and the level after; lasting ones by running medians."""
    deviations: float
    """Height over the noise of a row, or of running medians."""
    reach: float
    """What the run's own noise, and its other peaks, let expect of that."""
    company: float
    """Deviations of a second series at most 2 rows away, 0 where there is none."""

    @property
    def clearness(self) -> float:
        """Deviations over what was to be expected."""
        return self.deviations / self.reach

    @property
    def known(self) -> int:
        """Row from which it is clear that the curve came back."""
        return max(self.back, self.last + max(SIDE, self.last - self.first + 1))

    @property
    def lasting(self) -> bool:
        """Whether it is more than one or two rows."""
        return self.rows >= LASTING


def highest(series: Series) -> Series:
    """The series with the largest value of each row for its value: of thinned rows, their peaks."""
    known = np.isfinite(series.high)
    columns = {name: getattr(series, name)[known] for name in Series.__slots__}
    columns["values"], columns["steps"] = columns["high"], columns["high_step"]
    return Series(**columns)


def peaks_of(series: Series) -> Curve | None:
    """The curve of the largest value of each row; None for too few."""
    return curve(highest(series))


def resolution(line: Curve) -> Floats:
    """[n]: how far the level moves with the smallest difference between two losses."""
    apart = np.abs(np.diff(np.sort(line.losses)))
    apart = apart[apart > TRIFLE * float(np.abs(line.losses).max())]
    if not apart.size:
        return np.full(line.level.size, 1e-4)
    if not line.soft:
        span = np.ptp(line.level) / max(float(np.ptp(line.losses)), 1e-300)
        return np.full(line.level.size, max(float(apart.min() * span), 1e-4))
    return np.asarray(np.maximum(apart.min() / (line.losses + line.soft), 1e-4), np.float64)


def norm_level(series: Series) -> tuple[Series, Floats]:
    """The rows of a norm that hold a positive one, and the logarithm [n] of their largest."""
    kept = np.isfinite(series.high) & (series.high > 0)
    rows = Series(**{name: getattr(series, name)[kept] for name in Series.__slots__})
    return rows, np.log(np.asarray(rows.high, np.float64))


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


def half_width(rows: int) -> int:
    """Rows to each side of one whose median is its base."""
    return max(rows // 24, min(NEAR, rows // 6), 2)


def spread_of(left: Floats, width: int, least: float | Floats) -> Floats:
    """[n]: standard deviation of rows around a trend, nowhere smaller than `least`."""
    size = np.abs(left)
    overall = 1.4826 * float(np.median(size))
    spread = 1.4826 * trend(size, max(len(left) // 10, width))
    edge = min(width, len(left) // 4)  # nearer to an end, a spread is that of a few rows
    spread[:edge], spread[len(left) - edge :] = spread[edge], spread[len(left) - edge - 1]
    return np.asarray(np.maximum(np.maximum(spread, 0.35 * overall), least), np.float64)


def scores(level: Floats, least: float | Floats) -> Floats:
    """[n]: rows above the trend, in standard deviations."""
    width = half_width(len(level))
    left = level - trend(level, width)
    return np.asarray(left / spread_of(left, width, least), np.float64)


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
        scans += [(of_five, wide, FIVE), (_of_fifteen(of_five), wide, FIFTEEN)]
    of_rows = {
        width: spread_of(level - trend(level, width), width, least_spread)
        for width in {width for _, width, _ in scans}
    }
    found: list[Spike] = []
    for values, width, share in scans:
        base = trend(values, width)
        spread = of_rows[width]
        if share < 1:
            spread = spread_of(values - base, width, share * spread)
        peaks = _peaks(level, values, base, spread, min(half, SIDES), least_height)
        peaks = [_accompanied(spike, company) for spike in peaks if spike.lasting == (share < 1)]
        found += _with_reach(peaks, reach, rows)
    chosen: list[Spike] = []
    for spike in sorted(found, key=lambda spike: -spike.clearness):
        if spike.clearness < HALF_CLEAR:
            break
        if all(spike.first > other.last or spike.last < other.first for other in chosen):
            chosen.append(spike)
    return sorted(chosen)


def towers(level: Floats, times: float) -> list[Spike]:
    """Rows of a short curve that stand above up to 3 rows before them, and come back later.

    Args:
        times: standard deviations of a row that count as reached by noise.
    """
    rows = len(level)
    bends = np.diff(level, 2)
    found: list[Spike] = []
    for top in range(EDGE, rows - EDGE):
        before = level[max(top - SIDE, 0) : top]
        height = float(level[top] - before.max())
        usual = float(np.median(before))
        left = np.flatnonzero(level[top + 1 :] <= usual + BACK * height)
        if height <= 0 or not left.size:
            continue
        back = top + 1 + int(left[0])
        high = np.flatnonzero(level[top:back] > usual + height / 2)
        if level[top] < level[top:back].max() or np.median(level[back:]) > usual + height / 2:
            continue
        others = np.delete(bends, np.arange(top - 2, top + 1))
        noise = max(float(np.sqrt(np.mean(others**2))) / 2.449, 1e-4)
        last, size = top + int(high[-1]), height / noise
        found.append(Spike(top, last, top, back, high.size, usual, height, size, times, 0.0))
    return found


def median_of_five(values: Floats) -> Floats:
    """[n]: the median of each row and two on each side; at the ends, of those there are."""
    if len(values) < 5:
        return values.copy()
    a, b, c, d, e = (values[i : len(values) - 4 + i] for i in range(5))
    low = np.maximum(np.minimum(a, b), np.minimum(d, e))
    high = np.minimum(np.maximum(a, b), np.maximum(d, e))
    middle = _median_of_three(low, c, high)
    start = [np.median(values[:3]), np.median(values[:4])]
    end = [np.median(values[-4:]), np.median(values[-3:])]
    return np.concatenate((start, middle, end))


def _median_of_three(a: Floats, b: Floats, c: Floats) -> Floats:
    low, high = np.minimum(a, c), np.maximum(a, c)
    return np.asarray(np.maximum(low, np.minimum(b, high)), np.float64)


def _of_fifteen(of_five: Floats) -> Floats:
    """[n]: about the median of 15 rows, from those of 5."""
    inner = _median_of_three(of_five[:-10], of_five[5:-5], of_five[10:])
    return np.concatenate((of_five[:5], inner, of_five[-5:]))


def _peaks(
    level: Floats, values: Floats, base: Floats, spread: Floats, side: int, least_height: float
) -> list[Spike]:
    """The highest peaks of `values` above their base, which do not touch."""
    left = values - base
    score = left / spread
    seeds = np.flatnonzero((score > SEEN) & (left >= least_height / 2))
    seeds = seeds[np.argsort(-score[seeds], kind="stable")]
    taken = np.zeros(len(level), bool)
    spikes: list[Spike] = []
    looked = 0
    for top in seeds.tolist():
        if taken[top]:
            continue
        first, last = _stretch(left, top)
        taken[max(first - 2, 0) : last + 3] = True
        spike = _spike(level, values, spread, (first, last, top), side)
        if spike is not None and spike.height >= least_height:
            spikes.append(spike)
        looked += 1
        if looked == MOST:
            break
    return spikes


def _stretch(left: Floats, top: int) -> tuple[int, int]:
    """The rows around `top` above half its height, without a break of more than one."""
    half, rows, reach = left[top] / 2, len(left), 32
    while True:
        start, end = max(top - reach, 0), min(top + reach + 1, rows)
        near = left[start:end] > half
        near[1:-1] |= near[:-2] & near[2:]
        below = np.flatnonzero(~near)
        before, after = below[below < top - start], below[below > top - start]
        if (before.size or start == 0) and (after.size or end == rows):
            first = start + int(before[-1]) + 1 if before.size else 0
            return first, start + int(after[0]) - 1 if after.size else rows - 1
        reach *= 4


def _spike(
    level: Floats, values: Floats, spread: Floats, place: tuple[int, int, int], side: int
) -> Spike | None:
    """The peak at a place; None where it lacks a side, or did not come back."""
    first, last, top = place
    rows = len(level)
    if first < SIDE or rows - last - 1 < SIDE:
        return None
    before = float(np.median(level[max(first - side, 0) : first]))
    after, width = float(np.median(level[last + 1 : last + 1 + side])), side
    near = before + NEARLY * (float(values[top]) - before)
    while after > near and last + 1 + width < rows:  # it takes longer to come back
        width *= 4
        after = min(after, float(np.median(level[last + 1 : last + 1 + width])))
    height = float(values[top]) - max(before, after)
    back = _first_below(values, last + 1, before + BACK * height)
    if height <= 0 or back is None:
        return None
    if np.median(level[back : back + side]) > before + height / 2:
        return None
    start = max(first - 2, 0)  # running medians begin and end later than their rows
    high = np.flatnonzero(level[start:back] > before + height / 2) + start
    high = high[(high >= first - 2) & (high <= last + 2)]
    if not high.size:
        return None
    summit = int(high[np.argmax(level[high])])
    deviations = height / float(spread[top])
    return Spike(
        int(high[0]), int(high[-1]), summit, back, high.size, before, height, deviations, 1.0, 0.0
    )


def _first_below(values: Floats, start: int, limit: float) -> int | None:
    """The first row from `start` on that is not above the limit."""
    reach = 64
    while start < len(values):
        at = np.flatnonzero(values[start : start + reach] <= limit)
        if at.size:
            return start + int(at[0])
        start, reach = start + reach, 4 * reach
    return None


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
        expected *= few * (2 if spike.first < EARLY * rows else 1)
        ranked[place] = spike._replace(reach=expected)
        is_clear, following = is_clear or ranked[place].clearness >= 1, spike.deviations
    return ranked
