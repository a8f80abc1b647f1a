"""The statistics of evaluations, against slow and obvious twins and on made-up healthy courses."""

import math
from itertools import permutations
from time import process_time

import numpy as np
import pytest
from numpy.typing import NDArray

from optdoctor.curves.evaluations import ENOUGH, evaluations, turn
from optdoctor.engine import examine
from optdoctor.findings import Severity
from optdoctor.rules.bimodal_gap import RULE
from optdoctor.synthetic import make_trace

Floats = NDArray[np.float64]


def course(count: int, rng: np.random.Generator) -> Floats:
    """[count]: healthy evaluations that fall or have converged, in noise of 0.3 to 10 %."""
    t, kind = np.arange(1, count + 1) / count, rng.integers(4)
    clean = (
        rng.uniform(0.5, 2) + rng.uniform(0.5, 3) * (count * t) ** -rng.uniform(0.3, 1),
        rng.uniform(0.1, 0.8) + rng.uniform(0.3, 2) * np.exp(-rng.uniform(2, 9) * t),
        rng.uniform(0.4, 1) + rng.uniform(0.3, 2) * np.exp(-rng.uniform(9, 40) * t),
        rng.uniform(0.3, 2) * (1 - rng.uniform(0, 0.1) * t),
    )[kind]
    noise = rng.standard_normal(count) if rng.random() < 0.6 else rng.standard_t(3, count) / 1.3
    if rng.random() < 0.25:  # it wanders
        noise = np.convolve(rng.standard_normal(count + 2), np.ones(3) / math.sqrt(3), "valid")
    return np.asarray(clean * np.exp(10 ** rng.uniform(-2.5, -1) * np.clip(noise, -6, 6)))


def falling(count: int, rng: np.random.Generator) -> Floats:
    """[count]: a training loss of a row an epoch."""
    t = np.arange(1, count + 1) / count
    clean = rng.uniform(0.02, 0.5) + rng.uniform(0.5, 2) * np.exp(-rng.uniform(1.5, 6) * t)
    return np.asarray(clean * np.exp(0.005 * rng.standard_normal(count)))


def is_warned(loss: Floats, evaluated: Floats) -> bool:
    found = examine(RULE, make_trace(loss=loss, eval_loss=evaluated)).findings
    return any(finding.severity is not Severity.NOTE for finding in found)


def test_healthy_courses_of_any_length_hardly_ever_warn() -> None:
    """In 1,500 of each length 0 to 0.7 % did, 0.3 % of all."""
    rng = np.random.default_rng(11)
    lengths = [4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 30, 40, 80]
    alarms = {
        n: sum(is_warned(falling(n, rng), course(n, rng)) for _ in range(60)) for n in lengths
    }
    assert sum(alarms.values()) <= 6, alarms


@pytest.mark.parametrize(
    ("count", "rise", "least"), [(5, 0.8, 0.4), (8, 0.4, 0.7), (12, 0.2, 0.6), (20, 0.1, 0.3)]
)
def test_an_overfit_of_that_dose_is_found(count: int, rise: float, least: float) -> None:
    """The last dose rises by 10 % at most, and what rises by less than 5 % is a note."""
    rng = np.random.default_rng(3)
    t = np.arange(1, count + 1) / count
    found = 0
    for _ in range(40):
        bend = rng.uniform(0.25, 0.6)
        clean = rng.uniform(0.3, 1) + rng.uniform(0.3, 1.5) * np.exp(-rng.uniform(4, 9) * t)
        late = np.exp(rise * np.maximum(t - bend, 0) / (1 - bend))
        evaluated = clean * late * np.exp(0.005 * rng.standard_normal(count))
        found += is_warned(falling(count, rng), evaluated)
    assert found >= least * 40


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_the_chance_of_an_order_is_the_share_of_all_orders(count: int) -> None:
    def wrong(order: tuple[int, ...]) -> int:
        return sum(a > b for i, a in enumerate(order) for b in order[i + 1 :])

    orders = list(permutations(range(1, count + 1)))
    for order in orders[:: max(len(orders) // 20, 1)]:
        as_good = sum(wrong(other) <= wrong(order) for other in orders) / len(orders)
        found = turn(np.array([9.0, 0.0, *order], np.float64))
        assert found.chance == pytest.approx(as_good, abs=1e-4)


@pytest.mark.parametrize("count", [6, 9, 10, 23, 57])
def test_the_error_of_a_rise_is_that_of_the_obvious_calculation(count: int) -> None:
    rng = np.random.default_rng(count)
    late = np.maximum(np.arange(count) / count - 0.5, 0)
    level = np.exp(-np.arange(count) / 3) + 0.5 * late + 0.01 * rng.standard_normal(count)

    def spread(rows: list[float], weight: int) -> float:
        return 1.4826 * float(np.median(np.abs(rows))) / math.sqrt(weight)

    if count < ENOUGH:
        bends = [level[i - 1] - 2 * level[i] + level[i + 1] for i in range(1, count - 1)]
        noise, low = spread(bends, 6), min(level)
    else:
        means = [np.mean(level[max(i - 1, 0) : i + 2]) for i in range(count)]
        noises, low = [], min(means)
        for d in (1, 2, 4):
            if d <= count // 10:
                rows = [
                    level[i] - 3 * level[i + d] + 3 * level[i + 2 * d] - level[i + 3 * d]
                    for i in range(count - 3 * d)
                ]
                noises.append(spread(rows, 20))
        noise = max(noises)
    tail = max(3, count // 8)
    rise = float(np.median(level[-tail:]) - low)
    expected = rise / (noise * math.sqrt(1 / 3 + 1 / tail)) / (1 + 4 / count)
    found = turn(level)
    assert found.height == pytest.approx(rise, abs=6e-4)
    assert found.errors == pytest.approx(expected, rel=1e-3, abs=0.01)


def test_figures_are_rounded_so_that_what_is_printed_was_judged() -> None:
    rng = np.random.default_rng(0)
    trace = make_trace(loss=falling(40, rng), eval_loss=course(40, rng))
    found = evaluations(trace.series["eval_loss"], trace.series["loss"], None)
    assert found is not None
    shown = {"soft", "low", "end"}  # levels, which nothing is judged by
    for name, value in (found._asdict() | found.turn._asdict()).items():
        if isinstance(value, float) and name not in shown:
            assert value == round(value, 4), name


def test_a_wandering_course_has_a_larger_error_than_its_neighbours_show() -> None:
    rng = np.random.default_rng(5)
    ratios = []
    for _ in range(30):
        white = 0.02 * rng.standard_normal(80)
        slow = np.zeros(80)
        for i in range(1, 80):
            slow[i] = 0.9 * slow[i - 1] + white[i] * math.sqrt(1 - 0.81)
        alike = turn(slow + np.linspace(0, 0.2, 80)), turn(white + np.linspace(0, 0.2, 80))
        ratios.append(alike[0].errors / alike[1].errors)
    assert np.median(ratios) < 2.2, "its neighbours alone would show a third of the noise"


def test_as_many_evaluations_as_a_recorder_keeps_take_no_time() -> None:
    level = np.random.default_rng(0).standard_normal(65_536)
    start = process_time()
    turn(level)
    assert process_time() - start < 0.15
