"""What rows of a log mean: steps, resumes, other runs, repetitions, overflows; whole columns."""

import math
import resource
from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdoctor.reading import log as log_module
from optdoctor.reading.log import MAX_EVENTS, MAX_METRICS, MAX_NAMES, MAX_STEP, Log, number
from optdoctor.store import Series
from optdoctor.trace import Trace

Rows = list[tuple[float | None, dict[str, float]]]
"""(step or None, {name: value}) of each row."""
NAN, INF = math.nan, math.inf
FROM_ZERO = "This log counts from 0: its step N stands here as N + 1"


def filled(rows: Iterable[tuple[Any, Mapping[str, Any]]], **about: Any) -> Log:
    log = Log(aliases={"epoch": "epoch"}, **about)
    for step, values in rows:
        log.row(values, step)
    return log


def losses(*steps: float, start: float = 1.0) -> Rows:
    """Losses at these steps, all different."""
    return [(step, {"loss": start + place}) for place, step in enumerate(steps)]


def read(log: Log) -> Trace:
    return log.trace("log", "test")


def points(trace: Trace, name: str = "loss") -> dict[int, float]:
    if name not in trace.series:
        return {}
    series = trace.series[name]
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def told(trace: Trace) -> list[tuple[int, str, str]]:
    return [(event.step, event.kind, event.text) for event in trace.events]


# Steps.


def test_rows_without_a_step_are_counted_and_evaluations_stand_at_the_last_of_them() -> None:
    log = Log()
    for values in ({"loss": 3.0}, {"loss": 2.0}, {"eval_loss": 9.0}, {"loss": 1.0}):
        log.row(values)
    trace = read(log)
    assert points(trace) == {1: 3.0, 2: 2.0, 3: 1.0}
    assert points(trace, "eval_loss") == {2: 9.0}
    assert trace.facts["step_source"] == "counted rows"


def test_a_row_without_a_step_stands_at_the_last_one_logged() -> None:
    log = filled([(10, {"loss": 3.0}), (None, {"eval_loss": 9.0})])
    log.at(15)
    log.row({"eval_loss": 8.0})
    assert points(read(log), "eval_loss") == {10: 9.0, 15: 8.0}


@pytest.mark.parametrize("step", [-1, NAN, INF, 1e300, MAX_STEP, "x", True])
def test_what_is_no_step_is_none(step: object) -> None:
    trace = read(filled([(1, {"loss": 2.0}), (step, {"loss": 3.0})]))
    assert points(trace) == {1: 3.0}


def test_steps_that_fall_while_the_epoch_rises_are_added_up() -> None:
    rows = [(10, 1), (20, 1), (10, 2), (20, 2), (0, 3), (10, 3)]
    trace = read(filled((step, {"loss": 1.0, "epoch": epoch}) for step, epoch in rows))
    assert list(points(trace)) == [10, 20, 30, 40, 41, 51]
    assert not trace.events


def test_an_epoch_that_comes_back_is_a_resume_within_it() -> None:
    rows = [(10, 1), (20, 1), (10, 2), (20, 2), (10, 3), (20, 2), (10, 3)]
    log = filled((s, {"loss": float(i), "epoch": e}) for i, (s, e) in enumerate(rows))
    trace = read(log)
    assert points(trace) == {10: 0, 20: 1, 30: 2, 40: 5, 50: 6}
    assert told(trace) == [(40, "resume", "steps go back from 50 to 40: 2 rows taken back")]


def test_the_first_epoch_that_comes_back_is_another_run() -> None:
    rows = [(10, 1), (20, 1), (10, 2), (10, 1), (20, 1), (10, 2)]
    trace = read(filled((s, {"loss": float(i), "epoch": e}) for i, (s, e) in enumerate(rows)))
    assert points(trace) == {10: 3, 20: 4, 30: 5}
    assert [kind for _, kind, _ in told(trace)] == ["start"]


def test_steps_never_leave_the_numbers_that_a_series_holds() -> None:
    top = MAX_STEP - 1
    rows = [(top * (e % 2), {"loss": 1.0, "epoch": float(e)}) for e in range(3000)]
    assert read(filled(rows)).series["loss"].rows > 0


def test_a_log_that_counts_from_zero_is_moved_up_by_one_with_its_events() -> None:
    log = filled([(0, {"eval_loss": NAN}), *losses(0, 1, 2, 3, 2)])
    log.count_from_one()
    trace = read(log)
    assert list(points(trace)) == [1, 2, 3]
    assert trace.series["eval_loss"].first_bad.tolist() == [1]
    assert trace.series["eval_loss"].high_step.tolist() == [-1]
    text = "steps go back from 4 to 3: 2 rows taken back"
    assert told(trace) == [(1, "gap", FROM_ZERO), (3, "resume", text)]


def test_a_log_that_counts_from_one_is_not_moved() -> None:
    log = filled(losses(1, 2, 3))
    log.count_from_one()
    assert list(points(read(log))) == [1, 2, 3]


# Resumes and other runs.


def test_after_a_resume_the_rows_from_there_on_are_of_the_new_branch_in_every_series() -> None:
    rows: Rows = [(s, {"loss": 1.0, "lr": 0.1}) for s in (10, 20, 30, 40)]
    rows.insert(3, (30, {"eval_loss": 5.0}))
    trace = read(filled([*rows, *losses(20, start=7.0)]))
    assert points(trace) == {10: 1.0, 20: 7.0}
    assert points(trace, "lr") == {10: 0.1}
    assert points(trace, "eval_loss") == {}
    assert told(trace) == [(20, "resume", "steps go back from 40 to 20: 3 rows taken back")]


def test_rows_of_the_new_branch_that_come_before_its_first_loss_are_kept() -> None:
    rows: Rows = [(s, {"loss": 1.0, "lr": 0.1}) for s in (10, 20, 30, 40, 50)]
    back: Rows = [(s, {"lr": 0.2}) for s in (21, 22, 30)] + [(30, {"loss": 2.0})]
    trace = read(filled(rows + back))
    assert points(trace, "lr") == {10: 0.1, 20: 0.1, 21: 0.2, 22: 0.2, 30: 0.2}
    assert points(trace) == {10: 1.0, 20: 1.0, 30: 2.0}


def test_steps_that_go_back_to_the_first_one_are_another_run_and_one_event_tells_of_all() -> None:
    runs = [losses(5, 6, 7), losses(5, 6), losses(3, 4, 5), losses(3, 9, start=50.0)]
    rows = [row for run in runs for row in run]
    rows.insert(2, (6, {"eval_loss": 8.0}))
    trace = read(filled(rows))
    assert points(trace) == {3: 50.0, 9: 51.0}
    assert points(trace, "eval_loss") == {}
    text = "3 earlier runs in this log were left out: 8 loss rows"
    assert told(trace) == [(3, "start", text)]


def test_evaluations_that_go_back_to_the_first_are_another_run_where_no_loss_is() -> None:
    steps = (0, 125, 250, 0, 125)
    trace = read(filled((s, {"eval_loss": float(i)}) for i, s in enumerate(steps)))
    assert points(trace, "eval_loss") == {0: 3.0, 125: 4.0}
    text = "an earlier run in this log was left out: 3 evaluation rows"
    assert told(trace) == [(0, "start", text)]


def test_the_first_evaluation_of_another_run_is_kept() -> None:
    one: Rows = [(0, {"eval_loss": 9.0}), *losses(10, 20), (20, {"eval_loss": 8.0})]
    other: Rows = [(0, {"eval_loss": 7.0}), *losses(10, 20)]
    assert points(read(filled(one + other)), "eval_loss") == {0: 7.0}


def test_no_series_of_another_run_keeps_rows_of_an_earlier_one() -> None:
    trace = read(filled([(0, {"eval_loss": 9.0}), *losses(10, 20), *losses(10, 20)]))
    assert points(trace, "eval_loss") == {}


@pytest.mark.parametrize("exact", [16_384, 10])
def test_rows_of_an_earlier_run_that_are_not_finite_are_counted(
    exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_EXACT", (exact, exact, exact))
    log = Log()
    log.rows({"loss": np.where(np.arange(40_000) % 10, 1.0, NAN)}, np.arange(40_000.0))
    log.row({"loss": 1.0}, 0)
    text = "an earlier run in this log was left out: 40,000 loss rows, 4,000 of them not finite"
    assert told(read(log)) == [(0, "start", text)]


def test_a_run_that_is_said_to_begin_leaves_out_the_rows_and_events_before_it() -> None:
    log = filled(losses(1, 2, 3, 2))
    log.begin()
    log.row({"loss": 9.0}, 8)
    trace = read(log)
    assert points(trace) == {8: 9.0}
    assert told(trace) == [(8, "start", "an earlier run in this log was left out: 2 loss rows")]


def test_a_run_that_is_said_to_begin_and_has_no_row_leaves_out_nothing() -> None:
    log = filled(losses(1, 2, 3))
    log.begin()
    log.begin()
    log.at(7)
    trace = read(log)
    assert points(trace) == {1: 1.0, 2: 2.0, 3: 3.0}
    assert trace.facts["step_source"] == "logged"
    assert not trace.events


def test_a_run_that_begins_counts_its_rows_anew() -> None:
    log = filled([(None, {"loss": 1.0})] * 3)
    log.begin()
    assert log.last_step == 0
    log.row({"loss": 2.0})
    assert points(read(log)) == {1: 2.0}


def test_steps_that_go_back_at_every_other_row_leave_a_bounded_number_of_events() -> None:
    rows = losses(1, *[2 + place % 2 for place in range(3 * MAX_EVENTS)])
    assert len(read(filled(rows)).events) == MAX_EVENTS


# The epochs of counted rows.


def counted(*epochs: float | None) -> Log:
    """Losses 1, 2, 3, ... at these epochs, without steps."""
    rows = enumerate(epochs, 1)
    return filled(
        (None, {"loss": float(i)} | ({} if epoch is None else {"epoch": epoch}))
        for i, epoch in rows
    )


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ([1, 2, 3, 4, 5], [1, 2, 3, 4]),
        ([0.5, 1.5, 2.5, 2.75], [0.25, 0.5, 0.75, 1.0]),  # below the first
        ([0.02, 0.2, 0.4, 0.5], [0.02, 0.04, 0.06, 0.08]),  # by more than half
        ([1, 1, 2, 2, 2], [1, 1, 1, 1]),
        ([1, 2, None, 3, NAN, 4], [1, None, 1, 1, 1]),  # rows without an epoch tell nothing
    ],
)
def test_counted_rows_whose_epoch_is_back_at_the_first_are_another_run(
    before: list[float | None], behind: list[float | None]
) -> None:
    trace = read(counted(*before, *behind))
    losses = [float(len(before) + i) for i in range(1, len(behind) + 1)]
    assert points(trace) == dict(enumerate(losses, 1))
    text = f"an earlier run in this log was left out: {len(before)} loss rows"
    assert told(trace) == [(1, "start", text)]


@pytest.mark.parametrize(
    "epochs",
    [
        [1, 2, 3, 4, 1, 2, 3],  # too few rows to tell
        [1, 2, 3, 1, 1, 1],
        [1, 2, 3, 4, 1, 4, 5, 6, 7],  # a line out of place
        [1, 2, 3, 4, 1, 1, 1, 4, 5],
        [1, 1, 2, 1, 2, 2, 3, 2, 3, 3, 4, 3, 4, 4],  # processes in turn
        [1, 1, 1, 1, 2, 1, 1, 1, 1, 2, 2, 2, 3, 2, 2, 2, 2, 3],
        [1, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1],
        [1, 2, 2, 1, 1, 1, 1],  # not above it in all rows before
        [5, 5, 5, 5, 4, 4, 4, 4, 3, 3, 3, 3],  # how many are left
        [9, 8, 7, 6, 5, 4, 3, 2, 1],
        [1, 5, 6, 7, 4, 3, 2, 1],
    ],
)
def test_an_epoch_that_falls_for_a_moment_takes_no_row_and_tells_nothing(
    epochs: list[float],
) -> None:
    trace = read(counted(*epochs))
    assert points(trace) == {i: float(i) for i in range(1, len(epochs) + 1)}
    assert not trace.events


@pytest.mark.parametrize(
    "epochs", [[1, 3, 4, 5, 2, 3, 3, 3], [0.9, 1.0, 1.2, 1.4, 0.85, 0.9, 1.0, 1.1]]
)
def test_a_smaller_fall_of_the_epoch_is_a_resume_that_takes_no_row(epochs: list[float]) -> None:
    trace = read(counted(*epochs))
    assert points(trace) == {i: float(i) for i in range(1, 9)}
    text = f"the epoch goes back from {epochs[3]:g} to {epochs[4]:g}: no rows taken back"
    assert told(trace) == [(5, "resume", text)]


def test_of_another_run_among_counted_rows_all_series_and_events_are_kept() -> None:
    rows: list[dict[str, float]] = [{"loss": NAN, "lr": 9.0, "epoch": e} for e in (1, 2, 3, 4)]
    rows += [{"eval_loss": 8.0, "epoch": 4}]
    rows += [{"loss": 1.0, "epoch": 1}, {"eval_loss": 7.0}, {"loss": 2.0, "lr": 3.0, "epoch": 2}]
    log = filled((None, row) for row in rows)
    log.event(5, "gap", "of the other")
    log.overflow(4.0, 2.0)
    for epoch in (2, 3, 4):
        log.row({"loss": 5.0, "epoch": epoch})
    log.overflow(2.0, 1.0)
    trace = read(log)
    assert points(trace) == {1: 1.0, 2: 2.0, 3: 5.0, 4: 5.0, 5: 5.0}
    assert points(trace, "eval_loss") == {1: 7.0}
    assert points(trace, "lr") == {2: 3.0}
    assert points(trace, "epoch") == {1: 1.0, 2: 2.0, 3: 2.0, 4: 3.0, 5: 4.0}
    assert points(trace, "step_skipped") == {3: 1.0, 6: 1.0}
    text = "an earlier run in this log was left out: 4 loss rows, 4 of them not finite"
    assert told(trace) == [
        (1, "gap", "of the other"),
        (1, "start", text),
        (6, "step-skipped", ""),
    ]


def test_each_of_several_runs_among_counted_rows_is_left_out_but_the_last() -> None:
    trace = read(counted(*[1, 2, 3, 4, 5] * 3))
    assert points(trace) == dict(enumerate([11.0, 12.0, 13.0, 14.0, 15.0], 1))
    text = "2 earlier runs in this log were left out: 10 loss rows"
    assert told(trace) == [(1, "start", text)]


def test_an_epoch_is_measured_against_the_first_of_its_own_run() -> None:
    trace = read(counted(2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 2, 3, 4, 5))
    assert trace.series["loss"].rows == 10
    assert [(step, kind) for step, kind, _ in told(trace)] == [(1, "start"), (7, "resume")]


def test_epochs_of_rows_that_have_steps_or_are_of_a_run_that_was_said_to_begin_tell_nothing() -> (
    None
):
    log = counted(1, 2, 3, 4)
    log.begin()
    for epoch in (1, 1, 1, 1):
        log.row({"loss": 1.0, "epoch": epoch})
    assert read(log).series["loss"].rows == 4
    assert told(read(log)) == [(1, "start", "an earlier run in this log was left out: 4 loss rows")]
    stated = filled((i, {"loss": 1.0, "epoch": e}) for i, e in enumerate([1, 2, 3, 4] * 2))
    assert read(stated).series["loss"].rows == 8


@given(
    epochs=st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 1.0, 2.0, 5.0, NAN]), st.integers(1, 40)),
        max_size=12,
    ),
    cuts=st.lists(st.integers(0, 300), max_size=4),
    has_gaps=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_epochs_of_counted_columns_mean_what_those_of_rows_mean(
    epochs: list[tuple[float, int]], cuts: list[int], has_gaps: bool
) -> None:
    column = np.concatenate([[], *(e + 0.125 * np.arange(n) for e, n in epochs)])
    draw = np.random.default_rng(len(column))
    columns: dict[str, Any] = {"loss": draw.random(len(column)), "epoch": column}
    if has_gaps:
        columns = {
            name: np.ma.masked_array(values, draw.random(len(values)) < 0.1)
            for name, values in columns.items()
        }
    logs = Log(aliases=ALIASES), Log(aliases=ALIASES)
    for start, stop in pairwise([0, *sorted(cuts), len(column)]):
        part = {name: values[start:stop] for name, values in columns.items()}
        logs[0].rows(part)
        one_by_one(logs[1], part, None)
        assert logs[0].last_step == logs[1].last_step
    assert_same(*map(read, logs))


def test_a_fall_of_the_epoch_amid_columns_costs_a_few_single_rows_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    epochs = np.concatenate((np.linspace(0, 8, 4000), np.linspace(0, 2, 1000)))
    singly, add = [], Log._add

    def seen(log: Log, *row: Any) -> None:
        singly.append(row)
        add(log, *row)

    monkeypatch.setattr(Log, "_add", seen)
    log = Log()
    log.rows({"loss": np.linspace(2, 1, 5000), "epoch": epochs})
    assert len(singly) < 100
    assert read(log).series["loss"].rows == 1000


# Rows of one step.


def test_of_rows_of_one_step_the_last_counts() -> None:
    assert points(read(filled(losses(1, 2, 2, 2, 3)))) == {1: 1.0, 2: 4.0, 3: 5.0}


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_value_that_is_not_finite_is_not_hidden_by_another_rank(bad: float, place: int) -> None:
    values = [2.0, 2.5, 3.0]
    values[place] = bad
    trace = read(filled([(1, {"loss": 9.0}), *((2, {"loss": v}) for v in values)]))
    np.testing.assert_equal(points(trace), {1: 9.0, 2: bad})


def test_of_values_that_are_not_finite_the_last_counts() -> None:
    trace = read(filled([(1, {"loss": v}) for v in (INF, NAN, 1.0)]))
    assert math.isnan(points(trace)[1])


def test_a_value_that_is_not_finite_is_of_its_branch_only() -> None:
    rows: Rows = [*losses(1, 2), (3, {"loss": NAN, "lr": NAN}), (4, {"loss": NAN})]
    trace = read(filled([*rows, (3, {"loss": 5.0, "lr": 1.0})]))
    assert points(trace) == {1: 1.0, 2: 2.0, 3: 5.0}
    assert points(trace, "lr") == {3: 1.0}


def test_micro_rows_of_one_step_are_their_mean() -> None:
    rows: Rows = [(2, {"loss": v}) for v in (1.0, 2.0, 6.0)]
    huge: Rows = [(3, {"loss": 1.5e308})] * 3
    trace = read(filled([*losses(1), *rows, *huge], has_micro_rows=True))
    assert points(trace) == {1: 1.0, 2: 3.0, 3: 1.5e308}


def test_a_micro_row_that_is_not_finite_makes_the_mean_so() -> None:
    rows: Rows = [(2, {"loss": v}) for v in (1.0, INF, 6.0)]
    assert points(read(filled(rows, has_micro_rows=True))) == {2: INF}


def test_micro_rows_merge_with_none_of_a_branch_that_was_left() -> None:
    rows: Rows = [(2, {"eval_loss": 9.0}), (2, {"loss": 9.0}), (3, {"loss": 9.0})]
    back: Rows = [(2, {"loss": v}) for v in (1.0, 3.0)] + [(2, {"eval_loss": 4.0})]
    trace = read(filled([*losses(1), *rows, *back], has_micro_rows=True))
    assert points(trace) == {1: 1.0, 2: 2.0}
    assert points(trace, "eval_loss") == {2: 4.0}


def test_a_micro_row_merges_with_none_before_rows_that_were_dropped() -> None:
    rows: Rows = [(s, {"lr": v}) for s, v in ((30, 1.0), (35, 4.0), (35, 4.0))]
    before: Rows = [*losses(10, 50), (50, {"lr": 9.0})]
    log = filled([*before, *rows, (30, {"loss": 1.0, "lr": 4.0})], has_micro_rows=True)
    assert points(read(log), "lr") == {30: 4.0}


# Overflows.


def test_overflows_take_the_steps_after_the_newest_row_one_by_one() -> None:
    log = filled(losses(10))
    for new in (32.0, 16.0, 8.0):
        log.overflow(2 * new, new)
    trace = read(log)
    assert points(trace, "step_skipped") == {11: 1.0, 12: 1.0, 13: 1.0}
    assert points(trace, "loss_scale") == {11: 64.0, 12: 32.0, 13: 16.0}


def test_overflows_do_not_stand_beyond_the_row_that_comes_next() -> None:
    log = filled(losses(10))
    for new in (32.0, 16.0, 8.0):
        log.overflow(2 * new, new)
    log.row({"loss": 1.0}, 12)
    log.overflow(8.0, 4.0)
    trace = read(log)
    assert points(trace, "step_skipped") == {11: 1.0, 12: 1.0, 13: 1.0}
    assert points(trace, "loss_scale") == {11: 64.0, 12: 16.0, 13: 8.0}


def test_the_same_overflow_told_by_several_processes_is_one() -> None:
    log = filled(losses(10))
    for new in (32.0, 16.0, 32.0, 16.0):
        assert log.overflow(2 * new, new)
    assert list(points(read(log), "step_skipped")) == [11, 12]


@pytest.mark.parametrize("later", [True, False])
def test_the_same_overflow_after_a_row_with_a_later_step_is_another(later: bool) -> None:
    log = filled(losses(10))
    log.overflow(None, 32.0)
    log.row({"loss": 1.0}, 11 if later else 10)
    log.overflow(None, 32.0)
    trace = read(log)
    assert list(points(trace, "step_skipped")) == ([11, 12] if later else [11])
    assert set(points(trace, "loss_scale").values()) == {32.0}


def test_a_stated_place_is_a_later_row_to_overflows() -> None:
    log = Log()
    for step in (376, 377, 378):
        log.at(step)
        log.overflow(64.0, 32.0)
    assert list(points(read(log), "step_skipped")) == [377, 378, 379]


def test_overflows_before_a_resume_are_of_the_branch_that_was_left() -> None:
    log = filled(losses(1, 2, 3))
    log.overflow(64.0, 32.0)
    log.row({"loss": 1.0}, 2)
    assert points(read(log), "step_skipped") == {}


def test_the_scale_of_overflows_does_not_take_the_place_of_a_logged_one() -> None:
    log = Log(aliases={"scale": "loss_scale"})
    log.overflow(64.0, 32.0)
    for step in (1, 2):
        log.row({"loss": 1.0, "scale": 32.0}, step)
    assert points(read(log), "loss_scale") == {1: 32.0, 2: 32.0}


def test_an_overflow_takes_no_row_away() -> None:
    log = filled([(5, {"loss_scale": 8.0}), (9, {"loss_scale": 4.0})])
    log.at(5)
    log.overflow(2.0, 1.0)
    assert points(read(log), "loss_scale") == {5: 8.0, 9: 4.0}


@pytest.mark.parametrize(("total", "last"), [(12, 12), (5, 10), (None, 14), (40, 14)])
def test_overflows_at_the_end_do_not_stand_beyond_the_last_update(
    total: int | None, last: int
) -> None:
    log = filled(losses(2, 10))
    log.facts["total_steps"] = total
    for new in (32.0, 16.0, 8.0, 4.0):
        log.overflow(2 * new, new)
    assert max(points(read(log), "step_skipped")) == last


def test_overflows_at_the_end_of_a_log_from_zero_may_stand_at_the_last_update() -> None:
    log = filled(losses(0, 1, 2, 3))
    log.count_from_one()
    log.facts["total_steps"] = 5
    for new in (32.0, 16.0, 8.0):
        log.overflow(2 * new, new)
    assert read(log).steps == (1, 5)


def test_very_many_overflows_without_a_row_are_all_counted() -> None:
    log = Log()
    for new in range(25_000):
        log.overflow(None, float(new))
    assert log.has_rows
    assert read(log).series["step_skipped"].rows == 25_000


# Numbers and names.


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        *[(text, NAN) for text in ("nanxxx", "-NaN", "nan(ind)", " nan ")],
        *[(nothing, None) for nothing in ("nanms", "xxx", "1_0", "1,000", "nanxxxx", True, [])],
        *[("-1.#INF", -INF), (" 2.5 ", 2.5), (10**400, INF)],
        *[(np.float32(0.5), 0.5), (np.int64(7), 7.0)],
    ],
)
def test_a_number_is_what_a_log_means_by_it(text: object, meant: float | None) -> None:
    np.testing.assert_equal(number(text), meant)


def test_a_row_without_a_number_is_a_skipped_line() -> None:
    log = filled([(1, {"loss": "high"}), (2, {}), (3, {"loss": 1.0})])
    assert (log.lines_skipped, points(read(log))) == (2, {3: 1.0})


def test_of_two_names_of_a_channel_the_one_listed_first_is_it() -> None:
    log = Log(aliases={"a": "loss", "b": "loss", "c": ""})
    log.row({"b": 1.0, "a": 2.0, "c": 3.0}, 1)
    trace = read(log)
    assert points(trace) == {1: 2.0}
    assert trace.reading is not None
    assert trace.reading.names == {"a": "loss", "b": "metric:b", "c": ""}


def test_metrics_and_names_are_bounded_and_a_known_name_is_learned_late() -> None:
    log = Log()
    log.aliases = {"late": "loss"}
    log.row({f"m{i}": 1.0 for i in range(2 * MAX_NAMES)}, 1)
    log.row({"late": 2.0, "x" * 10**6: 3.0}, 2)
    trace = read(log)
    assert points(trace) == {2: 2.0}
    assert len(trace.series) == MAX_METRICS + 1
    assert trace.reading is not None
    assert len(trace.reading.names) == MAX_NAMES + 1


def test_the_first_skipped_lines_are_kept_with_their_numbers() -> None:
    log = filled(losses(1, 2))
    log.skip()
    for line in range(10):
        log.skip(first=f"line {line} " + "x" * 1000, at=line)
    trace = log.trace("log", "test", why="it has a mark", guessed=True)
    assert trace.lines_skipped == 11
    assert trace.reading is not None
    assert [line for line, _ in trace.reading.skipped] == [0, 1, 2, 3, 4]
    assert all(len(text) == 200 for _, text in trace.reading.skipped)
    assert (trace.reading.why, trace.reading.guessed) == ("it has a mark", True)


def test_facts_tell_the_interval_and_the_quantum_of_the_losses() -> None:
    facts = read(filled((10 * i, {"loss": i / 100}) for i in range(1, 30))).facts
    assert (facts["log_interval"], facts["loss_quantum"]) == (10, 0.01)
    assert "loss_quantum" not in read(filled([(1, {"loss": 1 / 3})])).facts
    late = read(filled((i, {"loss": 0.5 if i < 1500 else 0.515}) for i in range(2000)))
    assert late.facts["loss_quantum"] == 0.001


# Whole columns.

STEPS = st.one_of(
    st.integers(0, 6).map(float),
    st.integers(0, 6).map(float),
    st.sampled_from([NAN, -1.0, 0.5, 2.5, 1e15, float(MAX_STEP), INF, -INF]),
)
CELLS = st.sampled_from([None, None, 0.5, 1.5, NAN, INF, -2.0])
NAMES = ["loss", "eval_loss", "epoch", "lr", "free", " loss ", "dropped", "loss_scale"]
ALIASES = {"loss": "loss", "epoch": "epoch", "lr": "lr", "rate": "lr", "dropped": ""}


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Any], Any]:
    """Columns and steps: stretches of rising steps amid anything else."""
    steps: list[float] = []
    for _ in range(draw(st.integers(0, 4))):
        start = draw(STEPS)
        if draw(st.booleans()):
            steps.append(start)
        elif math.isfinite(start):
            gap = draw(st.sampled_from([0.0, 0.5, 1.0, 3.0]))
            steps += [start + gap * i for i in range(draw(st.integers(1, 70)))]
    length = len(steps)
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    columns: dict[str, Any] = {}
    for name in draw(st.permutations(NAMES))[: draw(st.integers(1, len(NAMES)))]:
        kind = draw(st.sampled_from(["full", "masked", "cells"]))
        values = np.round(seed.random(length), 2)
        if name == "epoch":
            values = np.floor(3 * values)
            if draw(st.booleans()):
                values.sort()
        if kind == "full":
            columns[name] = values
        elif kind == "masked":
            columns[name] = np.ma.masked_array(values, seed.random(length) < 0.5)
        else:
            cells = [draw(CELLS) for _ in range(min(length, 12))]
            cells += [None] * (length - len(cells))
            columns[name] = np.ma.masked_array(
                [0.0 if cell is None else cell for cell in cells], [c is None for c in cells]
            )
    stated = np.array(steps)
    if draw(st.booleans()) and (stated == np.floor(stated)).all() and (abs(stated) < 2**60).all():
        stated = stated.astype(np.int64)
    if draw(st.booleans()):  # as pyarrow gives them
        for column in (stated, *columns.values()):
            column.flags.writeable = False
    return columns, None if draw(st.booleans()) and draw(st.booleans()) else stated


def one_by_one(log: Log, columns: dict[str, Any], steps: Any) -> int:
    added = 0
    for i in range(min(map(len, columns.values()))):
        cells = {name: column[i] for name, column in columns.items()}
        known = {name: float(c) for name, c in cells.items() if c is not np.ma.masked}
        added += log.row(known, None if steps is None else float(steps[i]))
    return added


def assert_same(one: Trace, other: Trace) -> None:
    assert list(one.series) == list(other.series)
    for name, series in one.series.items():
        for field in fields(Series):
            left, right = getattr(series, field.name), getattr(other.series[name], field.name)
            np.testing.assert_array_equal(left, right, err_msg=f"{name} {field.name}")
    assert repr(one.facts) == repr(other.facts)
    assert (one.events, one.reading) == (other.events, other.reading)
    assert one.lines_skipped == other.lines_skipped


@given(
    blocks=st.lists(tables(), min_size=1, max_size=3),
    is_micro=st.booleans(),
    between=st.lists(st.sampled_from(["begin", "overflow", "at", "row", ""]), max_size=3),
    count=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_columns_mean_what_their_rows_mean_one_by_one(
    blocks: list[tuple[dict[str, Any], Any]], is_micro: bool, between: list[str], count: bool
) -> None:
    logs = [Log(aliases=ALIASES, has_micro_rows=is_micro) for _ in range(2)]
    for place, (columns, steps) in enumerate(blocks):
        fast = logs[0].rows(columns, steps)
        assert fast == one_by_one(logs[1], columns, steps)
        assert logs[0].last_step == logs[1].last_step
        for log in logs:
            match between[place] if place < len(between) else "":
                case "begin":
                    log.begin()
                case "overflow":
                    log.overflow(4.0, 2.0)
                    log.overflow(2.0, 1.0)
                case "at":
                    log.at(5)
                case "row":
                    log.row({"lr": NAN, "epoch": 1.0}, 6)
    if count:
        for log in logs:
            log.count_from_one()
    assert_same(*map(read, logs))


@pytest.mark.parametrize("steps", [None, np.arange(5000.0), np.repeat(np.arange(2500.0), 2)])
def test_rows_that_rise_are_taken_without_a_look_at_each(
    steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"loss": np.linspace(2, 1, 5000), "lr": np.ma.masked_less(np.arange(5000.0), 100)}
    expected = Log()
    one_by_one(expected, columns, steps)
    log = Log()
    monkeypatch.setattr(Log, "_add", None)
    assert log.rows(columns, steps) == 5000
    assert_same(read(log), read(expected))


def test_a_resume_amid_columns_costs_a_few_single_rows_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = np.concatenate((np.arange(1.0, 4000.0), np.arange(2000.0, 8000.0)))
    columns = {"loss": np.linspace(2, 1, len(steps)), "lr": np.linspace(1, 0, len(steps))}
    singly, add = [], Log._add

    def counted(log: Log, *row: Any) -> None:
        singly.append(row)
        add(log, *row)

    monkeypatch.setattr(Log, "_add", counted)
    log = Log()
    log.rows(columns, steps)
    trace = read(log)
    assert len(singly) < 100
    assert list(points(trace)) == list(range(1, 8000))
    assert points(trace)[2000] == columns["loss"][3999]
    text = "steps go back from 3999 to 2000: 2,000 rows taken back"
    assert told(trace) == [(2000, "resume", text)]


def test_evaluations_counted_before_the_first_loss_are_counted_the_same_in_columns() -> None:
    columns = {
        "eval_loss": np.ma.masked_array(np.arange(100.0), np.arange(100) >= 60),
        "loss": late(np.arange(100.0), 50),
    }
    logs = Log(), Log()
    logs[0].rows(columns)
    one_by_one(logs[1], columns, None)
    assert_same(*map(read, logs))


def test_the_epoch_of_columns_is_that_of_the_newest_loss_with_one() -> None:
    epochs = np.ma.masked_array(np.full(100, 1.0), np.arange(100) > 50)
    columns = {"loss": np.arange(100.0), "epoch": epochs}
    columns["epoch"].data[99] = 9.0
    logs = Log(), Log()
    logs[0].rows(columns, np.arange(1.0, 101.0))
    one_by_one(logs[1], columns, np.arange(1.0, 101.0))
    for log in logs:
        log.row({"loss": 2.0, "epoch": 2.0}, step=1)
    assert logs[1].last_step == 101
    assert_same(*map(read, logs))


def late(values: Any, first: int) -> Any:
    """A column that its first rows do not have."""
    return np.ma.masked_array(values, np.arange(len(values)) < first)


def test_columns_whose_first_rows_state_no_step_stand_at_the_last_one() -> None:
    steps = np.append(np.full(40, NAN), np.arange(8.0, 108.0))
    log = filled(losses(1, 7))
    log.rows({"fresh": np.arange(140.0)}, steps)
    assert points(read(log), "metric:fresh") == {7: 39.0, **{8 + i: 40.0 + i for i in range(100)}}


def test_the_first_series_of_columns_is_the_one_that_has_a_row_first() -> None:
    log = Log()
    log.rows({"late": late(np.arange(100.0), 50), "early": np.arange(100.0)}, np.arange(100.0))
    log.count_from_one()
    assert list(points(read(log), "metric:early")) == list(range(1, 101))


def test_overflows_before_columns_do_not_stand_beyond_their_first_row() -> None:
    log = filled(losses(10))
    for new in (32.0, 16.0, 8.0):
        log.overflow(2 * new, new)
    log.rows({"loss": np.ones(100)}, np.arange(12.0, 112.0))
    assert list(points(read(log), "step_skipped")) == [11, 12]


def test_columns_after_a_run_was_said_to_begin_are_all_that_is_kept() -> None:
    log = filled(losses(1, 2, 3))
    log.begin()
    log.rows({"loss": np.ones(100)}, np.arange(50.0, 150.0))
    trace = read(log)
    assert list(points(trace)) == list(range(50, 150))
    assert [kind for _, kind, _ in told(trace)] == ["start"]


def test_a_branch_is_new_only_until_its_first_loss_stands_in_columns() -> None:
    log = filled((step, {"loss": 1.0, "lr": 0.1}) for step in range(10, 60, 10))
    log.row({"lr": 0.2}, 30)
    log.rows({"loss": np.ones(100), "lr": np.ones(100)}, np.arange(51.0, 151.0))
    log.row({"loss": 2.0}, 100)
    assert max(points(read(log), "lr")) == 99


def test_columns_bring_their_names_in_the_order_of_their_rows() -> None:
    log = Log(aliases={"a": "loss", "b": "loss"})
    log.rows({"a": late(np.ones(50), 1), "b": np.zeros(50)}, np.arange(50.0))
    trace = read(log)
    assert trace.reading is not None
    assert trace.reading.names == {"a": "metric:a", "b": "loss"}


def test_an_epoch_that_comes_back_amid_columns_is_seen() -> None:
    steps = np.concatenate((np.arange(1.0, 100.0), np.arange(1.0, 200.0)))
    epochs = np.concatenate((np.full(99, 1.0), np.full(99, 2.0), np.full(100, 1.0)))
    logs = Log(), Log()
    columns = {"loss": np.sin(steps), "epoch": epochs}
    logs[0].rows(columns, steps)
    one_by_one(logs[1], columns, steps)
    assert_same(*map(read, logs))
    assert list(points(read(logs[0]))) == list(range(1, 200))


@pytest.mark.parametrize("kind", [float, np.int64])
def test_arrays_that_were_given_may_be_used_again(kind: type) -> None:
    log, loss, steps = Log(), np.arange(2000.0), np.arange(2000).astype(kind)
    log.rows({"loss": loss}, steps)
    loss[:] = steps[:] = -1
    assert points(read(log))[1999] == 1999.0


def test_arrays_that_cannot_be_written_are_kept_as_they_are() -> None:
    log, loss, steps = Log(), np.arange(2000.0), np.arange(2000)
    loss.flags.writeable = steps.flags.writeable = False
    log.rows({"loss": loss}, steps)
    series = read(log).series["loss"]
    assert np.shares_memory(series.values, loss)
    assert np.shares_memory(series.steps, steps)


@pytest.mark.parametrize("columns", [{}, {"loss": np.empty(0)}, {"": np.empty(0)}])
def test_no_rows_are_no_rows(columns: dict[str, Any]) -> None:
    log = Log()
    assert log.rows(columns, np.empty(0)) == 0
    assert not log.has_rows


# Bounded memory.


def resumed(log: Log, lengths: list[tuple[int, int]], in_blocks: bool) -> Log:
    """Stretches of rows, each (first step, rows)."""
    for first, rows in lengths:
        steps = np.arange(first, first + rows, dtype=float)
        columns = {"loss": steps + rows, "lr": np.ma.masked_array(steps, steps % 3 > 0)}
        if in_blocks:
            for at in range(0, rows, 1500):
                some = slice(at, at + 1500)
                log.rows({name: column[some] for name, column in columns.items()}, steps[some])
        else:
            one_by_one(log, columns, steps)
    return log


@pytest.mark.parametrize("in_blocks", [True, False])
def test_a_resume_among_the_exact_rows_leaves_what_it_left_in_unbounded_memory(
    in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stretches = [(1, 9000), (8200, 3000), (11_000, 10), (10_600, 5000), (15_599, 1)]
    whole = read(resumed(Log(), stretches, in_blocks))
    monkeypatch.setattr(log_module, "_EXACT", (2000, 1000, 1000))
    monkeypatch.setattr("optdoctor.reading.columns._OPEN", 100)
    bounded = resumed(Log(), stretches, in_blocks)
    assert_same(whole, read(bounded))
    assert len(bounded._columns["loss"].newest(10**9)[0]) <= 2600


def test_a_resume_before_the_exact_rows_is_cut_to_the_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_module, "_EXACT", (1000, 1000, 1000))
    monkeypatch.setattr(log_module, "_WIDE", (0, 512))
    trace = read(resumed(Log(), [(1, 20_000), (7001, 500)], True))
    series = trace.series["loss"]
    assert (np.diff(series.steps) > 0).all()
    assert series.steps[-1] == 7500
    assert 7500 - 64 <= series.rows <= 7500
    assert series.values[-1] == 8000.0
    text = "steps go back from 20000 to 7001: 13,024 rows taken back"  # with a bucket's others
    assert told(trace) == [(7001, "resume", text)]


def test_another_run_beyond_the_exact_rows_leaves_all_of_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_module, "_EXACT", (1000, 1000, 1000))
    trace = read(resumed(Log(), [(1, 20_000), (1, 50)], True))
    assert trace.series["loss"].rows == 50
    text = "an earlier run in this log was left out: 20,000 loss rows"
    assert told(trace) == [(1, "start", text)]


def test_a_trace_may_be_taken_amid_the_rows() -> None:
    looked, not_looked = Log(), Log()
    for log in (looked, not_looked):
        for at in range(1, 60_000, 20_000):
            resumed(log, [(at, 20_000)], True)
            if log is looked:
                read(log)
    assert_same(read(looked), read(not_looked))


@pytest.mark.slow
def test_ten_million_rows_take_bounded_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    log, names = Log(), ["loss", "lr", "grad_norm", "accuracy"]
    for start in range(0, 10_000_000, 10_000):
        steps = np.arange(start, start + 10_000, dtype=float)
        log.rows(dict.fromkeys(names, steps % 7), steps)
    assert read(log).series["loss"].rows == 10_000_000
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 160 << 10  # KiB


def test_one_row_an_epoch_at_the_same_iteration_is_a_row_for_each() -> None:
    log = Log()
    for epoch in (1, 2, 3):
        log.row({"loss": epoch / 4, "epoch": epoch}, step=391)
    assert log.trace("log", "test").series["loss"].steps.tolist() == [391, 782, 1173]


def test_a_snapshot_leaves_the_log_as_it_is_and_counts_from_one_by_then() -> None:
    log = Log()
    log.count_from_one()
    for step in (0, 10, 20):
        log.row({"loss": 2.5, "grad_norm": 1.0}, step=step)
        assert log.trace("log", "test").steps == (1, step + 1)
    assert log.trace("log", "test").facts["log_interval"] == 10
