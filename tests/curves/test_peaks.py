"""Where a peak begins, ends and is back."""

import numpy as np
import pytest
from numpy.typing import NDArray

from optdoctor.curves.peaks import Spike, peaks_of

Floats = NDArray[np.float64]
SIDE = 64


def peaks(values: Floats) -> list[Spike]:
    """Above a base of 0 with a standard deviation of 0.1."""
    rows = len(values)
    return peaks_of(values, values, np.zeros(rows), np.full(rows, 0.1), SIDE, 0.5)


def raised(rows: int, at: int, width: int) -> Floats:
    values = np.zeros(rows)
    values[at : at + width] = 1
    return values


@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 33, 80, 81, 400])
@pytest.mark.parametrize("top", ["first", "middle", "last"])
def test_a_peak_of_any_width_is_one(width: int, top: str) -> None:
    values = raised(1200, 500, width)
    at = {"first": 500, "middle": 500 + width // 2, "last": 499 + width}[top]
    values[at] = 1.5
    (spike,) = peaks(values)
    assert (spike.first, spike.last, spike.rows) == (500, 499 + width, width)
    assert (spike.top, spike.back, spike.before) == (at, 500 + width, 0)
    assert (spike.height, spike.deviations) == (1.5, pytest.approx(15))


def test_one_row_without_it_does_not_break_a_peak_and_two_do() -> None:
    values = raised(200, 100, 9)
    values[104] = 0
    (spike,) = peaks(values)
    assert (spike.first, spike.last, spike.rows, spike.back) == (100, 108, 8, 109)
    values[105] = 0
    assert sorted((s.first, s.last) for s in peaks(values)) == [(100, 103), (106, 108)]


@pytest.mark.parametrize("top", [0, 50, 99])
def test_the_row_without_may_be_any(top: int) -> None:
    for gap in range(1, 99):
        values = raised(400, 200, 100)
        values[200 + gap], values[200 + top] = 0, 1.5
        (spike,) = peaks(values)
        assert (spike.first, spike.last, spike.rows) == (200, 299, 100 - (gap != top)), gap


@pytest.mark.parametrize("width", [1, 5, 16, 17, 64, 80, 81, 150, 200])
def test_a_peak_up_to_the_end_or_from_the_start_on_has_no_side(width: int) -> None:
    values = raised(200, 200 - width, width)
    values[200 - width] = 1.5
    assert peaks(values) == []
    assert peaks(values[::-1].copy()) == []


@pytest.mark.parametrize("later", [2, 63, 64, 65, 250])
def test_it_is_back_below_a_third_of_its_height_however_long_that_takes(later: int) -> None:
    values = raised(1000, 400, 5)
    values[405 : 405 + later] = 0.4
    (spike,) = peaks(values)
    assert (spike.first, spike.last, spike.back) == (400, 404, 405 + later)


@pytest.mark.parametrize("end", [0.4, 0.6, 1.0])
def test_what_never_comes_back_is_none(end: float) -> None:
    values = raised(1000, 400, 5)
    values[405:] = end
    assert peaks(values) == []


@pytest.mark.parametrize(("at", "found"), [(2, 0), (3, 1), (95, 1), (96, 1), (97, 0)])
def test_three_rows_are_needed_on_each_side(at: int, found: int) -> None:
    assert len(peaks(raised(100, at, 1))) == found


@pytest.mark.parametrize(
    ("at", "width", "found"),
    [(59, 20, 0), (60, 20, 1), (99, 34, 0), (100, 34, 1), (150, 150, 1), (150, 151, 0)],
)
def test_before_a_peak_there_are_as_many_rows_and_early_ones_three_times_as_many(
    at: int, width: int, found: int
) -> None:
    assert len(peaks(0.68 * raised(1000, at, width))) == found
    assert len(peaks(0.7 * raised(1000, at, width))) == 1


def test_the_highest_two_hundred_are_looked_at() -> None:
    values = np.zeros(6000)
    values[10::20] = np.linspace(0.6, 1, 300)
    assert [spike.top for spike in sorted(peaks(values))] == list(range(2010, 6000, 20))
