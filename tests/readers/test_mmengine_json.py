"""mmengine's vis_data/*.json."""

from text_logs import read_lines, rows_of

ROW = (
    '{{"lr": 0.001, "data_time": 0.0625, "loss": {loss}, "time": 0.5, "epoch": {epoch}, '
    '"iter": {step}, "memory": 2389, "step": {step}}}'
)


def test_the_step_of_a_training_row_is_its_own() -> None:
    trace = read_lines(
        "mmengine-json",
        ROW.format(loss=1.25, epoch=1, step=50),
        ROW.format(loss="NaN", epoch=1, step=100),
        ROW.format(loss=1.0, epoch=2, step=150).replace('"memory": 2389, ', ""),
    )
    assert rows_of(trace) == [(50, 1.25), (100, None), (150, 1.0)]
    assert rows_of(trace, "epoch") == [(50, 1.0), (100, 1.0), (150, 2.0)]
    assert rows_of(trace, "lr")[0] == (50, 0.001)
    assert not {"metric:memory", "metric:time"} & trace.series.keys()


def test_the_step_of_an_evaluation_may_be_an_epoch() -> None:
    trace = read_lines(
        "mmengine-json",
        ROW.format(loss=1.25, epoch=1, step=50),
        '{"coco/bbox_mAP": 0.125, "data_time": 0.0625, "time": 0.5, "step": 1}',
        ROW.format(loss=1.0, epoch=2, step=100),
        '{"coco/bbox_mAP": 0.25, "loss": 1.5, "data_time": 0.0625, "time": 0.5, "step": 2}',
    )
    assert rows_of(trace, "metric:coco/bbox_mAP") == [(50, 0.125), (100, 0.25)]
    assert rows_of(trace, "eval_loss") == [(100, 1.5)]
    assert rows_of(trace) == [(50, 1.25), (100, 1.0)]


def test_names_may_have_the_mode_in_front() -> None:
    trace = read_lines(
        "mmengine-json",
        '{"train/lr": 0.001, "train/loss": 1.25, "train/time": 0.5, "train/data_time": 0.1, '
        '"iter": 50, "step": 50}',
    )
    assert rows_of(trace) == [(50, 1.25)]
    assert rows_of(trace, "lr") == [(50, 0.001)]
    assert set(trace.series) == {"loss", "lr"}
