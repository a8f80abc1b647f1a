"""PyTorch's ImageNet example and its kin."""

from text_logs import read_lines, rows_of

ROW = (
    "Epoch: [{epoch}][{at:3d}/100]\tTime  5.250 ( 5.250)\tData  2.500 ( 2.500)\t"
    "Loss {loss} (9.5000e+00)\tAcc@1   0.50 (  0.75)\tAcc@5   1.25 (  1.50)"
)


def test_the_update_counts_and_the_mean_in_brackets_does_not() -> None:
    trace = read_lines(
        "torch-imagenet",
        ROW.format(epoch=0, at=0, loss="6.9375e+00"),
        ROW.format(epoch=0, at=10, loss="nan"),
        ROW.format(epoch=1, at=0, loss="6.7500e+00"),
    )
    assert rows_of(trace) == [(1, 6.9375), (11, None), (101, 6.75)]
    assert rows_of(trace, "metric:Acc@1")[0] == (1, 0.5)
    assert trace.facts["loss_window"] == 1
    assert set(trace.series) == {"epoch", "loss", "metric:Acc@1", "metric:Acc@5"}


def test_updates_may_count_from_one() -> None:
    trace = read_lines(
        "torch-imagenet",
        ROW.format(epoch=0, at=1, loss=6.9375),
        ROW.format(epoch=0, at=11, loss=6.875),
        ROW.format(epoch=1, at=1, loss=6.75),
    )
    assert rows_of(trace) == [(1, 6.9375), (11, 6.875), (101, 6.75)]


def test_epochs_may_count_from_one() -> None:
    row = "Epoch: [{epoch}][{at}/100]  Time 0.690 (0.986)  Data 0.004 (0.009)  Loss 2.5 (9.5)"
    trace = read_lines("torch-imagenet", row.format(epoch=1, at=1), row.format(epoch=2, at=1))
    assert [step for step, _ in rows_of(trace)] == [1, 101]


def test_the_old_example_has_four_blanks_less() -> None:
    row = (
        "Epoch: [0][{at}/5005]\tTime 3.550 (3.550)\tData 3.000 (3.000)\tSpeed 80.5 (70.5)\t"
        "Loss {loss} (6.9375)\tLR 0.125\tPrec@1 0.500 (0.500)\tPrec@5 1.250 (1.250)"
    )
    trace = read_lines("torch-imagenet", row.format(at=0, loss=6.9375), row.format(at=10, loss=6.5))
    assert rows_of(trace) == [(1, 6.9375), (11, 6.5)]
    assert rows_of(trace, "lr") == [(1, 0.125), (11, 0.125)]
    assert "metric:Speed" not in trace.series


def test_the_last_mean_of_an_evaluation_is_that_of_all_its_data() -> None:
    for name in ("Test: [", "val["):
        trace = read_lines(
            "torch-imagenet",
            ROW.format(epoch=0, at=0, loss=6.9375),
            name
            + " 0/50]\tTime  1.250 ( 1.250)\tLoss 9.7500e+00 (9.7500e+00)\tAcc@1   0.50 (0.50)",
            name
            + "49/50]\tTime  0.250 ( 0.375)\tLoss 9.5000e+00 (6.6250e+00)\tAcc@1   0.50 (0.62)",
        )
        assert rows_of(trace, "eval_loss") == [(1, 6.625)]
