"""maskrcnn-benchmark."""

from text_logs import read_lines, rows_of

ROW = (
    "2026-01-02 03:04:05,678 maskrcnn_benchmark.trainer INFO: eta: 1 day, 5:41:49  iter: {step}  "
    "loss: {loss} ({mean})  loss_classifier: 1.2500 (1.5000)  time: 0.2293 (0.3125)  "
    "data: 0.0033 (0.0625)  lr: 0.000125  max mem: 3782"
)


def test_the_median_counts_and_the_mean_in_brackets_does_not() -> None:
    trace = read_lines(
        "maskrcnn-benchmark",
        ROW.format(step=20, loss="1.7500", mean="2.1250"),
        ROW.format(step=40, loss="1.6250", mean="nan"),
    )
    assert rows_of(trace) == [(20, 1.75), (40, 1.625)]
    assert trace.facts["loss_form"] == "window median"
    assert set(trace.series) == {"loss", "lr", "metric:loss_classifier"}
