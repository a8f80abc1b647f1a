"""PaddleDetection."""

from text_logs import read_lines, rows_of

ROW = (
    "[01/02 03:04:05] ppdet.engine INFO: Epoch: [{epoch}] [{at:3d}/100] learning_rate: 0.000125 "
    "loss_cls: 1.250000 loss: {loss} eta: 1 day, 1:30:15 batch_cost: 1.2500 data_cost: 0.0005 "
    "ips: 0.8000 images/s, max_mem_reserved: 900 MB, max_mem_allocated: 800 MB"
)


def test_epochs_and_updates_count_from_zero() -> None:
    trace = read_lines(
        "paddledetection",
        ROW.format(epoch=0, at=0, loss="1.750000"),
        ROW.format(epoch=0, at=20, loss="nan"),
        ROW.format(epoch=1, at=0, loss="1.625000"),
    )
    assert rows_of(trace) == [(1, 1.75), (21, None), (101, 1.625)]
    assert rows_of(trace, "lr")[0] == (1, 0.000125)
    assert trace.facts["loss_form"] == "window median"
    assert set(trace.series) == {"epoch", "loss", "lr", "metric:loss_cls"}
