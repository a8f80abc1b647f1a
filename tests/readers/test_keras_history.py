"""The History of Keras: lists by name, on one line or many, whole or cut."""

import json
import math

import pytest

from optdoctor.readers.keras_history import READER
from optdoctor.reading.reader import Head
from tests.readers.tables import facts, read, steps, values

HISTORY = {"loss": [2.5, 2.25, 2.0], "val_loss": [2.75, 2.5, 2.375], "accuracy": [0.1, 0.2, 0.3]}


@pytest.mark.parametrize("indent", [None, 1, 4, "\t"])
def test_one_line_and_many_read_the_same(indent: int | str | None) -> None:
    trace = read(json.dumps(HISTORY, indent=indent), name="history.json")
    assert trace.reader == "keras-history"
    assert steps(trace) == [1, 2, 3]
    assert values(trace) == [2.5, 2.25, 2.0]
    assert values(trace, "eval_loss") == [2.75, 2.5, 2.375]
    assert values(trace, "metric:accuracy") == [0.1, 0.2, 0.3]
    assert facts(trace, "loss_kind", "loss_form", "step_source") == [
        "falling",
        "mean",
        "counted rows",
    ]


def test_the_printed_dict_of_python_is_read() -> None:
    trace = read("{'loss': [2.5, nan, 2.25], 'lr': [0.1, 0.1, 1e-05]}\n")
    assert trace.reader == "keras-history"
    assert math.isnan(values(trace)[1])
    assert values(trace, "lr") == [0.1, 0.1, 1e-05]


def test_nan_infinity_and_null_are_told_apart() -> None:
    trace = read('{"loss": [NaN, 2.5, -Infinity, null, 2.25]}')
    assert math.isnan(values(trace)[0])
    assert values(trace)[1:] == [2.5, -math.inf, 2.25]


def test_a_number_that_is_cut_off_is_not_read() -> None:
    trace = read('{"val_loss": [2.5, 2.25], "loss": [2.5, 2.25, 2.0')
    assert values(trace) == [2.5, 2.25]


@pytest.mark.parametrize(
    "text", ['{"loss": 2.5}\n', '{"names": ["a", "b"]}', '{"accuracy": [0.5, 0.6]}', '{"loss": []}']
)
def test_other_objects_are_not_claimed(text: str) -> None:
    assert not READER.sniff(Head(text.encode()))
