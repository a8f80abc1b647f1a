"""MMCV's .log.json."""

from text_logs import read_lines, rows_of

ENVIRONMENT = '{"env_info": "Python: 3.11\\nloss: 9", "seed": 1, "exp_name": "mine.py"}'


def row(epoch: int, iteration: int, loss: object) -> str:
    return (
        f'{{"mode": "train", "epoch": {epoch}, "iter": {iteration}, "lr": 0.001, "memory": 9, '
        f'"data_time": 0.5, "loss_cls": 0.5, "loss": {loss}, "time": 0.5}}'
    )


def test_iterations_of_epochs_are_added_up() -> None:
    trace = read_lines(
        "mmcv-json", ENVIRONMENT, row(1, 50, 4.5), row(1, 100, 4.25), row(2, 50, 4), row(2, 100, 3)
    )
    assert rows_of(trace) == [(50, 4.5), (100, 4.25), (150, 4.0), (200, 3.0)]
    assert rows_of(trace, "epoch") == [(50, 1.0), (100, 1.0), (150, 2.0), (200, 2.0)]
    assert trace.facts["loss_window"] == 50
    assert trace.lines_skipped == 0


def test_one_row_an_epoch_has_the_same_iteration_each_time() -> None:
    trace = read_lines("mmcv-json", row(1, 50, 4.5), row(2, 50, 4.25), row(3, 50, 4))
    assert rows_of(trace) == [(50, 4.5), (100, 4.25), (150, 4.0)]


def test_iterations_of_the_run_go_on() -> None:
    trace = read_lines("mmcv-json", row(1, 50, 4.5), row(1, 100, 4.25), row(2, 150, 4))
    assert rows_of(trace) == [(50, 4.5), (100, 4.25), (150, 4.0)]


def test_an_epoch_that_comes_again_is_a_resume() -> None:
    trace = read_lines(
        "mmcv-json",
        *(row(epoch, i, 5 - epoch) for epoch in (1, 2, 3) for i in (50, 100)),
        *(row(2, i, 9) for i in (50, 100)),
    )
    assert rows_of(trace) == [(50, 4.0), (100, 4.0), (150, 9.0), (200, 9.0)]
    assert [event.kind for event in trace.events] == ["resume"]


def test_a_validation_has_no_loss_and_stands_at_the_newest_row() -> None:
    trace = read_lines(
        "mmcv-json",
        row(1, 50, 4.5),
        '{"mode": "val", "epoch": 1, "iter": 2000, "lr": 9.0, "mIoU": 0.5, "IoU.bed ": 0.25}',
        row(1, 100, "NaN"),
        '{"mode": "val", "epoch": 1, "iter": 20, "lr": 9.0, "loss_cls": 9.0, "loss": 4.75}',
    )
    assert rows_of(trace, "metric:mIoU") == [(50, 0.5)]
    assert rows_of(trace) == [(50, 4.5), (100, None)]
    assert rows_of(trace, "eval_loss") == [(100, 4.75)]
    assert rows_of(trace, "lr") == [(50, 0.001), (100, 0.001)]
    assert rows_of(trace, "metric:loss_cls") == [(50, 0.5), (100, 0.5)]


def test_of_the_rates_of_several_modules_the_first_counts() -> None:
    several = row(1, 50, 4.5).replace("0.001", '{"backbone": 0.125, "head": 0.5}')
    assert rows_of(read_lines("mmcv-json", several), "lr") == [(50, 0.125)]


def test_a_line_that_is_cut_or_has_a_loss_that_is_no_number_is_no_row() -> None:
    trace = read_lines("mmcv-json", row(1, 50, 4.5), row(1, 100, 4.25)[:90], row(1, 150, '"?"'))
    assert rows_of(trace) == [(50, 4.5)]
    assert trace.lines_skipped == 1
