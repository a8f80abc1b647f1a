"""Curves of more rows than their statistics look at one by one."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from optdoctor.curves.deviations import highest, norm_level
from optdoctor.curves.level import MOST_ROWS, bounded, curve
from optdoctor.curves.peaks import median
from optdoctor.curves.trend import WIDEST, trend
from optdoctor.engine import examine
from optdoctor.findings import Severity
from optdoctor.rules import gradient_outlier, loss_spike
from optdoctor.store import Series, StepStore
from optdoctor.synthetic import falling_loss, gradient_norms
from optdoctor.trace import Recorder, Trace

Floats = NDArray[np.float64]
MILLION = 1_000_000
STEPS = np.arange(1, MILLION + 1)


@cache
def losses() -> Floats:
    return falling_loss(MILLION)


@cache
def norms() -> Floats:
    return gradient_norms(MILLION)


def whole(values: Floats) -> Series:
    """A series of all rows."""
    store = StepStore(capacity=2 * MILLION)
    store.extend(STEPS[: len(values)], values)
    return store.series()


def as_whole(channel: str, values: Floats) -> Trace:
    return Trace(series={channel: whole(values)})


def as_recorded(channel: str, values: Floats) -> Trace:
    recorder = Recorder()
    recorder.extend(channel, STEPS[: len(values)], values)
    return recorder.trace({})


HELD = pytest.mark.parametrize("held", [as_whole, as_recorded])


@HELD
@pytest.mark.parametrize("at", [123_457, 500_000, 987_654])
def test_one_norm_of_twenty_times_the_usual_in_a_million_is_found_at_its_step(
    held: Callable[[str, Floats], Trace], at: int
) -> None:
    values = norms().copy()
    assert examine(gradient_outlier.RULE, held("grad_norm", values)).findings == ()
    values[at] *= 20
    (finding,) = examine(gradient_outlier.RULE, held("grad_norm", values)).findings
    assert (finding.severity, finding.steps[0]) == (Severity.WARN, at + 1)
    assert f"at step {at + 1}" in finding.summary


@HELD
@pytest.mark.parametrize("at", [123_457, 500_000, 987_654])
def test_five_losses_of_half_as_much_again_in_a_million_are_found_at_their_step(
    held: Callable[[str, Floats], Trace], at: int
) -> None:
    values = losses().copy()
    assert examine(loss_spike.RULE, held("loss", values)).findings == ()
    values[at : at + 5] *= 1.5
    (finding,) = examine(loss_spike.RULE, held("loss", values)).findings
    first = finding.steps[0]
    assert at + 1 <= first <= at + 5
    assert f"at step {first}" in finding.summary


def test_what_is_looked_at_of_a_long_series_is_what_a_recorder_keeps() -> None:
    values = losses().copy()
    values[[7, 400_001, 400_002]] = np.nan, np.inf, -np.inf
    ours, kept = bounded(whole(values)), as_recorded("loss", values).series["loss"]
    for name in Series.__slots__:
        assert np.array_equal(getattr(ours, name), getattr(kept, name), equal_nan=True), name
    assert bounded(kept) is kept


def test_long_curves_have_a_bounded_number_of_rows_and_all_peaks() -> None:
    values = losses().copy()
    values[654_321] = 1e6
    line, peaks = curve(whole(values)), curve(highest(whole(values)))
    assert line is not None
    assert peaks is not None
    assert line.steps.size == peaks.steps.size <= MOST_ROWS
    assert peaks.losses.max() == 1e6
    assert peaks.steps[peaks.losses.argmax()] == 654_322
    rows, level = norm_level(whole(values))
    assert level.max() == pytest.approx(np.log(1e6))
    assert rows.high_step[level.argmax()] == 654_322


def test_rows_that_were_thinned_already_are_thinned_further() -> None:
    store = StepStore(capacity=4 * MOST_ROWS)
    values = losses().copy()
    values[654_321] = 1e6
    store.extend(STEPS, values)
    held = bounded(store.series())
    assert held.steps.size <= MOST_ROWS
    assert held.rows == MILLION
    assert held.high_step[np.nanargmax(held.high)] == 654_322


@pytest.mark.parametrize("half_width", [3, 500, WIDEST // 2])
def test_a_trend_is_that_of_all_rows_up_to_the_widest_window(half_width: int) -> None:
    values = np.random.default_rng(0).standard_normal(20_001)
    apart = max(2 * half_width // 8, 1)
    at = 10_000 // apart * apart  # a row at which it is computed
    middle = slice(at - half_width, at + half_width + 1)
    assert trend(values, half_width)[at] == np.median(values[middle])


@pytest.mark.parametrize("period", [3, 5, 8, 10, 13, 64, 250])
def test_the_trend_of_wide_windows_is_near_and_no_period_hides_in_it(period: int) -> None:
    rng = np.random.default_rng(period)
    rows = 60_000
    values = 0.2 * rng.standard_normal(rows) + (np.arange(rows) % period == 0)
    slow = trend(values, WIDEST)
    exact = [np.median(values[at - WIDEST : at + WIDEST + 1]) for at in range(8192, 50_000, 1024)]
    assert np.abs(slow[8192:50_000:1024] - exact).max() < 0.05
    assert (slow[0], slow[-1]) == (values[0], values[-1])


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 255, 256, 257, 4000, WIDEST])
def test_the_median_is_that_of_numpy(rows: int) -> None:
    values = np.random.default_rng(rows).standard_normal(rows)
    assert median(values) == np.median(values)


def test_the_median_of_many_rows_is_near_that_of_a_sample() -> None:
    values = np.random.default_rng(0).standard_normal(10 * WIDEST)
    assert abs(median(values) - np.median(values)) < 0.1
