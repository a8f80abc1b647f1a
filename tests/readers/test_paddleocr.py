"""PaddleOCR."""

from text_logs import read_lines, rows_of

ROW = (
    "[2026/01/02 03:04] ppocr INFO: epoch: [{epoch}/90], global_step: {step}, lr: 0.000125, acc: "
    "0.250000, CTCLoss: {loss}, loss: {loss}, avg_reader_cost: 0.125 s, avg_batch_cost: 0.25 s, "
    "avg_samples: 64.0, ips: 256.5 samples/s, eta: 2 days, 1:30:15, max_mem_reserved: 900 MB, "
    "max_mem_allocated: 800 MB"
)


def test_nan_is_filled_up_to_six_places() -> None:
    rows = [
        ROW.format(epoch=1, step=10 * i, loss=loss)
        for i, loss in enumerate(("42.500000", "nanxxx", "infxxx", "-infxx"), start=1)
    ]
    trace = read_lines("paddleocr", *rows)
    infinity = float("inf")
    assert rows_of(trace) == [(10, 42.5), (20, None), (30, infinity), (40, -infinity)]
    assert trace.facts["loss_form"] == "window median"
    kept = {"epoch", "loss", "lr", "metric:CTCLoss", "metric:acc"}
    assert set(trace.series) == kept


def test_iter_counts_over_the_run_in_older_versions() -> None:
    row = (
        "epoch: [{epoch}/90], iter: {step}, lr: 0.000125, loss: {loss}, reader_cost: 0.00012 s, "
        "batch_cost: 0.25 s, samples: 640, ips: 256.5"
    )
    trace = read_lines(
        "paddleocr",
        row.format(epoch=1, step=10, loss="42.500000"),
        row.format(epoch=2, step=20, loss="32.500000"),
    )
    assert rows_of(trace) == [(10, 42.5), (20, 32.5)]
    assert set(trace.series) == {"epoch", "loss", "lr"}


def test_an_evaluation_has_names_of_its_own() -> None:
    trace = read_lines(
        "paddleocr",
        ROW.format(epoch=1, step=10, loss="42.500000"),
        "[2026/01/02 03:04:06] ppocr INFO: cur metric, acc: 0.5, norm_edit_dis: 0.75, fps: 900.5",
        "[2026/01/02 03:04:06] ppocr INFO: best metric, acc: 0.9, norm_edit_dis: 0.9, fps: 900.5",
    )
    assert rows_of(trace, "metric:acc") == [(10, 0.25)]
    assert rows_of(trace, "metric:eval_acc") == [(10, 0.5)]
    assert rows_of(trace, "metric:eval_norm_edit_dis") == [(10, 0.75)]
    assert "metric:fps" not in trace.series
