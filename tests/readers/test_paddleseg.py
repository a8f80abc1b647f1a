"""PaddleSeg."""

import pytest
from text_logs import read_lines, rows_of


@pytest.mark.parametrize("mark", [": ", "="])
def test_all_versions_are_read(mark: str) -> None:
    row = (
        "2026-01-02 03:04:05 [INFO]\t[TRAIN] epoch#1, iter#{step}/9000, loss#{loss}, lr#0.009991, "
        "batch_cost#0.25, reader_cost#0.0625, ips#16.0 samples/sec | ETA 00:37:28"
    ).replace("#", mark)
    trace = read_lines(
        "paddleseg",
        row.format(step=10, loss="2.7500"),
        row.format(step=20, loss="nan"),
        "2026-01-02 03:04:18 [INFO]\t[EVAL] #Images: 100 mIoU: 0.1250 Acc: 0.5000",
        "2026-01-02 03:04:18 [INFO]\t[EVAL] The model with the best validation mIoU (0.125)",
    )
    assert rows_of(trace) == [(10, 2.75), (20, None)]
    assert rows_of(trace, "lr") == [(10, 0.009991), (20, 0.009991)]
    assert rows_of(trace, "metric:mIoU") == [(20, 0.125)]
    assert trace.facts["total_steps"] == 9000
    assert trace.facts["loss_window"] == 10
    kept = {"epoch", "loss", "lr", "metric:mIoU", "metric:Acc"}
    assert set(trace.series) == kept
    assert trace.lines_skipped == 0
