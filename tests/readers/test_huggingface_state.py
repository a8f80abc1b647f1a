"""trainer_state.json: bare NaN, cuts, resumes, what the rows and the facts mean."""

import json
import math
import random
from typing import Any

import numpy as np
import pytest

from optdoctor.readers import huggingface_state, read_source
from optdoctor.reading.log import Log
from optdoctor.reading.reader import Source, Unreadable
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


def read(text: str, reader: str | None = None) -> Trace:
    return read_source(Source(text.encode(), "trainer_state.json"), reader)


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


def test_a_run_by_steps_of_a_data_set_without_a_length_is_read() -> None:
    trace = read(state(row(10, 2.5), row(20, 2.25), num_train_epochs=9223372036854775807))
    assert trace.facts["total_steps"] == 300
    assert read(state(row(1, 2.5), max_steps=9223372036854775807)).facts.get("total_steps") is None


def test_facts_in_front_of_the_history_are_known() -> None:
    trace = read('{"max_steps": 90, "log_history": [{"loss": 2.5, "step": 1}], "epoch": 1}')
    assert trace.facts["total_steps"] == 90


def test_rows_behind_the_history_are_none_of_it() -> None:
    others = [row(step, 9.0) for step in range(1, 30)]
    trace = read(state(*(row(step, 2.5) for step in range(1, 20)), more=others, zone=3))
    assert list(trace.series["loss"].values) == [2.5] * 19


def test_a_torn_row_in_the_middle_takes_no_other_with_it() -> None:
    text = state(row(10, 2.5), row(20, 2.25), row(30, 2.0)).replace('"loss": 2.25,', '"lo')
    trace = read(text)
    assert list(trace.series["loss"].steps) == [10, 30]
    assert trace.lines_skipped == 1


@pytest.mark.parametrize("further", [{"reward": 0.5, "kl": 0.1}, {"objective/kl": 0.5}])
def test_where_a_reward_is_raised_the_loss_need_not_fall(further: dict[str, float]) -> None:
    assert read(state(row(1, 0.5, **further), row(2, 0.25))).facts["loss_kind"] == "reward"


def test_the_losses_of_preference_training_fall() -> None:
    further = {"rewards/chosen": 0.5, "rewards/accuracies": 0.75, "logps/chosen": -9.0}
    trace = read(state(row(1, 0.5, **further), row(2, 0.25, **further)))
    assert trace.facts["loss_kind"] == "falling"
    assert "metric:rewards/accuracies" in trace.series


def long_state(seed: int, indent: int | None) -> str:
    """A long history in which something is odd now and then."""
    draw = random.Random(seed)
    history: list[dict[str, Any]] = []
    for step in range(1, 3001):
        loss = draw.choice([math.nan, 0.0, 7]) if draw.random() < 0.02 else draw.random()
        history.append(row(step, loss, grad_norm=draw.choice([1e-9, 2.5, math.inf])))
        if draw.random() < 0.02:
            evaluation = {"eval_loss": draw.random(), "eval_runtime": 2.5, "step": step}
            odd = {**row(step, 2.5), "more": {"loss": 1}, "list": [1, {"x": 2}], "none": None}
            history.append(draw.choice([evaluation, odd, row(max(step - 40, 1), 2.0), {}]))
    return state(*history, indent=indent)


@pytest.mark.parametrize("indent", [None, 1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_whole_stretches_are_read_as_row_by_row(
    seed: int, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = long_state(seed, indent)
    for cut in (len(text), len(text) * 2 // 3):
        with monkeypatch.context() as patch:
            fast = read(text[:cut], "huggingface-state")
            patch.setattr(huggingface_state, "learn", lambda *_: None)
            slow = read(text[:cut], "huggingface-state")
        assert_same(fast, slow)
    assert fast.series["loss"].rows > 1500


@pytest.mark.parametrize("size", [1, 7, 1000, 60_000])
def test_pieces_may_end_anywhere(size: int) -> None:
    text = long_state(5, 1) if size > 7 else state(*(row(s, 2.5) for s in range(1, 30)))
    log = Log(aliases=huggingface_state.READER.aliases)
    source = Source(b"", "log")
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    source.blocks = lambda: iter(pieces)  # type: ignore[method-assign]
    huggingface_state.READER.read(source, log)
    assert_same(log.trace("log", "huggingface-state"), read(text))


def test_a_long_history_is_read_in_whole_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    real = json.JSONDecoder.raw_decode

    def counted(self: json.JSONDecoder, text: str, at: int = 0) -> tuple[Any, int]:
        decoded.append(text)
        return real(self, text, at)

    text = state(*(row(step, step / 8) for step in range(1, 1001)))
    monkeypatch.setattr(json.JSONDecoder, "raw_decode", counted)
    assert (
        read_source(Source(text.encode(), "log"), "huggingface-state").series["loss"].rows == 1000
    )
    assert len(decoded) < 10


def assert_same(one: Trace, other: Trace) -> None:
    assert one.series.keys() == other.series.keys()
    for name, series in one.series.items():
        assert np.array_equal(series.steps, other.series[name].steps), name
        assert np.array_equal(series.values, other.series[name].values, equal_nan=True), name
    assert one.facts == other.facts
    assert one.events == other.events
    assert one.lines_skipped == other.lines_skipped
