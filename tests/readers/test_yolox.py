"""YOLOX."""

from text_logs import read_lines, rows_of

ROW = (
    "2026-01-02 03:04:05 | INFO     | yolox.core.trainer:246 - epoch: {epoch}/300, iter: {at}/100, "
    "gpu mem: 9301Mb, mem: 24.6Gb, iter_time: 0.250s, data_time: 0.001s, total_loss: {loss}, "
    "iou_loss: 4.0, lr: 6.250e-08, size: 640, ETA: 2 days, 3:34:03"
)


def test_iterations_of_epochs_are_steps_of_the_run() -> None:
    trace = read_lines(
        "yolox",
        ROW.format(epoch=1, at=50, loss=14.5),
        ROW.format(epoch=1, at=100, loss="nan"),
        ROW.format(epoch=2, at=50, loss=9.5),
    )
    assert rows_of(trace) == [(50, 14.5), (100, None), (150, 9.5)]
    assert rows_of(trace, "lr")[0] == (50, 6.25e-08)
    assert trace.facts["loss_window"] == 1
    assert set(trace.series) == {"epoch", "loss", "lr", "metric:iou_loss"}
