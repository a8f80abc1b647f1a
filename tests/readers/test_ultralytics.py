"""results.csv of YOLO: sums of parts, padded headers, the rate of the weights."""

import math

from tests.readers.tables import facts, read, steps, values

V8 = (
    "epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/mAP50(B),"
    "val/box_loss,val/cls_loss,val/dfl_loss,lr/pg0,lr/pg1,lr/pg2\n"
)


def test_the_loss_is_the_sum_of_the_parts_and_each_part_is_a_metric() -> None:
    trace = read(
        V8 + "1,9.5,1,2,4,0.1,1.5,2.5,4.5,0.07,0.01,0.01\n2,19,0.5,1,2,0.2,1,2,3,0.06,0.02,0.02\n"
    )
    assert trace.reader == "ultralytics"
    assert values(trace) == [7.0, 3.5]
    assert values(trace, "eval_loss") == [8.5, 6.0]
    assert values(trace, "metric:train/cls_loss") == [2.0, 1.0]
    assert values(trace, "metric:val/dfl_loss") == [4.5, 3.0]
    assert "metric:time" not in trace.series
    assert steps(trace) == [1, 2]
    assert facts(trace, "loss_kind", "loss_form", "step_source") == [
        "falling",
        "mean",
        "counted rows",
    ]


def test_the_rate_is_that_of_the_weights_and_not_of_the_biases() -> None:
    trace = read(
        V8 + "1,9.5,1,2,4,0.1,1.5,2.5,4.5,0.07,0.01,0.01\n2,19,0.5,1,2,0.2,1,2,3,0.06,0.02,0.02\n"
    )
    assert values(trace, "lr") == [0.01, 0.02]
    assert values(trace, "metric:lr/pg0") == [0.07, 0.06]


def test_the_padded_headers_of_version_5_are_read() -> None:
    trace = read(
        "               epoch,      train/box_loss,      train/obj_loss,   metrics/precision,"
        "        val/box_loss,        val/obj_loss,               x/lr0,               x/lr1\n"
        "                   0,                 0.5,                0.25,                 0.1,"
        "                0.75,                 0.5,                 0.1,               0.001\n"
        "                   1,               0.375,               0.125,                 0.2,"
        "                 0.5,                0.25,                0.09,               0.002\n"
    )
    assert trace.reader == "ultralytics"
    assert values(trace) == [0.75, 0.5]
    assert values(trace, "eval_loss") == [1.25, 0.75]
    assert values(trace, "lr") == [0.001, 0.002]
    assert values(trace, "epoch") == [0.0, 1.0]


def test_a_part_that_is_not_finite_is_not_hidden_and_a_missing_part_leaves_no_sum() -> None:
    trace = read(
        V8
        + "1,9,1,2,4,0.1,1,inf,1,0.1,0.1,0.1\n2,9,nan,2,4,0.1,1,2,1,0.1,0.1,0.1\n"
        + "3,9,1,2,,0.1,1,2,1,0.1,0.1,0.1\n4,9,1,2,3,0.1,1,2,,0.1,0.1,0.1\n"
    )
    assert math.isnan(values(trace)[1])
    assert values(trace)[0] == 7.0
    assert values(trace)[2:] == [6.0]
    assert steps(trace) == [1, 2, 4]
    assert values(trace, "eval_loss") == [math.inf, 4.0, 4.0]
    assert values(trace, "metric:train/box_loss")[2:] == [1.0, 1.0]


def test_a_table_without_the_metrics_of_ultralytics_is_another() -> None:
    assert read("epoch,train/box_loss,val/box_loss\n1,2.5,2.6\n2,2.25,2.4\n").reader == "csv"
