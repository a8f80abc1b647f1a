"""JAX's clu: the step in brackets, names and values behind it."""

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

GLOG = "I0102 03:04:05.678901 140000000000000 logging_writer.py:48] "


def read(*lines: str) -> Trace:
    return read_lines("clu", *lines)


def test_names_mean_what_they_say() -> None:
    trace = read(
        GLOG + "[100] accuracy=0.125, learning_rate=0.00025, loss=6.5",
        GLOG + "[200] steps_per_sec=9.5",
        GLOG + "[200] eval_loss=6.25, train_loss=nan",
        GLOG + "[300] loss=nan",
    )
    assert rows_of(trace) == [(100, 6.5), (300, None)]
    assert rows_of(trace, "eval_loss") == [(200, 6.25)]
    assert rows_of(trace, "lr") == [(100, 0.00025)]


def test_a_collection_that_is_not_trained_on_is_an_evaluation() -> None:
    trace = read(
        GLOG + "[100] collection=train accuracy=0.125, loss=6.5",
        GLOG + "[100] collection=eval/c4 accuracy=0.25, loss=6.25",
        GLOG + "[200] collection=train accuracy=0.375, loss=5.5",
    )
    assert rows_of(trace) == [(100, 6.5), (200, 5.5)]
    assert rows_of(trace, "eval_loss") == [(100, 6.25)]
    assert rows_of(trace, "metric:accuracy") == [(100, 0.125), (200, 0.375)]
    assert rows_of(trace, "metric:eval accuracy") == [(100, 0.25)]


def test_the_lines_stand_alone_as_well() -> None:
    assert rows_of(read("[100] loss=6.5, l2=0.5", "[200] loss=5.5")) == [(100, 6.5), (200, 5.5)]
