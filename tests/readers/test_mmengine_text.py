"""mmengine, as text."""

from text_logs import read_lines, rows_of

HEAD = "01/02 03:04:05 - mmengine - INFO - "
TAIL = "eta: 1 day, 0:39:15  time: 0.0625  data_time: 0.0017  memory: 2389  loss: {loss}  "


def row(place: str, loss: object, rates: str = "lr: 2.0000e-02") -> str:
    return f"{HEAD}{place}  {rates}  {TAIL.format(loss=loss)}loss_cls: 0.5000  grad_norm: 2.5000"


def test_iterations_of_epochs_are_steps_of_the_run() -> None:
    trace = read_lines(
        "mmengine",
        row("Epoch(train)  [1][ 50/110]", 1.25),
        row("Epoch(train)  [1][100/110]", "nan"),
        row("Epoch(train) [10][ 50/110]", 1.0),
    )
    assert rows_of(trace) == [(50, 1.25), (100, None), (1040, 1.0)]
    assert rows_of(trace, "epoch")[-1] == (1040, 10.0)
    assert rows_of(trace, "grad_norm")[0] == (50, 2.5)
    assert "loss_window" not in trace.facts


def test_iterations_of_the_run_are_steps_and_tell_the_plan() -> None:
    trace = read_lines(
        "mmengine",
        row("Iter(train) [    50/160000]", 1.25),
        row("Iter(train) [   100/160000]", 1.125),
    )
    assert rows_of(trace) == [(50, 1.25), (100, 1.125)]
    assert trace.facts["total_steps"] == 160_000


def test_the_rate_in_use_is_the_rate_and_the_base_is_a_metric() -> None:
    trace = read_lines(
        "mmengine", row("Epoch(train) [1][50/110]", 1.25, "base_lr: 2.0000e-02 lr: 1.0000e-03")
    )
    assert rows_of(trace, "lr") == [(50, 0.001)]
    assert rows_of(trace, "metric:base_lr") == [(50, 0.02)]


def test_an_evaluation_stands_at_the_newest_row() -> None:
    trace = read_lines(
        "mmengine",
        row("Iter(train) [  8000/160000]", 1.25),
        f"{HEAD}Iter(val) [ 50/125]    eta: 0:00:05  time: 0.0625  data_time: 0.001  memory: 900",
        f"{HEAD}Iter(val) [125/125]    aAcc: 70.5000  mIoU: 20.2500  data_time: 0.0017  time: 0.05",
        row("Iter(train) [  8050/160000]", 1.125),
    )
    assert rows_of(trace, "metric:mIoU") == [(8000, 20.25)]
    assert trace.lines_skipped == 0


def test_the_loss_of_an_evaluation_is_not_that_of_the_training() -> None:
    trace = read_lines(
        "mmengine",
        row("Epoch(train) [1][50/110]", 1.25),
        f"{HEAD}Epoch(val) [1][20/20]    loss: 1.5000  loss_cls: 9.5000  time: 0.0312",
    )
    assert rows_of(trace) == [(50, 1.25)]
    assert rows_of(trace, "eval_loss") == [(50, 1.5)]
    assert rows_of(trace, "metric:loss_cls") == [(50, 0.5)]
