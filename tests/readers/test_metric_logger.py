"""The MetricLogger of torchvision, DETR, DeiT and MAE."""

from text_logs import read_lines, rows_of

ROW = (
    "Epoch: [{epoch}]  [{at:3d}/100]  eta: 1 day, 1:20:30  lr: 0.000125  img/s: 900.5 (800.5)  "
    "loss: {loss} ({mean})  loss_ce: 0.5000 (0.5000)  grad_norm: 0.3750 (nan)  time: 5.3685  "
    "data: 2.6134  max mem: 5000"
)


def test_the_median_counts_and_the_mean_in_brackets_does_not() -> None:
    trace = read_lines(
        "metric-logger",
        ROW.format(epoch=0, at=0, loss="6.9375", mean="6.9375"),
        ROW.format(epoch=0, at=20, loss="6.8750", mean="nan"),
        ROW.format(epoch=1, at=0, loss="nan", mean="6.5000"),
    )
    assert rows_of(trace) == [(1, 6.9375), (21, 6.875), (101, None)]
    assert rows_of(trace, "grad_norm")[0] == (1, 0.375)
    assert rows_of(trace, "epoch") == [(1, 0.0), (21, 0.0), (101, 1.0)]
    assert trace.facts["loss_form"] == "window median"
    kept = {"epoch", "grad_norm", "loss", "lr", "metric:loss_ce"}
    assert set(trace.series) == kept


def test_the_last_mean_of_an_evaluation_is_that_of_all_its_data() -> None:
    trace = read_lines(
        "metric-logger",
        ROW.format(epoch=0, at=0, loss="6.9375", mean="6.9375"),
        "Averaged stats: lr: 0.000125  loss: 1.5000 (1.5000)",
        "Test:  [ 0/50]  eta: 0:01:30  loss: 9.5000 (9.5000)  acc1: 0.5000 (0.5000)  time: 1.5",
        "Test:  [49/50]  eta: 0:00:01  loss: 9.2500 (6.3750)  acc1: 0.5000 (0.6250)  time: 0.5",
        "* Acc@1 0.600 Acc@5 0.900 loss 6.250",
        "Test: Total time: 0:00:10 (0.2 s / it)",
    )
    assert rows_of(trace) == [(1, 6.9375)]
    assert rows_of(trace, "eval_loss") == [(1, 6.25)]
    assert trace.lines_skipped == 0


def test_an_evaluation_may_show_a_bar_only() -> None:
    trace = read_lines(
        "metric-logger",
        ROW.format(epoch=0, at=0, loss="6.9375", mean="6.9375"),
        "Test:  [ 0/50]  eta: 0:01:30  loss: 9.5000 (9.5000)  acc1: 0.5000 (0.5000)  time: 1.5",
        "Test:  [49/50]  eta: 0:00:01  loss: 9.2500 (6.3750)  acc1: 0.5000 (0.6250)  time: 0.5",
    )
    assert rows_of(trace, "eval_loss") == [(1, 6.375)]


def test_the_words_that_end_a_run_are_its_nan() -> None:
    trace = read_lines(
        "metric-logger",
        ROW.format(epoch=0, at=0, loss="6.9375", mean="6.9375"),
        ROW.format(epoch=0, at=20, loss="6.8750", mean="6.9062"),
        "Loss is nan, stopping training",
    )
    assert rows_of(trace) == [(1, 6.9375), (21, None)]
