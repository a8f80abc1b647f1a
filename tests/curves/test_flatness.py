"""Bounds of what a flat curve can have fallen, against slow and obvious calculations."""

import math
from itertools import permutations

import numpy as np
import pytest

from optdoctor.curves import flatness
from optdoctor.curves.level import Curve, Floats, curve
from optdoctor.synthetic import make_trace

N = 400
T = np.arange(N) / N


def line(loss: Floats) -> Curve:
    found = curve(make_trace(loss=loss).series["loss"])
    assert found is not None
    return found


def noisy(clean: Floats, noise: float = 0.02, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    return np.asarray(clean * np.exp(noise * rng.standard_normal(clean.size)))


@pytest.mark.parametrize("fall", [0.0, 0.03])
def test_the_upper_bound_holds_and_is_near(fall: float) -> None:
    clean = 3 * np.exp(-fall * (T > 0.3))
    found = [flatness.from_the_start(line(noisy(clean, seed=seed))) for seed in range(100)]
    upper = np.array([one.upper for one in found])
    true = fall / 1.05  # a twentieth of the first losses is added before the logarithm
    assert (upper > true).mean() >= 0.95
    assert np.median(upper) < true + 0.03


def test_a_steady_decline_within_the_noise_of_a_row_is_one() -> None:
    declining = noisy(3 * np.exp(-0.03 * T))
    assert flatness.from_the_start(line(declining)).declines
    flat = [flatness.from_the_start(line(noisy(np.full(N, 3.0), seed=s))) for s in range(100)]
    assert np.mean([one.declines for one in flat]) <= 0.02


def test_a_small_steady_decline_is_told_by_its_slope() -> None:
    long = [
        flatness.from_the_start(line(noisy(3 * np.exp(-0.018 * T), seed=s))) for s in range(100)
    ]
    assert np.mean([one.declines for one in long]) > 0.75
    assert np.mean([one.fall >= 3 * one.error for one in long]) < 0.7


def test_what_declines_or_begins_in_mid_run_is_not_said_to_hardly_fall() -> None:
    for clean, is_told in ((np.full(N, 3.0), True), (3 * np.exp(-0.03 * T), False)):
        curve_ = line(noisy(clean))
        found = flatness.from_the_start(curve_)
        assert flatness.hardly_falls(curve_, found, 0.5) is is_told
    late = make_trace(loss=noisy(np.full(N, 3.0)), steps={"loss": 9000 + np.arange(N)})
    curve_ = curve(late.series["loss"])
    assert curve_ is not None
    assert not flatness.hardly_falls(curve_, flatness.from_the_start(curve_), 0.5)


def test_a_fast_early_fall_is_added_to_the_bound() -> None:
    early = np.full(N, 3.0)
    early[:4] += [1.0, 0.6, 0.3, 0.1]
    assert flatness.from_the_start(line(early)).upper > 0.1
    exploded = np.full(N, 3.0)
    exploded[1:6] = [900, 500, 90, 30, 9]
    assert flatness.from_the_start(line(exploded)).upper < 0.02


def test_a_drop_in_the_last_rows_is_seen() -> None:
    dropped = noisy(np.full(N, 3.0), 0.005)
    assert not flatness.drops_at_the_end(line(dropped), 0.0)
    dropped[-30:] *= 0.9
    assert flatness.drops_at_the_end(line(dropped), 0.05)
    assert not flatness.drops_at_the_end(line(dropped), 0.2)
    assert flatness.from_the_start(line(dropped)).fall > 0.05


def test_noise_that_would_hide_a_fast_fall_is_no_flatness() -> None:
    for noise, is_told in ((0.02, True), (0.5, False)):
        curve_ = line(noisy(np.full(N, 3.0), noise))
        found = flatness.from_the_start(curve_)
        assert flatness.hardly_falls(curve_, found, 1.0) is is_told


def test_a_flat_tail_begins_where_the_fall_ends() -> None:
    tail = flatness.flat_tail(line(noisy(2 + np.exp(-60 * T), 0.002)), 0.01)
    assert tail is not None
    assert 2 <= tail.block <= 6
    assert tail.late < 0.01
    assert flatness.flat_tail(line(2 + 0.5 * np.exp(-3 * T)), 0.01) is None
    assert flatness.flat_tail(line(np.full(N, 2.0)), 0.01) is None


def test_the_last_decimal_place_is_told() -> None:
    assert flatness.quantum(np.array([2.5, 2.0])) == 0.1
    assert flatness.quantum(np.array([2.5, 2.031])) == 0.001
    assert flatness.quantum(np.array([2.5, math.pi])) == 0.0


def test_the_range_of_a_handful_counts_the_step_of_the_log() -> None:
    found = flatness.few(np.full(9, 0.5))
    assert found is not None
    assert found.spread == 0.2
    assert flatness.few(np.array([1.0, 0.0, 1.0])) is None


def brute_chance(values: Floats) -> float:
    """Share of all orders with at least so many falling pairs, ties of the values as half."""

    def falling(order: Floats) -> float:
        pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
        return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs)

    ranks = np.arange(float(len(values)))
    return float(np.mean([falling(np.array(o)) >= falling(values) for o in permutations(ranks)]))


@pytest.mark.parametrize(
    "values", [[5, 4, 3, 2, 1], [1, 2, 3, 4, 5], [3, 3, 3, 3], [4, 2, 3, 1, 0], [2, 2, 1, 0]]
)
def test_the_chance_of_an_order_is_exact(values: list[float]) -> None:
    order = np.array(values, np.float64)
    assert flatness.chance_of_falling(order) == pytest.approx(brute_chance(order))


def test_another_series_that_moves_is_told_from_one_that_swings() -> None:
    series = make_trace(loss=np.linspace(3, 1, 40)).series["loss"]
    before, after, errors = flatness.change(series, 1, 40) or (0, 0, 0)
    assert before > 2.5
    assert after < 1.5
    assert errors < -10
    rng = np.random.default_rng(0)
    swings = make_trace(loss=rng.standard_normal(200)).series["loss"]
    found = flatness.change(swings, 1, 200)
    assert found is not None
    assert abs(found[2]) < 3
    assert flatness.change(series, 1, 5) is None
