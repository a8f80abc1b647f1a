"""Darknet: a line an update, lines a detection layer."""

import pytest

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

REST = ", 0.001000 rate, 3.300000 seconds, 627072 images"


def read(*lines: str) -> Trace:
    return read_lines("darknet", *lines)


@pytest.mark.parametrize(
    "line",
    [
        " {n}: {x}, 0.451929 avg" + REST,
        " {n}: {x}, 0.451929 avg loss" + REST + ", 1.250000 hours left",
        "{n}, 1.870: {x}, 0.451929 avg" + REST,
        "{n}: loss={x}, avg loss=0.451929, last=45.25%, rate=0.00100000, batch time=1.5s",
    ],
)
def test_the_first_number_is_the_loss_of_the_update(line: str) -> None:
    trace = read(line.format(n=9798, x="0.375000"), line.format(n=9799, x="-nan"))
    assert rows_of(trace) == [(9798, 0.375), (9799, None)]
    assert rows_of(trace, "metric:avg_loss") == [(9798, 0.451929), (9799, 0.451929)]
    assert rows_of(trace, "lr") == [(9798, 0.001), (9799, 0.001)]


def test_a_layer_that_saw_no_box_says_nothing() -> None:
    trace = read(
        "Region 82 Avg IOU: 0.750000, Class: 0.500000, Obj: 0.625000, No Obj: 0.006250, "
        ".5R: 1.000000, .75R: 0.333333,  count: 3",
        "Region 106 Avg IOU: -nan, Class: -nan, Obj: -nan, No Obj: 0.125000, .5R: -nan, "
        ".75R: -nan,  count: 0",
    )
    assert rows_of(trace, "metric:Avg IOU") == [(1, 0.75)]
    assert rows_of(trace, "metric:No Obj") == [(1, 0.125)]
    assert "loss" not in trace.series


def test_a_nan_of_a_layer_with_boxes_is_one() -> None:
    trace = read("Region 82 Avg IOU: -nan, Class: -nan, Obj: 0.5, No Obj: 0.25, .5R: 0,  count: 3")
    assert rows_of(trace, "metric:Avg IOU") == [(1, None)]


def test_the_loss_of_a_layer_is_not_that_of_the_update() -> None:
    layer = (
        "v3 (iou loss, Normalizer: (iou: 0.07, obj: 1.00, cls: 1.00) Region 139 Avg (IOU: 0.25), "
        "count: 4, loss = 292.5, class_loss = 9.5, iou_loss = 0.5, total_loss = 10.0"
    )
    trace = read(
        layer, " 1: 912.5, 912.5 avg loss" + REST, layer, " 2: 887.25, 910.0 avg loss" + REST
    )
    assert rows_of(trace) == [(1, 912.5), (2, 887.25)]
    assert rows_of(trace, "metric:layer total_loss")[-1][1] == 10.0


def test_the_mean_average_precision_is_a_metric() -> None:
    trace = read(
        " 1000: 1.5, 1.5 avg loss" + REST,
        " mean average precision (mAP@0.50) = 0.456250, or 45.63 % ",
    )
    assert rows_of(trace, "metric:map") == [(1000, 0.45625)]
