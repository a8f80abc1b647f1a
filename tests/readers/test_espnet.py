"""ESPnet 2."""

from text_logs import read_lines, rows_of

ROW = (
    "[node1] 2026-01-02 03:04:05,678 (trainer:737) INFO: {epoch}epoch:train:{first}-{last}batch: "
    "iter_time=1.250e-04, forward_time=0.125, loss_ctc=310.5, loss_att=210.25, acc=0.125, "
    "loss={loss}, backward_time=0.250, grad_norm={norm}, clip=100.000, loss_scale=6.554e+04, "
    "optim_step_time=0.050, optim0_lr0=1.250e-05, train_time=0.500"
)


def test_the_last_batch_of_a_line_is_its_step() -> None:
    trace = read_lines(
        "espnet",
        ROW.format(epoch=1, first=1, last=100, loss=240.5, norm=52.25),
        ROW.format(epoch=1, first=101, last=200, loss=122.25, norm="nan"),
        ROW.format(epoch=2, first=1, last=100, loss=110.25, norm="inf"),
    )
    assert rows_of(trace) == [(100, 240.5), (200, 122.25), (300, 110.25)]
    assert rows_of(trace, "grad_norm")[:2] == [(100, 52.25), (200, None)]
    assert rows_of(trace, "loss_scale")[0] == (100, 65540.0)
    assert rows_of(trace, "lr")[0] == (100, 1.25e-05)
    assert rows_of(trace, "epoch") == [(100, 1.0), (200, 1.0), (300, 2.0)]
    assert trace.facts["loss_window"] == 100
    assert not {"metric:iter_time", "metric:train_time"} & trace.series.keys()


def test_batches_that_are_not_finite_are_left_out_of_the_mean() -> None:
    trace = read_lines("espnet", ROW.format(epoch=1, first=1, last=100, loss=240.5, norm=52.25))
    assert trace.facts["nan_filter"] == "on"


def test_the_results_of_an_epoch_hold_no_new_row_of_the_training() -> None:
    trace = read_lines(
        "espnet",
        ROW.format(epoch=1, first=1, last=100, loss=240.5, norm=52.25),
        ROW.format(epoch=1, first=101, last=200, loss=122.25, norm=32.25),
        "(trainer:343) INFO: 1epoch results: [train] iter_time=1.250e-04, loss_ctc=230.5, "
        "loss=181.25, grad_norm=9.5, time=1 minute and 5 seconds, total_count=200, [valid] "
        "loss_ctc=120.5, cer_ctc=0.5, loss=101.5, time=5.25 seconds, total_count=20, "
        "[att_plot] time=2 seconds",
        "(trainer:343) INFO: 2epoch results: [train] iter_time=1.250e-04, loss=180.25, optim_st",
    )
    assert rows_of(trace) == [(100, 240.5), (200, 122.25)]
    assert rows_of(trace, "grad_norm")[-1] == (200, 32.25)
    assert rows_of(trace, "eval_loss") == [(200, 101.5)]
    assert trace.lines_skipped == 0
