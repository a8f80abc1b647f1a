"""How far a curve stands above its best level at its end, and whether its noise can explain that.

A rise is a divergence or a drift by how fast it comes, and by its size. A bump that comes back to
within `DIVERGED` of the best level, and to `LEFT` of its height, is a spike and no rise.
"""

from typing import Literal, NamedTuple

import numpy as np

from optdoctor.curves.level import BLOCKS, Curve, Floats

DIVERGED = 0.3
"""Rise in logarithms that is a divergence if it comes fast, and certain in any case."""
FAST = 0.35
"""Share of such a rise in three blocks of 40 from which it is fast: it took a fifth of the run. Of
few rows, one to three are that part, and up to two fifths of them count."""
FAR = 1.0
"""Rise in logarithms that is a divergence, however slowly it came."""
ABRUPT = 0.6
"""Share of a rise in one jump of three blocks of 40 from which it is called abrupt."""
JUMPED = 0.15
"""Rise in logarithms that is a divergence if it is abrupt: in less, noise looks abrupt too."""
LEFT = 0.35
"""Largest share of a bump that is left when it counts as a spike: `spikes.BACK` and some noise."""
EXPLODED = 4.6
"""Least rise of few rows above all rows before, in logarithms, that no noise explains: a hundred
times."""
RELAPSED = 0.1
"""Fall in logarithms from the peak to the end that is clear: what rose from one low start learns.
Also the least rise since a jump that is told as still going on."""
TURNED = 0.02
"""The same of a running mean that starts from 0."""
FILLING = (0.5, 1.25)
"""Gains of such a mean, as multiples of its first value: of the second one, and of any at first."""
DOUBLED = 0.7
"""Rise in logarithms above the first rows, or above all rows before the last, that is told."""
TENFOLD = 10.0
"""Factor on the loss from which a jump is told, however little of the progress it takes back."""
CLEAR = 10.0
"""Standard deviations of a row by which the last rows stand above all rows before."""
LAST = 3
"""Rows at the end that are more than a spike."""
EARLY = 10
"""The first tenth of the rows may lie higher than the last; a low start is left within it."""
LATE = 5
"""What stands up before the last fifth is seen in blocks."""
AROUND = 50
"""Rows before a gap that tell the noise there."""
FEW, MANY = 20, 30
"""Rows below which a block has no error of its own, and from which rows are not judged singly."""
FEW_LEEWAY = 1.25
"""By what limits in errors grow between the two: healthy stretches of slow noise wander as far."""
BY_CHANCE = 5
"""Rows in unbroken rise to the end that chance brings: one more does so once in 720 times."""
QUANTA = 1.5
"""Units of the last decimal place by which rounding alone can make the losses of a log rise."""


class Bounds(NamedTuple):
    """What a rise has to exceed."""

    height: float = 0.04
    errors: float = 4.5
    steady_errors: float = 3.5
    slope_errors: float = 4.6
    lost: float = 0.03
    kept: float = 0.5
    large_errors: float = 10.0
    few_errors: float = 6.0


USUAL = Bounds()

Way = Literal["blocks", "start", "few", "first", "run", "gap", "end"]
"""How a rise is measured: in blocks, from the best; in blocks, from the very first loss; in few
rows, from their lowest three in a row; likewise from the first one or two; from row to row; from
the rows before a gap that none after it falls back into, of few; likewise the last rows of many."""


class Rise(NamedTuple):
    """From the best level of a curve, or its first rows, to its end. Figures are rounded: judged as
    printed."""

    way: Way
    best: int  # block: the middle one of the lowest three, 0 for the first loss
    height: float  # end above best
    errors: float  # height in its standard errors, over the leeway; rows in a run; a gap
    slope_errors: float  # slope since the best, likewise; 0 where not measured
    kept: float  # height over the highest rise since
    jump: float  # largest rise over three blocks of 40, over height
    jump_steps: tuple[int, int]
    onset: int  # step from which it rises: of a jump, the first one that stands up
    low_step: int  # where the best level is left
    low: float  # loss that has the level of the best,
    end: float  # of the end,
    top: float  # and of the highest level since
    since: int  # the end is measured from this step on
    lost: float  # share of the progress from the first block to the best that is lost
    fell: float  # start, the higher of the first block and the first losses, above best
    over: float  # end above start
    rows: int  # from the onset on
    joined: float  # loss of the first three of them
    still: bool  # whether they rise further
    learns: bool  # whether it comes from a low start, and falls clearly after its peak

    @property
    def is_abrupt(self) -> bool:
        """Whether most of it comes in one jump."""
        return self.jump > ABRUPT

    @property
    def is_large(self) -> bool:
        """Whether it is too large for a drift that is no more than that."""
        return self.height > DIVERGED

    @property
    def is_gross(self) -> bool:
        """Whether it is large, or one jump: what few rows can show."""
        return self.is_large or (self.is_abrupt and self.height > JUMPED)

    @property
    def diverges(self) -> bool:
        """Whether it is a divergence; else it is a drift. Rules that tell the two ask here."""
        if self.way == "end":
            return True
        return self.is_gross and (self.is_abrupt or self.is_fast or self.height > FAR)

    @property
    def speed(self) -> float:
        """The share in its largest jump, less one standard error: noise alone makes jumps."""
        if self.way in ("run", "gap"):  # no error of a level was measured
            return self.jump
        return round(self.jump - 1 / self.errors, 2) if self.errors > 1 else 0.0

    @property
    def is_fast(self) -> bool:
        """Whether more of it comes at once than of a rise over a fifth of the run."""
        return self.speed > FAST


def gravest(line: Curve, bounds: Bounds = USUAL) -> Rise | None:
    """The rise of the curve that is beyond the bounds; of several, the one that is higher."""
    told = [rise for rise in _rises(line) if beyond(rise, bounds)]
    rise = max(told, key=lambda one: one.height - DIVERGED * (one.way == "end"), default=None)
    if rise is None or rise.end - rise.low <= QUANTA * _quantum(line):
        return None
    return rise


def beyond(rise: Rise, bounds: Bounds) -> bool:
    """Whether neither noise nor a bump that comes back explains the rise."""
    if rise.way == "start":
        doubled = rise.height > DOUBLED and rise.kept >= bounds.kept
        return doubled and rise.errors > bounds.errors
    if rise.height <= bounds.height or (rise.lost <= bounds.lost and not _is_tenfold(rise, bounds)):
        return False
    if rise.way == "run":
        return rise.is_large and rise.errors > BY_CHANCE
    if rise.way == "gap":
        return rise.errors > EXPLODED
    if rise.way == "end":
        return rise.errors > CLEAR
    if rise.way == "few":
        return rise.is_gross and rise.errors > bounds.few_errors
    if rise.way == "first":  # a moving average that begins with one low batch climbs without a jump
        return rise.height > DOUBLED and rise.errors > bounds.few_errors and rise.is_abrupt
    steady = rise.slope_errors > bounds.slope_errors and rise.errors > bounds.steady_errors
    if not steady and rise.errors <= bounds.errors:
        return False
    return rise.kept > LEFT or is_certain(rise, bounds)


def _is_tenfold(rise: Rise, bounds: Bounds) -> bool:
    """Whether it is a certain jump to ten times the loss: a fall by thousands does not hide it."""
    return rise.is_abrupt and is_certain(rise, bounds) and rise.end > TENFOLD * rise.low > 0


def is_certain(rise: Rise, bounds: Bounds) -> bool:
    """Whether it is large and so far beyond noise that it is told even while it comes back."""
    return rise.is_large and (
        rise.way in ("few", "first", "run", "gap", "end") or rise.errors > bounds.large_errors
    )


def around(line: Curve, rise: Rise) -> tuple[int, int]:
    """First and last step of a block around its onset."""
    block = max(int(np.diff(line.block_steps).max(initial=1)), 1)
    return rise.onset - block, rise.onset + block


def _rises(line: Curve) -> list[Rise]:
    rows = line.losses.size
    found = [rise_of(line)] if rows >= FEW else []
    if rows >= MANY:
        found += [rise_from_start(line), explosion_at_end(line)]
    else:
        found += [rise_of_few(line), run_up(line), explosion(line)]
    return [rise for rise in found if rise is not None]


def rise_of(line: Curve) -> Rise | None:
    """The rise of a curve from its best level; None where it ends at its best, or nearly."""
    blocks, three = line.blocks, _of_three(line.blocks)
    at = int(np.argmin(three))
    end = _end(line)
    height = float(end - three[at])
    since = blocks[at + 2 :]
    if height <= 0 or len(since) < 3:  # a best level so fresh can still be the trend's
        return None
    leeway = line.leeway * (FEW_LEEWAY if line.losses.size < MANY else 1.0)
    slope = float(np.polyfit(np.arange(len(since)), since, 1)[0])
    slope_error = line.block_error * float(np.sqrt(12 / len(since))) / len(since)
    return _rise(
        line,
        "blocks",
        at + 1,
        (float(three[at]), end),
        errors=height / (0.82 * line.block_error) / leeway,
        slope_errors=slope / slope_error / leeway,
        later=three[at:],
    )


def rise_from_start(line: Curve) -> Rise | None:
    """The rise of the end above the very first loss: some runs explode within the first block.

    The second loss must lie as low, unless it is a rise by a hundred times: one row is no level.
    """
    first, end = float(line.level[0]), _end(line)
    second = max(first, float(line.level[1]))
    if end - second <= DOUBLED and end - first <= EXPLODED:
        first = second
    if end <= first:
        return None
    error = float(np.hypot(line.noise, 0.82 * line.block_error))
    rise = _rise(
        line,
        "start",
        0,
        (first, end),
        errors=(end - first) / error / line.leeway,
        later=np.concatenate(([first], _of_three(line.blocks))),
    )
    half = int(np.argmax(line.level > (first + end) / 2))
    rise = rise._replace(lost=10.0, fell=0.0)
    return _from(line, rise, half if rise.is_abrupt else max(half - 1, 0))


def rise_of_few(line: Curve) -> Rise | None:
    """The rise of the last three of few rows, all above the lowest three in a row before.

    Or all later rows above the first one or two. The noise is that of second differences without
    their two largest, which a jump makes: its errors and their leeway leave 1 of 1000 series of
    8 to 30 equal rows with normal, t3, or log-gamma noise beyond 6 (simulated).
    """
    level = line.level
    bend = np.sort(np.abs(np.diff(level, 2)))[:-2]
    noise = max(float(np.sqrt(np.mean(bend**2) / 6)), 1e-4)
    end = float(level[-3:].mean())
    lowest = int(np.argmin(_of_three(level)[:-3]))
    places = [(lowest, 3, level[-3:])] + [(0, width, level[width:]) for width in (1, 2)]
    found = []
    for first, width, later in places:
        low = level[first : first + width]
        if width == 1 and later.max() - later[-3:].max() > RELAPSED + 3 * noise:
            continue  # one low row, and the others fall
        if later.min() > low.max():
            error = noise * np.sqrt(1 / width + 1 / 3) * (1 + 4.67 / (level.size - 6))
            found.append((float((end - low.mean()) / error), first, width, float(low.mean())))
    if not found:
        return None
    errors, first, width, best = max(found)
    later = np.append(best, level[first + width :])
    way: Way = "few" if width == 3 else "first"
    return _rise(line, way, first + width - 1, (best, end), errors=errors, later=later)


def run_up(line: Curve) -> Rise | None:
    """The rows in unbroken rise to the end, of few."""
    falls = np.flatnonzero(np.diff(line.level) <= 0)
    first = int(falls[-1]) + 1 if falls.size else 0
    later = line.level[first:]
    if later.size < 2:
        return None
    ends = float(later[0]), float(later[-1])
    return _rise(line, "run", first, ends, errors=later.size, later=later)


def explosion(line: Curve) -> Rise | None:
    """The widest gap between all rows before and all after it, three at least, of few.

    Losses that exploded differ by factors among themselves: their noise says nothing of the gap.
    """
    level = line.level
    highest = np.maximum.accumulate(level)[:-3]
    lowest = np.minimum.accumulate(level[::-1])[::-1][1:-2]
    last = int(np.argmax(lowest - highest))
    gap = float(lowest[last] - highest[last])
    if gap <= 0:
        return None
    ends = float(level[max(last - 2, 0) : last + 1].mean()), float(level[-3:].mean())
    later = np.append(ends[0], level[last + 1 :])
    return _rise(line, "gap", last, ends, errors=gap, later=later)


def explosion_at_end(line: Curve) -> Rise | None:
    """The last rows of many, three at least, that all lie above all rows before them.

    From the first row on, within the last fifth, that stands up twice as high, and far beyond the
    noise of the rows just before, or a hundred times as high, whatever the noise. The first tenth
    of the run may lie higher. `errors` is that gap in standard deviations of a row.
    """
    level, rows = line.level, line.losses.size
    highest = np.maximum.accumulate(level[rows // EARLY :])[:-LAST]
    lowest = np.minimum.accumulate(level[::-1])[::-1][rows // EARLY + 1 :][: 1 - LAST]
    gaps = lowest - highest  # of the rows after one from those up to it
    late = np.arange(gaps.size) + rows // EARLY + 1 >= rows - rows // LATE
    noise = line.noise
    for _ in range(2):  # the noise beside the gap is known once its place is
        far = (gaps > max(DOUBLED, CLEAR * noise)) | (gaps > EXPLODED)
        if not (far & late).any():
            return None
        first = int(np.argmax(far & late)) + rows // EARLY + 1
        before = level[max(first - AROUND, rows // EARLY) : first]
        noise = max(line.noise, 1.4826 * float(np.median(np.abs(before - np.median(before)))))
    gap, low = float(gaps[first - rows // EARLY - 1]), float(np.median(before))
    is_rising = bool((np.diff(level[first:]) > 0).all())
    end = float(level[-1] if is_rising else np.median(level[-LAST:]))
    rise = _rise(  # each row a block of its own, but for the start of the run
        line._replace(blocks=np.append(line.blocks[0], level[1:]), block_steps=line.steps),
        "end",
        first - 1,
        (low, end),
        errors=gap / min(noise, EXPLODED / CLEAR),
        later=np.append(low, level[first:]),
    )
    block = int(np.searchsorted(line.block_steps, line.steps[first - 1], "right")) - 1
    return _from(line, rise._replace(best=block), first)


def _leaves_at_once(line: Curve, ends: tuple[float, float]) -> bool:
    """Whether half of the rise comes in the first tenth: the low start is no level that lasted."""
    return int(np.argmax(line.blocks > sum(ends) / 2)) < max(len(line.blocks) // EARLY, 1)


def _relapses(line: Curve, later: Floats, end: float) -> bool:
    """Whether the levels fall clearly from a first peak, and end below it."""
    least = TURNED if _fills(line.losses) else RELAPSED
    least += 3 * line.block_error * line.leeway
    highest = np.maximum.accumulate(later)
    fell = np.flatnonzero(later < highest - least)
    return bool(fell.size) and end < float(highest[fell[0]]) - least


def _fills(losses: Floats) -> bool:
    """Whether the first losses are those of a running mean that starts from 0.

    Each adds about as much as the first, and ever less; what explodes adds ever more.
    """
    gains = np.diff(losses[:6])
    low, high = FILLING[0] * losses[0], FILLING[1] * losses[0]
    return bool(low < gains[0] and gains.min() > 0 and gains.max() < high)


def _from(line: Curve, rise: Rise, row: int) -> Rise:
    """The rise with this row as its first."""
    rows, joined, still = _standing(line, row)
    return rise._replace(onset=int(line.steps[row]), rows=rows, joined=joined, still=still)


def _standing(line: Curve, row: int) -> tuple[int, float, bool]:
    """Rows from this one on, the loss of the first three, and whether they rise further."""
    level = line.level[row:]
    joined = float(np.median(line.losses[row : row + LAST]))
    if level.size < LAST:
        return level.size, joined, False
    early, middle, late = (float(np.median(part)) for part in np.array_split(level, 3))
    least = max(RELAPSED, 4 * line.noise / float(np.sqrt(level.size / 3)))
    return level.size, joined, early < middle < late and late - early > least


def _rise(
    line: Curve,
    way: Way,
    best: int,
    ends: tuple[float, float],
    *,
    errors: float,
    later: Floats,
    slope_errors: float = 0.0,
) -> Rise:
    """`best` is a block, `ends` the levels there and at the end, `later` [m] those since."""
    level, end = ends
    height = end - level
    first = float(line.blocks[0])
    start = max(first, float(np.median(line.level[: 3 if best else 1])))
    low, now = line.loss_at(level), line.loss_at(end)
    progress = line.loss_at(first) - low
    lost = min(now - low, 10 * progress) / progress if progress > 0 else 10.0
    span = min(-(-3 * len(line.blocks) // BLOCKS), len(later) - 1)
    jumps = later[span:] - later[:-span]
    block = best + int(np.argmax(jumps))
    last_block = min(block + span, len(line.blocks) - 1)
    jump = round(min(float(jumps.max()) / max(height, 1e-12), 1.0), 2)
    left = int(line.block_ends[best])
    onset = _change(line, block, last_block) if jump > ABRUPT else left
    rows, joined, still = _standing(line, int(np.searchsorted(line.steps, onset)))
    from_start = way == "start" or (way == "blocks" and best == 1 and first - level <= RELAPSED)
    return Rise(
        way=way,
        best=best,
        height=round(height, 3),
        errors=round(errors, 2),
        slope_errors=round(slope_errors, 2),
        kept=round(height / max(float(later.max()) - level, height, 1e-12), 2),
        jump=jump,
        jump_steps=(int(line.block_steps[block]), int(line.block_ends[last_block])),
        onset=onset,
        low_step=left,
        low=float(line.losses[0]) if way == "start" else low,
        end=now,
        top=line.loss_at(max(float(later.max()), end)),
        since=int(line.block_steps[len(line.blocks) - _tail(line)]),
        lost=round(lost, 3),
        fell=round(start - level, 3),
        over=round(end - start, 3),
        rows=rows,
        joined=joined,
        still=still,
        learns=from_start and _leaves_at_once(line, ends) and _relapses(line, later, end),
    )


def _change(line: Curve, first: int, last: int) -> int:
    """The step within these blocks from which the rows stand up: the best split in two levels."""
    inside = slice(
        *np.searchsorted(line.steps, (line.block_steps[first], line.block_ends[last] + 1))
    )
    level, steps = line.level[inside], line.steps[inside]
    if level.size < 2:
        return int(steps[-1])
    sums, before = np.cumsum(level), np.arange(1, level.size)
    after = level.size - before
    apart = (sums[-1] - sums[:-1]) / after - sums[:-1] / before
    return int(steps[1 + int(np.argmax(np.sign(apart) * apart**2 * before * after))])


def _of_three(blocks: Floats) -> Floats:
    """[K - 2]: mean of each block and its neighbours."""
    return np.convolve(blocks, np.ones(3) / 3, "valid")


def _tail(line: Curve) -> int:
    """Blocks that are the end."""
    return max(2, len(line.blocks) // 13)


def _end(line: Curve) -> float:
    return float(np.median(line.blocks[-_tail(line) :]))


def _quantum(line: Curve) -> float:
    """The last decimal place that any loss uses; 0 where they use more than nine."""
    for decimals in range(10):
        if np.array_equal(np.round(line.losses, decimals), line.losses):
            return float(10.0**-decimals)
    return 0.0
