"""TensorFlow 1: slim and Estimator."""

import pytest

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of


def read(*lines: str) -> Trace:
    return read_lines("tf-slim", *lines)


def test_a_line_that_two_loggers_write_is_one_row() -> None:
    trace = read(
        "INFO:tensorflow:global step 9: loss = 25237.8750 (0.273 sec/step)",
        "I0102 03:04:05.258542 1404 learning.py:507] global step 9: loss = 25237.8750 (0.273 sec)",
        "INFO:tensorflow:global step 10: loss = 0.1250 (0.319 sec/step)",
    )
    assert rows_of(trace) == [(9, 25237.875), (10, 0.125)]


def test_a_loss_of_thirty_digits_is_a_number() -> None:
    line = (
        "INFO:tensorflow:global step 9: loss = 340282346638528859811704183484516925440.0000 (1 s)"
    )
    assert rows_of(read(line)) == [(9, 3.4028234663852886e38)]


def test_a_line_that_is_cut_within_its_loss_is_no_row() -> None:
    line = "INFO:tensorflow:global step 9: loss = 0.1250 (0.273 sec/step)"
    assert rows_of(read(line, line.split("250")[0])) == [(9, 0.125)]


@pytest.mark.parametrize(
    "prefix",
    ["INFO:tensorflow:", "I0102 03:04:05.678901 1404 basic_session_run_hooks.py:262] "],
)
def test_estimator_names_the_step_behind_the_loss(prefix: str) -> None:
    trace = read(
        f"{prefix}loss = 0.5, step = 100",
        "INFO:tensorflow:global_step/sec: 0.985096",
        f"{prefix}loss = 0.25, step = 200 (1.125 sec)",
        f"{prefix}loss = nan, accuracy = 0.75, step = 300 (1.125 sec)",
    )
    assert rows_of(trace) == [(100, 0.5), (200, 0.25), (300, None)]
    assert rows_of(trace, "metric:accuracy") == [(300, 0.75)]


def test_what_is_saved_is_an_evaluation() -> None:
    trace = read(
        "INFO:tensorflow:accuracy = 0.125, loss = 0.5, step = 100",
        "INFO:tensorflow:Saving dict for global step 100: accuracy = 0.25, global_step = 100, "
        "loss = 0.75",
    )
    assert rows_of(trace, "eval_loss") == [(100, 0.75)]
    assert rows_of(trace, "metric:accuracy") == [(100, 0.125)]
    assert rows_of(trace, "metric:eval accuracy") == [(100, 0.25)]


def test_the_word_that_it_diverged_is_a_loss() -> None:
    trace = read(
        "INFO:tensorflow:loss = 0.5, step = 100",
        "INFO:tensorflow:loss = 0.25, step = 200 (1.125 sec)",
        "ERROR:tensorflow:Model diverged with loss = NaN.",
    )
    assert rows_of(trace) == [(100, 0.5), (200, None)]
