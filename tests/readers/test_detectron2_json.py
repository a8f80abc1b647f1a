"""detectron2's metrics.json."""

from text_logs import read_lines, rows_of

ROW = (
    '{{"data_time": 0.0078, "eta_seconds": 5065.5, "fast_rcnn/cls_accuracy": 0.5, "iteration": '
    '{step}, "loss_cls": 1.25, "lr": 0.000125, "rank_data_time": 0.5, "time": 0.25, '
    '"total_loss": {loss}}}'
)


def test_iterations_count_from_zero() -> None:
    trace = read_lines(
        "detectron2-json", ROW.format(step=19, loss=1.75), ROW.format(step=39, loss="NaN")
    )
    assert rows_of(trace) == [(20, 1.75), (40, None)]
    assert rows_of(trace, "lr")[0] == (20, 0.000125)
    assert rows_of(trace, "metric:fast_rcnn/cls_accuracy")[0] == (20, 0.5)
    assert trace.facts["loss_form"] == "window median"
    assert not {"metric:eta_seconds", "metric:rank_data_time"} & trace.series.keys()


def test_an_evaluation_has_a_line_of_its_own() -> None:
    trace = read_lines(
        "detectron2-json",
        ROW.format(step=19, loss=1.75),
        ROW.format(step=39, loss=1.5),
        '{"bbox/AP": 12.5, "iteration": 39, "validation_loss": 2.25}',
    )
    assert rows_of(trace, "metric:bbox/AP") == [(40, 12.5)]
    assert rows_of(trace, "eval_loss") == [(40, 2.25)]


def test_a_resumed_run_repeats_iterations() -> None:
    rows = [ROW.format(step=step, loss=loss) for step, loss in ((19, 2), (39, 1), (39, 3), (59, 4))]
    trace = read_lines("detectron2-json", *rows)
    assert rows_of(trace) == [(20, 2.0), (40, 3.0), (60, 4.0)]
