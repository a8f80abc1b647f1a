"""What the contract cannot know of `learning-rate-spent`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.curves.level import curve
from optdoctor.curves.shortfall import came_since
from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.learning_rate_spent import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

PEAK = 1.0
X = np.arange(1000) / 1000
COSINE = 0.5 * (1 + np.cos(np.pi * X))
LINE = 1 - X


def run(rates: Any, **facts: Any) -> Trace:
    return make_trace(lr=np.asarray(rates, float), **facts)


def printed(rates: Any, decimals: int) -> Trace:
    """The same, read from a log that prints so many decimals."""
    return replace(run(np.round(rates, decimals)), reader="csv-table")


def line(rows: int) -> list[float]:
    """The peak, held for a while, and a line down to 4 % of it."""
    return [PEAK] * 20 + list(np.linspace(PEAK, 0.04, rows - 20))


def ending(rows: int, rate: float, **facts: Any) -> Trace:
    """A line down to 4 % of the peak, then this rate for the last of 100 rows."""
    return run([*line(100 - rows), *[rate] * rows], **facts)


def dropped_at(row: int, to: float = 0.01) -> Trace:
    """The peak until that row of 100, then at once that rate."""
    return run([PEAK] * row + [to] * (100 - row))


def cut_twice(factor: float) -> Trace:
    return run([PEAK] * 15 + [0.25] * 15 + [0.25 / factor] * 70)


def beside(loss: Any, cut: int = 120, to: float = 0.01) -> Trace:
    """The rate is cut at that row of the loss."""
    rates = np.where(np.arange(len(loss)) < cut, PEAK, to)
    return make_trace(loss=loss, lr=rates)


def stopped(fall: float, cut: int = 120, rows: int = 400) -> Any:
    """A power law that falls by this at that row, in the logarithm, and stands there."""
    loss = 4.0 * np.arange(1, rows + 1) ** -0.2
    loss[cut:] = loss[cut - 1] * np.exp(-fall)
    return loss


def paid(came: float) -> Trace:
    """Of the fall that was due when the rate was cut just this share comes, and at once."""
    low, high = 0.0, 1.0
    while True:
        trace = beside(stopped((low + high) / 2))
        line = curve(trace.series["loss"])
        assert line is not None
        found = came_since(line, 120)
        assert found is not None
        if found == came:
            return trace
        low, high = ((low + high) / 2, high) if found < came else (low, (low + high) / 2)


def planned_zero(row: int) -> Trace:
    """The first 84 of 100 planned rows, without a sudden drop; the rate is 0 from that row on."""
    return run([*line(row - 2), 0.02, *[0.0] * (85 - row)], total_steps=100)


def zero_at_last(rows: int) -> Trace:
    """100 rows, half of them spent, the last of those at exactly 0."""
    return run([*line(50), *[0.01] * (50 - rows), *[0.0] * rows])


BELOW = float(np.nextafter(0.03, 0))


def cut_to(rate: float) -> Trace:
    """Milestones, the last of them after half of the run."""
    return run([PEAK] * 30 + [0.1] * 10 + [0.01] * 10 + [rate] * 50)


def glide_to(rows: int) -> Trace:
    """An exponential that is under a thousandth of the peak in this many of 100 rows."""
    rates = np.array([PEAK] * 10 + [1e-3 ** (i / (89 - rows)) for i in range(90)])
    rates[99 - rows] = 1e-3
    return run(rates)


AT_LIMIT = {
    "chosen": (
        lambda: cut_to(1e-3),
        lambda: cut_to(float(np.nextafter(1e-3, 0))),
    ),
    "share of a chosen rate": (lambda: glide_to(20), lambda: glide_to(21)),
    "spent": (lambda: ending(60, 0.03), lambda: ending(60, BELOW)),
    "share": (
        lambda: ending(20, 0.02, total_steps=400),
        lambda: ending(21, 0.02, total_steps=400),
    ),
    "share of the plan": (lambda: planned_zero(81), lambda: planned_zero(80)),
    "share at exactly 0": (lambda: zero_at_last(20), lambda: zero_at_last(21)),
    "ahead": (lambda: dropped_at(50), lambda: dropped_at(49)),
    "ahead of a rate of 0": (lambda: dropped_at(50, 0.0), lambda: dropped_at(49, 0.0)),
    "paid": (lambda: paid(1.0), lambda: paid(0.999)),
    "drop": (
        lambda: cut_twice(20.0),
        lambda: cut_twice(float(np.nextafter(20.0, 21) * (1 + 1e-15))),
    ),
    "passing": (
        lambda: run([PEAK] * 60 + [0.0] * 2, total_steps=200),
        lambda: run([PEAK] * 60 + [0.0] * 3, total_steps=200),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


@pytest.mark.parametrize(
    "rates",
    [
        COSINE,
        LINE,
        LINE**2,
        np.minimum(X * 10, 1) * COSINE,
        np.minimum(1, (1 - X) * 10),
        np.tile(COSINE[::4], 4)[:-40],
        np.repeat([1.0, 0.1, 0.01, 0.001], 250),
        1.0 / np.sqrt(1 + np.arange(1000)),
        np.full(1000, 1e-3),
        np.linspace(1e-6, 1e-3, 1000),
    ],
    ids=[
        "cosine",
        "line",
        "parabola",
        "warm-up",
        "stable-decay",
        "restarts",
        "milestones",
        "root",
        "constant",
        "rise",
    ],
)
def test_a_usual_schedule_is_silent(rates: Any) -> None:
    assert status(run(rates)) is Status.CLEAR
    assert status(run(rates, total_steps=1000)) is Status.CLEAR
    assert status(printed(rates, 8)) is Status.CLEAR


def test_the_documented_shares_of_usual_schedules_are_true() -> None:
    assert np.mean(COSINE < 0.03) == pytest.approx(0.11, abs=0.005)
    assert np.mean(LINE < 0.03) == pytest.approx(0.03, abs=0.005)
    assert np.mean(LINE**2 < 0.03) == pytest.approx(0.17, abs=0.005)


def test_a_schedule_that_ends_at_half_of_the_run_is_critical_once_it_is_0() -> None:
    rates = np.maximum(1 - 2 * X, 0)
    finding = only_finding(run(rates))
    assert finding.severity is Severity.CRITICAL
    assert finding.steps == (490, 1000)


def test_a_rate_that_is_0_is_called_so_from_its_first_step() -> None:
    sudden = only_finding(run([PEAK] * 50 + [0.0] * 50))
    assert sudden.summary.startswith("The learning rate is 0 from step 51 to step 100: 50 % of")
    slow = only_finding(run([*line(50), *[0.01] * 10, *[0.0] * 40])).summary
    assert "below 3 % of its peak from step 51 on, and 0 from step 61 to step 100: 40 % of" in slow
    planned = only_finding(planned_zero(80)).summary
    assert "to step 84: 21 % of 100 steps were still to come (limit 20 %)." in planned
    low = only_finding(run([PEAK] * 40 + [0.01] * 60)).summary
    assert low.startswith("The learning rate is below 3 % of its peak from step 41 to step 100")


def test_a_small_rate_that_is_not_0_is_a_warning_unless_the_loss_falls_on() -> None:
    finding = only_finding(beside(stopped(-0.1)))
    assert finding.severity is Severity.WARN
    assert finding.summary.endswith(": 70 % of 400 steps were still to come (limit 50 %).")
    assert [(e.channel, e.observed) for e in finding.evidence] == [("lr", 70.0), ("loss", 0.0)]
    assert status(beside(stopped(0.3))) is Status.CLEAR


def test_a_milestone_or_a_cooldown_after_half_of_the_run_is_silent() -> None:
    """A hundredth of the rate from 2/3 on; a cosine to a hundredth and as long at it again."""
    assert status(beside(stopped(0.0, 267), 267)) is Status.CLEAR
    cosine = 0.01 + 0.99 * COSINE[::5]
    cooled = np.concatenate([cosine, np.full(150, 0.01)])
    assert status(make_trace(loss=stopped(0.0, 200, 350), lr=cooled)) is Status.CLEAR


def test_with_a_plan_a_rate_of_0_is_told_at_once() -> None:
    rates = np.maximum(1 - 2 * X, 0)[:505]
    assert status(run(rates)) is Status.CLEAR
    finding = only_finding(run(rates, total_steps=1000))
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (488, 505))
    assert finding.evidence[0].observed == pytest.approx(50)
    assert status(run(rates, total_steps=600)) is Status.CLEAR


def test_one_step_more_of_a_run_resumed_at_its_end_is_silent() -> None:
    assert status(run([*COSINE, 0.0])) is Status.CLEAR


def test_a_rate_of_0_for_less_than_half_of_the_run_is_a_warning() -> None:
    cooled = np.concatenate([COSINE[::5], np.zeros(100)])
    assert only_finding(run(cooled)).severity is Severity.WARN


def test_a_rate_that_rises_again_is_not_spent() -> None:
    assert status(run([PEAK] * 100 + [0.0] * 300 + [PEAK] * 100)) is Status.CLEAR


def test_a_log_that_rounds_its_rates_is_not_taken_at_its_word() -> None:
    coarse = printed(COSINE * 2e-4, 4)
    assert not coarse.series["lr"].values[-300:].any()
    assert status(coarse) is Status.ABSTAINED
    assert status(printed(COSINE * 5e-4, 4)) is Status.ABSTAINED
    assert status(printed([1e-3] * 50 + [0.0] * 50, 3)) is Status.ABSTAINED


def test_a_log_with_enough_decimals_is_judged() -> None:
    assert only_finding(printed(np.maximum(1 - 2 * X, 0) * 1e-3, 8)).severity is Severity.CRITICAL


def test_rates_watched_from_inside_are_exact() -> None:
    trace = run([1e-3] * 49 + [0.0] * 51)
    assert only_finding(trace).severity is Severity.CRITICAL
    assert only_finding(replace(trace, reader="run-record")).severity is Severity.CRITICAL


def test_a_rate_that_was_always_0_has_no_peak() -> None:
    assert status(run([0.0] * 100)) is Status.ABSTAINED


def test_rows_without_a_rate_are_left_out() -> None:
    rates = np.maximum(1 - 2 * X, 0)
    rates[::3] = np.nan
    assert only_finding(run(rates)).severity is Severity.CRITICAL


def test_the_first_treatment_can_be_given_now_and_none_turns_a_knob() -> None:
    treatments = only_finding(RULE.sick()).treatments
    assert [t.when for t in treatments] == ["now", "next", "check"]
    assert all(not t.changes for t in treatments)


def one_cycle(phases: bool) -> np.ndarray:
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=400, three_phase=phases
    )
    rates = []
    for _ in range(400):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(rates) < 400:
            schedule.step()
    return np.array(rates)


@pytest.mark.parametrize("phases", [False, True])
def test_a_one_cycle_schedule_is_silent_at_every_step(phases: bool) -> None:
    rates = one_cycle(phases)
    assert all(status(run(rates[:end])) is Status.CLEAR for end in range(30, 401, 10))
    if phases:
        assert np.mean(rates < 0.03) == pytest.approx(0.27, abs=0.005)


def test_an_exponential_over_three_decades_is_silent_and_one_over_eight_is_not() -> None:
    assert status(run(10 ** (-3 * X))) is Status.CLEAR
    assert status(run(10 ** (-8 * X))) is Status.FOUND


def test_a_few_rows_above_the_plan_are_no_peak() -> None:
    """A scheduler that is broken for eight rows leaves a rate behind that is not spent."""
    assert status(run([100 * PEAK] * 8 + [PEAK] * 192)) is Status.CLEAR
    assert status(run([100 * PEAK] * 80 + [PEAK] * 120)) is Status.FOUND


def test_milestones_that_leave_next_to_nothing_are_found() -> None:
    assert status(run([PEAK] * 50 + [0.1] * 25 + [0.01] * 25)) is Status.CLEAR
    assert status(run([PEAK] * 12 + [0.1] * 4 + [0.01] * 4 + [1e-3] * 4 + [1e-4] * 76)) is (
        Status.FOUND
    )


def test_the_peak_of_a_log_of_few_rows_may_lie_in_three_of_them() -> None:
    at = {"lr": 10 * np.arange(1, 23)}
    rates = np.array([PEAK] * 3 + [0.01] * 19)
    finding = only_finding(make_trace(lr=rates, total_steps=220, steps=at))
    assert finding.steps == (40, 220)
    rates[2] = 0.01
    assert status(make_trace(lr=rates, total_steps=220, steps=at)) is Status.CLEAR


def test_fewer_than_twenty_rows_show_no_schedule() -> None:
    assert status(run([PEAK] * 4 + [0.0] * 15)) is Status.ABSTAINED
    assert status(run([PEAK] * 4 + [0.0] * 16)) is Status.FOUND
