"""icefall."""

from text_logs import read_lines, rows_of

ROW = (
    "2026-01-02 03:04:05,678 INFO [train.py] Epoch {epoch}, batch {at},{more} loss[loss={loss}, "
    "over 2400.00 frames.], tot_loss[loss=9.75, over 2400.00 "
    "frames.], batch size: 36, lr: 3.00e-03, grad_scale: 2.0"
)


def test_the_batch_counts_and_the_decaying_mean_does_not() -> None:
    trace = read_lines(
        "icefall",
        ROW.format(epoch=1, at=0, loss=7.75, more=""),
        ROW.format(epoch=1, at=50, loss="nan", more=" global_batch_idx: 50, batch size: 36,"),
        "INFO [train.py:790] Epoch 1, validation: loss=1.125, simple_loss=1, over 9000.00 frames.",
        ROW.format(epoch=2, at=0, loss=1.25, more=""),
    )
    assert rows_of(trace) == [(1, 7.75), (51, None), (52, 1.25)]
    assert rows_of(trace, "eval_loss") == [(51, 1.125)]
    assert rows_of(trace, "lr")[0] == (1, 0.003)
    assert rows_of(trace, "loss_scale")[0] == (1, 2.0)
    assert trace.facts["loss_window"] == 1


def test_a_line_without_scale_is_read() -> None:
    trace = read_lines(
        "icefall", ROW.format(epoch=1, at=0, loss=7.75, more="").split(", batch s")[0]
    )
    assert rows_of(trace) == [(1, 7.75)]
