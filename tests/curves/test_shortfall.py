"""What a curve owes to its own course, on courses that are known."""

import numpy as np
import pytest

from optdoctor.curves.level import Curve, Floats, curve
from optdoctor.curves.shortfall import _fitted, shortfall, spent
from optdoctor.synthetic import make_trace

N = 400
STEPS = np.arange(1, N + 1)
T = STEPS / N
COURSES = {
    "logarithm": 4.0 * STEPS**-0.12,
    "power": 2.0 + 3.0 * STEPS**-0.5,
    "exponential": 0.5 + 2.0 * np.exp(-5 * T),
    "linear": 3.0 - 1.5 * T,
}


def line(loss: Floats, steps: Floats | None = None) -> Curve:
    at = {} if steps is None else {"loss": steps}
    found = curve(make_trace(loss=loss, steps=at).series["loss"])
    assert found is not None
    return found


def noisy(clean: Floats, seed: int, noise: float = 0.02) -> Floats:
    rng = np.random.default_rng(seed)
    return np.asarray(clean * np.exp(noise * rng.standard_normal(clean.size)))


def margin(loss: Floats, steps: Floats | None = None) -> float:
    found = shortfall(line(loss, steps))
    return found.margin if found else -1.0


def stopped(clean: Floats, at: float = 0.3) -> Floats:
    return np.where(at < T, clean[int(at * N)], clean)


@pytest.mark.parametrize("name", COURSES)
def test_a_curve_that_keeps_its_course_owes_nothing(name: str) -> None:
    margins = [margin(noisy(COURSES[name], seed)) for seed in range(20)]
    assert np.mean(np.array(margins) >= 1.0) <= 0.05


@pytest.mark.parametrize("name", ["logarithm", "exponential", "linear"])
@pytest.mark.parametrize("at", [0.2, 0.3])
def test_a_stop_is_found_where_it_was(name: str, at: float) -> None:
    found = [shortfall(line(noisy(stopped(COURSES[name], at), s, 0.01))) for s in range(10)]
    sure = [one for one in found if one is not None and one.margin >= 1.2]
    assert len(sure) >= 7
    assert abs(np.median([one.block for one in sure]) / 40 - at) < 0.08


def test_what_is_missing_is_what_the_course_would_have_brought() -> None:
    found = shortfall(line(stopped(COURSES["logarithm"])))
    assert found is not None
    assert found.missing == pytest.approx(0.12 * np.log(1 / 0.3), rel=0.25)
    assert found.came == pytest.approx(0, abs=0.02)


def test_a_steep_fall_from_a_shelf_promises_nothing() -> None:
    shelf = 0.5 + 2.0 / (1 + np.exp(60 * (T - 0.4)))
    assert margin(noisy(shelf, 0)) < 1


@pytest.mark.parametrize("pace", [8, 10, 15])
def test_a_loss_that_converges_exponentially_keeps_its_course(pace: float) -> None:
    margins = [margin(noisy(0.7 + 2 * np.exp(-pace * T), seed, 0.01)) for seed in range(9)]
    assert np.median(margins) < 1.2


def test_a_course_is_one_of_steps_and_not_of_rows() -> None:
    steps = np.unique(np.geomspace(1, 100_000, 300).astype(np.int64))
    assert margin(4.0 * steps.astype(float) ** -0.12, steps) < 1


@pytest.mark.parametrize("first", [0, 1, 10**9])
def test_steps_may_begin_anywhere(first: int) -> None:
    assert np.isfinite(margin(stopped(COURSES["exponential"]), first + np.arange(N)))


def test_the_scale_of_the_loss_does_not_matter() -> None:
    loss = noisy(stopped(COURSES["exponential"]), 0, 0.01)
    found = [margin(scale * loss) for scale in (1e-200, 1.0, 1e200)]
    assert found == pytest.approx([found[1]] * 3, abs=0.002)


def test_what_rose_again_or_is_solved_is_not_asked() -> None:
    assert shortfall(line(2 * np.exp(0.5 * T))) is None
    assert shortfall(line(2 * np.exp(-9 * T))) is None


def test_the_fits_are_those_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    courses, blocks = rng.standard_normal((3, 20)), rng.standard_normal(20)
    fits, errors = _fitted(courses, blocks, slice(2, 11))
    for form, fit, error in zip(courses, fits, errors, strict=True):
        scale, height = np.polyfit(form[2:11], blocks[2:11], 1)
        assert fit == pytest.approx(height + scale * form)
        assert error == pytest.approx(((fit - blocks)[2:11] ** 2).sum())


def test_a_spent_rate_is_told_with_what_came_after_it() -> None:
    rate = np.where(T < 0.3, 1.0, 1e-3)
    kept = spent(line(COURSES["logarithm"]), rate, 0.15)
    ended = spent(line(stopped(COURSES["logarithm"])), rate, 0.15)
    assert kept is not None
    assert ended is not None
    assert kept.share == ended.share == 0.7025
    assert kept.falling
    assert ended.falling
    assert kept.came > 0.7
    assert ended.came < 0.2
    assert ended.still == ended.row == 119
    assert spent(line(COURSES["linear"]), np.ones(N), 0.15) is None
