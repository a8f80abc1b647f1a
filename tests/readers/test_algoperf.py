"""measurements.csv of AlgoPerf: rows of two kinds, two training losses, no clocks."""

import math

from tests.readers.tables import facts, read, steps, values

HEADER = (
    "accumulated_submission_time,global_step,grad_norm,loss,preemption_count,score,"
    "test/loss,test/num_examples,train/loss,validation/loss,validation/num_examples\n"
)


def test_the_minibatch_loss_is_the_loss_and_the_plain_one_a_metric() -> None:
    trace = read(
        HEADER
        + ",0,2.5,6.75,,,,,,,\n30.5,1,,,0,30.5,6.8,100,6.7,6.75,50\n"
        + ",100,inf,6.5,,,,,,,\n,200,2.25,inf,,,,,,,\n60.5,201,,,0,60.5,6.5,100,6.4,6.5,50\n"
    )
    assert trace.reader == "algoperf"
    assert steps(trace) == [1, 101, 201]
    assert values(trace) == [6.75, 6.5, math.inf]
    assert values(trace, "grad_norm") == [2.5, math.inf, 2.25]
    assert values(trace, "eval_loss") == [6.75, 6.5]
    assert values(trace, "metric:train/loss") == [6.7, 6.4]
    assert values(trace, "metric:test/loss") == [6.8, 6.5]
    assert facts(trace, "losses_comparable", "loss_window") == ["no", 1]
    assert sorted(trace.series) == [
        "eval_loss",
        "grad_norm",
        "loss",
        "metric:test/loss",
        "metric:train/loss",
    ]


def test_without_rows_of_training_the_plain_loss_is_the_loss() -> None:
    trace = read(
        "accumulated_submission_time,global_step,score,train/ctc_loss,validation/ctc_loss\n"
        "30.5,1,30.5,31.5,30.25\n60.5,1500,60.5,6.5,6.25\n"
    )
    assert steps(trace) == [1, 1500]
    assert values(trace) == [31.5, 6.5]
    assert values(trace, "eval_loss") == [30.25, 6.25]
    assert "losses_comparable" not in trace.facts


def test_a_row_with_a_step_alone_is_neither_a_value_nor_damage() -> None:
    trace = read(
        HEADER + ",0,2.5,6.75,,,,,,,\n,100,2.5,6.5,,,,,,,\n,200,,,,,,,,,\n9,201,,,0,9,,,,,\n"
    )
    assert steps(trace) == [1, 101]
    assert trace.lines_skipped == 0
