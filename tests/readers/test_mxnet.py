"""MXNet's Speedometer and the values at the end of an epoch."""

import math

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of


def read(*lines: str) -> Trace:
    return read_lines("mxnet", *(f"INFO:root:{line}" for line in lines))


def batch(epoch: int, at: str, values: str) -> str:
    return f"Epoch[{epoch}] Batch [{at}]\tSpeed: 512.50 samples/sec\t{values}"


def test_batches_of_several_epochs_are_counted_through() -> None:
    trace = read(
        batch(0, "0-20", "accuracy=0.125\tcross-entropy=2.5"),
        batch(0, "20-40", "accuracy=0.250\tcross-entropy=2.25"),
        batch(1, "0-20", "accuracy=0.375\tcross-entropy=2.0\tlr=0.25"),
    )
    assert rows_of(trace) == [(20, 2.5), (40, 2.25), (60, 2.0)]
    assert rows_of(trace, "metric:accuracy") == [(20, 0.125), (40, 0.25), (60, 0.375)]
    assert rows_of(trace, "lr") == [(60, 0.25)]


def test_old_lines_say_train_and_hold_one_value_each() -> None:
    trace = read(
        batch(4, "20", "Train-CrossEntropy=0.625"),
        batch(4, "20", "Train-SmoothL1=1.5"),
        batch(4, "40", "Train-CrossEntropy=0.500"),
    )
    assert rows_of(trace) == [(20, 0.625), (40, 0.5)]
    assert rows_of(trace, "metric:SmoothL1") == [(20, 1.5)]


def test_what_is_left_at_the_end_of_an_epoch_is_no_row_and_its_nan_no_illness() -> None:
    trace = read(
        batch(0, "20", "cross-entropy=2.5"),
        batch(0, "40", "cross-entropy=2.25"),
        "Epoch[0] Train-cross-entropy=nan",
        "Epoch[0] Validation-cross-entropy=2.375",
        "Epoch[0] Validation-accuracy=0.5",
        "Epoch[0] Time cost=1.25",
    )
    assert rows_of(trace) == [(20, 2.5), (40, 2.25)]
    assert rows_of(trace, "eval_loss") == [(40, 2.375)]
    assert rows_of(trace, "metric:validation accuracy") == [(40, 0.5)]


def test_without_batches_an_epoch_is_a_row() -> None:
    lines = [
        f"Epoch[{n}] {d}-mse={x}" for n in range(3) for d, x in (("Train", n), ("Validation", 9))
    ]
    trace = read(*lines)
    assert rows_of(trace) == [(1, 0.0), (2, 1.0), (3, 2.0)]
    assert rows_of(trace, "eval_loss") == [(1, 9.0), (2, 9.0), (3, 9.0)]


def test_of_a_perplexity_the_logarithm_is_the_loss() -> None:
    trace = read(batch(0, "20", "perplexity=64.0"), batch(0, "40", "perplexity=32.0"))
    assert rows_of(trace) == [(20, math.log(64.0)), (40, math.log(32.0))]


def test_gluoncv_puts_epoch_and_batch_into_brackets_of_their_own() -> None:
    line = "[Epoch {}][Batch {}], Speed: 9.5 samples/sec, CrossEntropy={}, SmoothL1=1.125"
    trace = read(line.format(0, 99, 2.5), line.format(0, 199, 2.25))
    assert rows_of(trace) == [(99, 2.5), (199, 2.25)]


def test_batches_are_counted_through_where_no_loss_is_logged() -> None:
    lines = [batch(n, at, f"accuracy=0.{n}{at}") for n in (1, 2) for at in ("20", "40")]
    assert [step for step, _ in rows_of(read(*lines), "metric:accuracy")] == [20, 40, 60, 80]
