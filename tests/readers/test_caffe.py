"""Caffe: loss, rate and outputs on lines of their own."""

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

GLOG = "I0102 03:04:05.678901  4321 solver.cpp:218] "


def read(*lines: str) -> Trace:
    return read_lines("caffe", *(GLOG + line for line in lines))


def test_loss_and_rate_of_one_iteration_are_one_row() -> None:
    trace = read(
        *("Iteration 180, lr = 0.01", "Iteration 180, loss = 6.25"),
        *("Iteration 200, loss = 6.5", "Iteration 200, lr = 0.001"),
    )
    assert rows_of(trace) == [(180, 6.25), (200, 6.5)]
    assert rows_of(trace, "lr") == [(180, 0.01), (200, 0.001)]


def test_newer_lines_say_the_speed_in_brackets() -> None:
    trace = read(
        "Iteration 20 (5.125 iter/s, 3.9s/20 iters), loss = 2.25",
        "Iteration 40 (-1.4013e-45 iter/s, 0s/20 iters), loss = nan",
    )
    assert rows_of(trace) == [(20, 2.25), (40, None)]


def test_the_outputs_of_the_training_net_repeat_the_loss() -> None:
    trace = read(
        "Iteration 20, loss = 2.25",
        "    Train net output #0: loss = 9.5 (* 1 = 9.5 loss)",
        "    Train net output #1: loss_bbox = 0.125 (* 1 = 0.125 loss)",
        "Iteration 40, loss = 2.0",
    )
    assert rows_of(trace) == [(20, 2.25), (40, 2.0)]
    assert rows_of(trace, "metric:loss_bbox") == [(20, 0.125)]


def test_the_outputs_of_the_test_net_are_an_evaluation() -> None:
    trace = read(
        "Iteration 20, loss = 2.25",
        "    Train net output #0: accuracy = 0.125",
        "Iteration 40, Testing net (#0)",
        "    Test net output #0: accuracy = 0.25",
        "    Test net output #1: loss = 2.5 (* 1 = 2.5 loss)",
        "Iteration 40, loss = 2.0",
    )
    assert rows_of(trace, "eval_loss") == [(40, 2.5)]
    assert rows_of(trace, "metric:accuracy") == [(20, 0.125)]
    assert rows_of(trace, "metric:test accuracy") == [(40, 0.25)]


def test_the_solver_says_how_many_iterations_are_planned() -> None:
    trace = read_lines("caffe", "max_iter: 450000", GLOG + "Iteration 20, loss = 87.3365")
    assert trace.facts["total_steps"] == 450000
    assert rows_of(trace) == [(20, 87.3365)]
