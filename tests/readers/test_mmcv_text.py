"""MMCV before 2, as text."""

from text_logs import read_lines, rows_of

HEAD = "2026-01-02 03:04:05,678 - mmdet - INFO - "
TAIL = (
    "time: 0.784, data_time: 0.085, memory: 8104, loss_cls: 0.8125, loss_bbox: {part}, loss: {loss}"
)


def row(place: str, loss: object, part: object = 0.25, rates: str = "lr: 1.000e-02") -> str:
    return f"{HEAD}{place}\t{rates}, eta: 1 day, 5:02:49, " + TAIL.format(part=part, loss=loss)


def test_iterations_of_epochs_are_steps_of_the_run() -> None:
    trace = read_lines(
        "mmcv",
        row("Epoch [1][50/110]", 1.25),
        row("Epoch [1][100/110]", 1.125),
        row("Epoch [2][50/110]", 1.0),
    )
    assert rows_of(trace) == [(50, 1.25), (100, 1.125), (160, 1.0)]
    assert rows_of(trace, "epoch") == [(50, 1.0), (100, 1.0), (160, 2.0)]
    assert trace.facts["loss_window"] == 50
    assert trace.facts["loss_form"] == "mean"
    assert not {"metric:eta", "metric:memory", "metric:data_time"} & trace.series.keys()


def test_iterations_of_the_run_are_steps_and_tell_the_plan() -> None:
    trace = read_lines("mmcv", row("Iter [50/160000]", 1.25), row("Iter [100/160000]", 1.125))
    assert rows_of(trace) == [(50, 1.25), (100, 1.125)]
    assert trace.facts["total_steps"] == 160_000
    assert trace.facts["loss_window"] == 50


def test_stars_of_a_forum_around_a_nan_do_not_hide_it() -> None:
    trace = read_lines(
        "mmcv",
        row("Epoch [1][50/900]", 1.25),
        row("Epoch [1][100/900]", "nan**", "nan").replace("0.8125, loss", "0.81**25, loss"),
        row("Epoch [1][150/900]", 1.0),
    )
    assert rows_of(trace) == [(50, 1.25), (100, None), (150, 1.0)]
    assert rows_of(trace, "metric:loss_bbox")[1] == (100, None)


def test_several_rates_are_no_other_format() -> None:
    rates = "lr_backbone: 1.000e-04 lr_head: 1.000e-03"
    trace = read_lines("mmcv", row("Epoch(train) [1][50/900]", 1.25, rates=rates))
    assert rows_of(trace) == [(50, 1.25)]
    assert rows_of(trace, "metric:lr_backbone") == [(50, 0.0001)]


def test_a_validation_has_scores_or_a_loss() -> None:
    trace = read_lines(
        "mmcv",
        row("Epoch [1][50/900]", 1.25),
        f"{HEAD}Epoch(val) [1][5000]\tbbox_mAP: 0.0250, bbox_mAP_50: 0.1250",
        f"{HEAD}Epoch(val) [1][20]\tloss_cls: 9.5000, loss_bbox: 9.5000, loss: 1.7500",
        f"{HEAD}Iter(val) [20]\tmIoU: 0.5000",
    )
    assert rows_of(trace, "metric:bbox_mAP") == [(50, 0.025)]
    assert rows_of(trace, "metric:mIoU") == [(50, 0.5)]
    assert rows_of(trace, "eval_loss") == [(50, 1.75)]
    assert rows_of(trace, "metric:loss_cls") == [(50, 0.8125)]
    assert trace.lines_skipped == 0
