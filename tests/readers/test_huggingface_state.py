"""trainer_state.json: bare NaN, cuts, resumes, what the rows and the facts mean."""

import json
import math
from typing import Any

import pytest

from optdoctor.reader import Source, Unreadable
from optdoctor.readers import read_source
from optdoctor.trace import Trace


def row(step: int, loss: float, **further: float) -> dict[str, Any]:
    return {"epoch": step / 100, "learning_rate": 1e-4, "loss": loss, "step": step, **further}


def state(*history: dict[str, Any], indent: int | None = 2, **about: Any) -> str:
    document = {
        "best_metric": None,
        "log_history": list(history),
        "max_steps": 300,
        "stateful_callbacks": {"TrainerControl": {"args": {"should_save": True}, "step": {}}},
        **about,
    }
    return json.dumps(document, sort_keys=True, indent=indent)


def read(text: str) -> Trace:
    return read_source(Source(text.encode(), "trainer_state.json"))


@pytest.mark.parametrize("indent", [None, 2])
def test_rows_stand_at_their_steps_under_the_names_of_the_vocabulary(indent: int | None) -> None:
    trace = read(state(row(10, 2.5, grad_norm=1.0), row(20, 2.25, grad_norm=0.5), indent=indent))
    assert trace.reader == "huggingface-state"
    assert set(trace.series) == {"loss", "lr", "epoch", "grad_norm"}
    assert list(trace.series["loss"].steps) == [10, 20]
    assert trace.facts["step_source"] == "logged"
    assert trace.lines_skipped == 0


def test_bare_nan_and_infinity_are_numbers() -> None:
    trace = read(state(row(1, math.nan, grad_norm=math.inf), row(2, 2.0, grad_norm=-math.inf)))
    assert math.isnan(trace.series["loss"].values[0])
    assert list(trace.series["grad_norm"].values) == [math.inf, -math.inf]


def test_the_facts_of_the_run_are_known() -> None:
    facts = read(state(row(10, 2.5), row(20, 2.25), logging_steps=10, train_batch_size=4)).facts
    assert facts["framework"] == "huggingface"
    assert facts["total_steps"] == 300
    assert facts["loss_window"] == 10
    assert facts["batch_size"] == 4
    assert facts["loss_quantum"] == 0.01


def test_an_unused_logging_interval_is_not_taken_for_the_window() -> None:
    assert read(state(row(40, 2.5), row(80, 2.25), logging_steps=500)).facts["loss_window"] == 40


def test_a_fraction_of_steps_is_no_window() -> None:
    assert "loss_window" not in read(state(row(40, 2.5), logging_steps=0.05)).facts


def test_a_cut_row_counts_as_one_skipped_line() -> None:
    whole = state(row(10, 2.5), row(20, 2.25), row(30, 2.0))
    trace = read(whole[: whole.index("2.0") + 1])
    assert list(trace.series["loss"].steps) == [10, 20]
    assert trace.lines_skipped == 1


def test_a_cut_behind_the_history_loses_no_row() -> None:
    whole = state(row(10, 2.5), row(20, 2.25))
    trace = read(whole[: whole.index("should_save")])
    assert list(trace.series["loss"].steps) == [10, 20]
    assert trace.lines_skipped == 0
    assert trace.facts["total_steps"] == 300


def test_the_final_summary_is_no_row() -> None:
    trace = read(state(row(10, 2.5), {"train_loss": 1.2, "train_runtime": 9.0, "step": 12}))
    assert trace.steps == (10, 10)
    assert set(trace.series) == {"loss", "lr", "epoch"}


def test_metrics_of_an_evaluation_are_kept_and_its_timings_are_not() -> None:
    evaluation = {
        "eval_loss": 2.0,
        "eval_wer": 0.3,
        "eval_runtime": 9.0,
        "eval_steps_per_second": 1.0,
        "step": 10,
    }
    trace = read(state(row(10, 2.5), evaluation))
    assert set(trace.series) == {"loss", "lr", "epoch", "eval_loss", "metric:eval_wer"}
    assert list(trace.series["eval_loss"].steps) == [10]


def test_steps_that_go_back_are_a_resume_and_the_later_rows_hold() -> None:
    trace = read(state(row(10, 2.5), row(20, 2.25), row(30, 9.0), row(20, 2.0), row(30, 1.75)))
    assert list(trace.series["loss"].steps) == [10, 20, 30]
    assert list(trace.series["loss"].values) == [2.5, 2.0, 1.75]
    assert [(event.kind, event.step) for event in trace.events] == [("resume", 20)]


def test_the_mark_of_the_nan_filter_is_seen() -> None:
    assert read(state(row(10, 0.0, grad_norm=math.nan))).facts["nan_filter"] == "seen"


def test_a_policy_loss_of_zero_with_finite_gradients_is_no_mark() -> None:
    trace = read(state(row(1, 0.0, grad_norm=0.2, reward=0.5), row(2, 0.0, grad_norm=0.3)))
    assert "nan_filter" not in trace.facts
    assert trace.facts["loss_kind"] == "reward"
    assert "loss_quantum" not in trace.facts


def test_a_history_without_rows_is_unreadable_with_a_remedy() -> None:
    with pytest.raises(Unreadable, match="no row") as raised:
        read(state())
    assert raised.value.remedy
