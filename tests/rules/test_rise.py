"""The statistics of `curves/rise.py`, against obvious calculations and their own promises."""

import math
from time import process_time

import numpy as np
import pytest
from rising import blocks, course, ending, figure, jumping, line_of

from optdoctor.curves.level import curve
from optdoctor.curves.rise import (
    BY_CHANCE,
    EXPLODED,
    USUAL,
    explosion,
    explosion_at_end,
    gravest,
    rise_from_start,
    rise_of,
    rise_of_few,
    run_up,
)
from optdoctor.store import StepStore
from optdoctor.synthetic import falling_loss, make_trace

NOISES = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy tails": lambda rng, n: rng.standard_t(3, n),
    "small batches": lambda rng, n: np.log(rng.gamma(2, 1, n)),
    "single examples": lambda rng, n: np.log(rng.gamma(1, 1, n)),
}


def test_the_figures_of_a_rise_are_those_of_the_obvious_calculation() -> None:
    swing = 0.02
    levels = np.concatenate(
        (np.linspace(np.log(1.05), -1, 12), np.full(3, -1), np.linspace(-0.96, -0.6, 25))
    )
    rise = figure(blocks(levels, swing))
    shown = levels + np.where(np.arange(40) < 3, 0, swing * (-1.0) ** np.arange(40))
    means = [np.mean(shown[i - 1 : i + 2]) for i in range(1, 39)]
    bends = [abs(shown[i] - (shown[i - 1] + shown[i + 1]) / 2) for i in range(8, 39)]
    error = 1.4826 * np.median(bends) / math.sqrt(1.5)
    height = np.median(shown[-3:]) - min(means)
    assert rise.best == 1 + int(np.argmin(means))
    assert rise.height == pytest.approx(height, abs=1e-3)
    assert rise.errors == pytest.approx(height / (0.82 * error * 1.15), abs=0.02)
    later = shown[rise.best + 1 :]
    slope = np.polyfit(range(len(later)), later, 1)[0]
    spread = error * math.sqrt(12 / len(later) ** 3)
    assert rise.slope_errors == pytest.approx(slope / spread / 1.15, rel=2e-3)
    worst = math.exp(np.median(shown[-3:])) - 0.05
    best = math.exp(min(means)) - 0.05
    first = 1.0
    assert (rise.low, rise.end) == pytest.approx((best, worst))
    assert math.log((rise.end + 0.05) / (rise.low + 0.05)) == pytest.approx(rise.height, abs=6e-4)
    assert rise.over == pytest.approx(np.median(shown[-3:]) - math.log(1.05), abs=6e-4)
    assert rise.lost == pytest.approx((worst - best) / (first - best), abs=2e-3)


def test_the_figures_of_few_rows_are_those_of_the_obvious_calculation() -> None:
    rows = [3.0, 2.0, 1.5, 1.2, 1.3, 1.25, 1.21, 4.0, 4.2, 4.1, 4.4]
    rise = figure(make_trace(loss=rows), rise_of_few)
    shown = [math.log(row + 0.05 * 2.0) for row in rows]
    bends = sorted(abs(a - 2 * b + c) for a, b, c in zip(shown, shown[1:], shown[2:], strict=False))
    noise = math.sqrt(sum(bend**2 for bend in bends[:-2]) / len(bends[:-2]) / 6)
    height = sum(shown[-3:]) / 3 - min(sum(shown[i : i + 3]) / 3 for i in range(8))
    assert (rise.way, rise.best, rise.onset) == ("few", 5, 8)
    assert rise.height == pytest.approx(height, abs=1e-3)
    leeway = 1 + 4.67 / (len(rows) - 6)
    assert rise.errors == pytest.approx(height / (noise * math.sqrt(2 / 3) * leeway), abs=0.01)


def test_few_rows_show_a_divergence_or_nothing() -> None:
    low = np.log(1.05) - 0.002 * np.arange(12)
    for rise, course_of in (
        (0.1, np.repeat([0, 1], [7, 5])),
        (0.2, np.clip(np.arange(12) / 4 - 1.5, 0, 1)),
    ):
        assert gravest(line_of(make_trace(loss=np.exp(low + rise * course_of) - 0.05))) is None


def test_blocks_of_single_rows_have_a_quarter_more_leeway() -> None:
    loss = np.append(falling_loss(400)[::30], np.full(12, 3.0))
    line, many = line_of(make_trace(loss=loss)), line_of(make_trace(loss=np.repeat(loss, 2)))
    few = figure(make_trace(loss=loss))
    expected = few.height / (0.82 * line.block_error) / (1 + 6 / loss.size) / 1.25
    assert few.errors == pytest.approx(expected, rel=2e-3)
    double = figure(make_trace(loss=np.repeat(loss, 2)))
    assert double.errors == pytest.approx(
        double.height / (0.82 * many.block_error) / many.leeway, rel=2e-3
    )


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("rows", [8, 11, 16, 29])
def test_few_equal_rows_exceed_the_limit_less_often_than_in_one_of_two_hundred(
    noise: str, rows: int
) -> None:
    rng = np.random.default_rng(rows)
    beyond = 0
    for _ in range(1000):
        level = 5.0 + 0.4 * NOISES[noise](rng, rows)
        rise = rise_of_few(line_of(make_trace(loss=np.exp(level))))
        beyond += rise is not None and rise.errors > USUAL.few_errors
    assert beyond <= 5


def test_the_gap_of_an_explosion_is_that_of_the_obvious_calculation() -> None:
    rows = [2.0, 0.5, 1.0, 1.5, 400.0, 900.0, 300.0, 5000.0, 700.0]
    shown = [math.log(row + 0.05 * 1.0) for row in rows]
    rise = figure(make_trace(loss=rows), explosion)
    assert (rise.way, rise.best, rise.onset) == ("gap", 3, 5)
    assert rise.errors == pytest.approx(math.log(300.05 / 2.05), abs=0.01)
    assert rise.height == pytest.approx(sum(shown[-3:]) / 3 - sum(shown[1:4]) / 3, abs=1e-3)
    told = gravest(line_of(make_trace(loss=rows)))
    assert told is not None
    assert told.way == "gap"
    less = gravest(line_of(make_trace(loss=[*rows[:4], *(row / 2 for row in rows[4:])])))
    assert less is None, "150 times, amid such noise"


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("rows", [8, 16, 29])
def test_equal_rows_of_any_noise_hardly_ever_lie_a_hundred_times_apart(
    noise: str, rows: int
) -> None:
    rng = np.random.default_rng(rows)
    beyond = 0
    for _ in range(1000):
        rise = explosion(line_of(make_trace(loss=np.exp(0.5 * NOISES[noise](rng, rows)))))
        beyond += rise is not None and rise.errors > EXPLODED
    assert beyond <= 2


@pytest.mark.parametrize("rows", [8, 9, 12, 20, 29, 30, 41, 400])
def test_a_run_that_explodes_after_its_first_row_is_told_in_a_log_of_any_length(rows: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        later = 2e4 * np.exp(np.linspace(0, 4, rows - 1) + rng.standard_normal(rows - 1))
        rise = gravest(line_of(make_trace(loss=np.append(0.2, later))))
        assert rise is not None
        assert rise.height > math.log(1e4)


def test_the_gap_before_the_last_rows_is_that_of_the_obvious_calculation() -> None:
    loss = ending(9.0, 4, 100)
    loss[:10] += 20  # the first tenth may lie higher
    line = line_of(make_trace(loss=loss))
    rise = explosion_at_end(line)
    assert rise is not None
    shown = [math.log(row + line.soft) for row in loss]
    before = sorted(shown[46:96])
    middle = (before[24] + before[25]) / 2
    off = sorted(abs(row - middle) for row in before)
    noise = max(line.noise, 1.4826 * (off[24] + off[25]) / 2)
    assert rise.errors == pytest.approx((min(shown[96:]) - max(shown[10:96])) / noise, abs=0.01)
    assert rise.height == pytest.approx(sorted(shown[97:])[1] - middle, abs=1e-3)
    assert (rise.way, rise.onset, rise.rows, rise.is_abrupt) == ("end", 97, 4, True)
    assert explosion_at_end(line_of(make_trace(loss=loss[:-2]))) is None


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("rows", [30, 60, 400])
def test_equal_rows_of_any_noise_hardly_ever_end_in_an_explosion(noise: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    beyond = 0
    for _ in range(500):
        rise = explosion_at_end(line_of(make_trace(loss=np.exp(0.5 * NOISES[noise](rng, rows)))))
        beyond += rise is not None
    assert beyond == 0


def test_a_few_losses_just_below_zero_count_as_zero_and_signed_ones_do_not() -> None:
    loss = falling_loss(400)
    loss[[7, 300]] = -1e-3
    assert line_of(make_trace(loss=loss)).losses.min() == 0
    loss[300] = -1.0
    assert line_of(make_trace(loss=loss)).losses.min() == -1
    loss[300:310] = -1e-3
    assert line_of(make_trace(loss=loss)).losses.min() < 0, "too many"


def test_outliers_among_the_first_losses_are_bounded_by_the_first_tenth() -> None:
    loss = falling_loss(400)
    loss[:2] = 5000
    early = np.median(loss[:40])
    assert line_of(make_trace(loss=loss)).soft == pytest.approx(0.05 * 10 * early)


def test_one_row_more_than_chance_brings_rises_unbroken_once_in_720_times() -> None:
    rng, runs = np.random.default_rng(0), 40_000
    rows = rng.random((runs, BY_CHANCE + 1))
    unbroken = (np.diff(rows, axis=1) > 0).all(axis=1).sum()
    assert unbroken == pytest.approx(runs / 720, rel=0.4)
    assert math.factorial(BY_CHANCE + 1) == 720
    assert figure(make_trace(loss=[3, 2, 1, 5, 4, 1, 2, 3, 4, 5, 6]), run_up).errors == 6


def test_one_or_two_low_rows_at_the_beginning_count_only_before_a_jump_to_twice_as_much() -> None:
    rng = np.random.default_rng(0)

    def climbing(share: float) -> np.ndarray:
        """A moving average that began with one low batch, or nearly none, after 14 others."""
        loss = 3 * np.exp(0.02 * rng.standard_normal(14))
        for i in range(14):
            loss[i] -= 2 * (1 - share) ** (i + 1)
        return np.append(1.0, loss)

    slow = gravest(line_of(make_trace(loss=climbing(0.1))))
    assert slow is None or slow.way != "first"
    fast = gravest(line_of(make_trace(loss=climbing(0.95))))
    assert fast is not None
    assert fast.way == "first"
    assert gravest(line_of(make_trace(loss=[1.5, *(1.001 * climbing(1.0)[1:])]))) is None


def test_a_rise_by_the_last_printed_digit_is_rounding() -> None:
    exact = 0.2 * (np.exp(course(0.12, low=-1.5)) - 0.05)
    coarse = np.round(exact, 2)
    assert 0 < coarse[-1] - coarse[13] < 0.015
    assert gravest(line_of(make_trace(loss=np.repeat(exact, 10)))) is not None
    assert gravest(line_of(make_trace(loss=np.repeat(coarse, 10)))) is None


def test_a_jump_begins_at_its_own_row_and_a_creep_where_the_best_block_ends() -> None:
    jump = gravest(line_of(make_trace(loss=jumping(2.0, at=237))))
    assert jump is not None
    assert jump.onset == 238
    creep = gravest(line_of(blocks(course(0.25, ramp=1.0))))
    assert creep is not None
    assert creep.onset == creep.low_step == 10 * (creep.best + 1)


def test_first_losses_that_explode_do_not_hide_the_rest_of_the_curve() -> None:
    loss = falling_loss(400)
    loss[1:4] = 6000, 4000, 900
    line = line_of(make_trace(loss=loss))
    assert line.soft == pytest.approx(0.05 * 3 * loss[0])
    assert [line.loss_at(level) for level in line.level] == pytest.approx(loss)
    usual = line_of(make_trace(loss=falling_loss(400)))
    assert usual.soft == pytest.approx(0.05 * np.median(falling_loss(400)[:3]))


@pytest.mark.parametrize("rows", [8, 9, 19, 20, 29, 30, 40, 41])
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e299])
def test_any_number_of_rows_of_any_scale_can_be_measured(rows: int, scale: float) -> None:
    loss = scale * np.concatenate((np.linspace(3, 1, rows - 4), np.full(4, 9.0)))
    line = line_of(make_trace(loss=loss))
    for of in (rise_of, rise_from_start, rise_of_few, run_up):
        rise = of(line)
        numbers = [] if rise is None else [x for x in rise if isinstance(x, float)]
        assert np.isfinite(numbers).all()
    assert gravest(line) is not None
    assert gravest(line_of(make_trace(loss=np.full(rows, scale)))) is None


def test_a_million_rows_take_a_few_hundredths_of_a_second() -> None:
    loss = np.geomspace(5, 1, 1_000_000) * np.random.default_rng(0).uniform(0.9, 1.1, 1_000_000)
    loss[600_000:] *= 3
    store = StepStore(2_000_000)
    store.extend(np.arange(1, 1_000_001), loss)
    line = curve(store.series())
    assert line is not None
    start = process_time()
    rise = gravest(line)
    took = process_time() - start
    print(f"{1000 * took:.0f} ms")
    assert rise is not None
    assert 0 <= rise.onset - 600_001 < 16, "a curve has 65 536 rows at most"
    assert took < 0.15
