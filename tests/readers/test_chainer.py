"""Chainer's PrintReport."""

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

HEADER = "epoch       iteration   main/loss   validation/main/loss  main/accuracy  elapsed_time"


def read(*lines: str) -> Trace:
    return read_lines("chainer", *lines)


def row(*cells: object) -> str:
    widths = (12, 12, 12, 22, 15, 12)
    return "".join(f"{cell!s:<{width}}" for cell, width in zip(cells, widths, strict=True))


def test_a_blank_cell_is_no_value_and_moves_no_other() -> None:
    trace = read(
        *(HEADER, row(1, 50, 2.25, "", 0.125, 1.5)),
        "\x1b[J" + row(1, 100, "nan", 2.5, 0.25, 2.5),
    )
    assert rows_of(trace) == [(50, 2.25), (100, None)]
    assert rows_of(trace, "eval_loss") == [(100, 2.5)]
    assert rows_of(trace, "metric:main/accuracy") == [(50, 0.125), (100, 0.25)]
    assert trace.facts["loss_window"] == 50


def test_progress_bars_between_the_rows_are_none() -> None:
    bars = (
        "     total [##########........................................] 20.00%",
        "this epoch [#########################.........................] 50.00%",
        "       500 iter, 3 epoch / 20 epochs",
        "    10.125 iters/sec. Estimated time to finish: 0:03:00.5.",
    )
    trace = read(HEADER, row(1, 50, 2.25, "", 0.125, 1.5), *bars, row(1, 100, 2.0, "", 0.25, 3))
    assert rows_of(trace) == [(50, 2.25), (100, 2.0)]


def test_without_iterations_the_epoch_is_the_step() -> None:
    trace = read("epoch       main/loss   lr", "5           2.25        0.25", "10          2.0")
    assert rows_of(trace) == [(5, 2.25), (10, 2.0)]
    assert rows_of(trace, "lr") == [(5, 0.25)]


def test_a_row_that_is_cut_before_its_loss_is_none() -> None:
    trace = read(HEADER, row(1, 50, 2.25, "", 0.125, 1.5), row(1, 100, 2.0, "", 0.125, 1.5)[:13])
    assert rows_of(trace) == [(50, 2.25)]
    assert rows_of(trace, "epoch") == [(50, 1.0)]
