"""TensorFlow 2 Object Detection."""

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

GLOG = "I0102 03:04:05.678901 1404 model_lib_v2.py:698] "


def read(*lines: str) -> Trace:
    return read_lines("tf-object-detection", *lines)


def test_a_line_that_two_loggers_write_is_one_row() -> None:
    trace = read(
        "INFO:tensorflow:Step 100 per-step time 0.513s loss=1.375",
        GLOG + "Step 100 per-step time 0.513s loss=1.375",
        "INFO:tensorflow:Step 200 per-step time 0.513s loss=nan",
    )
    assert rows_of(trace) == [(100, 1.375), (200, None)]


def test_a_line_that_is_cut_within_its_loss_spoils_no_row() -> None:
    line = "INFO:tensorflow:Step 100 per-step time 0.513s loss=1.375"
    assert rows_of(read(line, line[:-1])) == [(100, 1.375)]


def test_newer_releases_write_a_dict_behind_the_step() -> None:
    block = (
        "Step {} per-step time 0.513s",
        "{{'Loss/classification_loss': 0.5,",
        " 'Loss/total_loss': {},",
        " 'learning_rate': 0.25}}",
    )
    lines = [text for n, loss in ((100, 2.5), (200, 1.5)) for text in block]
    values = iter((100, 2.5, 200, 1.5))
    filled = [
        f"INFO:tensorflow:{line.format(next(values) if '{}' in line else '')}" for line in lines
    ]
    trace = read(*filled)
    assert rows_of(trace) == [(100, 2.5), (200, 1.5)]
    assert rows_of(trace, "lr") == [(100, 0.25), (200, 0.25)]
    assert rows_of(trace, "metric:Loss/classification_loss") == [(100, 0.5), (200, 0.5)]
