"""timm's and OpenPCDet's console."""

from text_logs import read_lines, rows_of

ROW = (
    "Train: {epoch} [{at:4d}/100 (  {percent}%)]  Loss: {loss} (6.94)  Time: 5.250s,   24.38/s  "
    "(5.250s,   24.38/s)  LR: 1.000e-06  Data: 2.500 (2.500)"
)


def test_updates_and_epochs_count_from_zero() -> None:
    trace = read_lines(
        "timm-console",
        ROW.format(epoch=0, at=0, percent=0, loss=6.938),
        ROW.format(epoch=0, at=50, percent=50, loss="nan"),
        ROW.format(epoch=1, at=0, percent=0, loss=" 6.750"),
    )
    assert rows_of(trace) == [(1, 6.938), (51, None), (101, 6.75)]
    assert rows_of(trace, "lr")[0] == (1, 1e-06)
    assert trace.facts["loss_window"] == 1
    assert set(trace.series) == {"epoch", "loss", "lr"}


def test_the_last_mean_of_an_evaluation_is_that_of_all_its_data() -> None:
    trace = read_lines(
        "timm-console",
        ROW.format(epoch=0, at=0, percent=0, loss=6.938),
        "Test: [   0/48]  Time: 1.250 (1.250)  Loss:  9.750 ( 9.750)  Acc@1:  0.500 ( 0.500)",
        "Test: [  48/48]  Time: 0.250 (0.375)  Loss:  9.500 ( 6.625)  Acc@1:  0.500 ( 0.625)",
    )
    assert rows_of(trace, "eval_loss") == [(1, 6.625)]


def test_the_averaged_weights_are_evaluated_too_and_come_last() -> None:
    trace = read_lines(
        "timm-console",
        ROW.format(epoch=0, at=0, percent=0, loss=6.938),
        "Test (EMA): [  48/48]  Time: 0.250 (0.375)  Loss:  9.500 ( 6.875)  Acc@1:  0.500 ( 0.62)",
    )
    assert rows_of(trace, "eval_loss") == [(1, 6.875)]


def test_openpcdet_counts_epochs_from_one() -> None:
    row = (
        "2026-01-02 03:04:05,678   INFO  Train:    {epoch}/3 ( 33%) [{at:4d}/100 (  0%)]  "
        "Loss: {loss} (517.)  LR: 1.000e-04  Time cost: 00:04/21:46 [00:04/1:05:18]  Acc_iter 1    "
        "       Data time: 0.87(0.87)  Forward time: 3.18(3.18)  Batch time: 4.04(4.04)"
    )
    trace = read_lines(
        "timm-console",
        row.format(epoch=1, at=0, loss=516.5),
        row.format(epoch=2, at=49, loss=36.75),
    )
    assert rows_of(trace) == [(1, 516.5), (150, 36.75)]
    assert rows_of(trace, "lr") == [(1, 0.0001), (150, 0.0001)]
    assert set(trace.series) == {"epoch", "loss", "lr"}
