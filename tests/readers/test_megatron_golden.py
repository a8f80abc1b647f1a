"""Megatron's golden values: placeholders, lists, files that were cut."""

import json

import pytest

from tests.readers.language_model_logs import read, rows

WHOLE = {
    "lm loss": {
        "start_step": 1,
        "end_step": 4,
        "step_interval": 1,
        "values": {"1": 10.75, "2": "nan", "3": 9.5, "4": 9.25},
    },
    "iteration-time": {"start_step": 1, "end_step": 4, "step_interval": 1, "values": {"4": 0.25}},
    "num-zeros": {"start_step": 1, "end_step": 4, "step_interval": 1, "values": {"1": 7, "4": 9}},
}


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_nan_in_quotes_was_not_measured(indent: int | None) -> None:
    trace = read("megatron-golden", json.dumps(WHOLE, indent=indent))
    assert rows(trace) == {1: 10.75, 3: 9.5, 4: 9.25}
    assert rows(trace, "metric:num-zeros") == {1: 7.0, 4: 9.0}
    assert not any("time" in name for name in trace.series)
    assert trace.lines_skipped == 0


def test_a_nan_of_json_was_measured() -> None:
    text = json.dumps(WHOLE).replace('"nan"', "NaN")
    assert rows(read("megatron-golden", text))[2] == "nan"


@pytest.mark.parametrize("indent", [None, 4])
def test_older_files_hold_a_list_at_equal_distances(indent: int | None) -> None:
    series = {"start_step": 0, "end_step": 15, "step_interval": 5, "values": [10.75, "nan", 9.5]}
    old = {"lm loss": series, "num-zeros": {**series, "values": [7, 8, 9]}}
    text = json.dumps({**old, "iteration_timing_avg": 0.25}, indent=indent)
    trace = read("megatron-golden", text)
    assert rows(trace) == {0: 10.75, 10: 9.5}
    assert rows(trace, "metric:num-zeros") == {0: 7.0, 5: 8.0, 10: 9.0}


def test_a_file_that_was_cut_keeps_its_rows() -> None:
    text = json.dumps(WHOLE, indent=1)
    assert rows(read("megatron-golden", text[: text.index('"4"')])) == {1: 10.75, 3: 9.5}
