"""detectron2's console."""

import pytest
from text_logs import read_lines, rows_of

ROW = (
    "[01/02 03:04:05 d2.utils.events]: {eta}iter: {step}  total_loss: {loss}  loss_cls: 1.250  "
    "loss_box_reg: 0.500  time: 0.2293  last_time: 0.25  data_time: 0.0033  last_data_time: 0.004  "
    " lr: 0.000125  max_mem: 3782M"
)


@pytest.mark.parametrize("eta", ["", " eta: N/A  ", "eta: 1 day, 5:41:49  ", " eta: 5:41:49  "])
def test_iterations_count_from_zero(eta: str) -> None:
    trace = read_lines(
        "detectron2",
        ROW.format(eta=eta, step=19, loss=1.75),
        ROW.format(eta=eta, step=39, loss=1.5),
    )
    assert rows_of(trace) == [(20, 1.75), (40, 1.5)]
    assert rows_of(trace, "lr")[0] == (20, 0.000125)
    assert trace.facts["loss_form"] == "window median"
    assert set(trace.series) == {"loss", "lr", "metric:loss_cls", "metric:loss_box_reg"}


def test_a_part_may_stand_in_front_of_the_loss() -> None:
    moved = "iter: 19  loss_cls: 1.25  total_loss: 1.75  time: 0.2293  lr: 0.000125"
    trace = read_lines("detectron2", moved, ROW.format(eta="", step=39, loss=1.5))
    assert rows_of(trace) == [(20, 1.75), (40, 1.5)]
    assert rows_of(trace, "metric:loss_cls")[0] == (20, 1.25)


def test_the_error_that_ends_a_run_is_its_nan() -> None:
    trace = read_lines(
        "detectron2",
        ROW.format(eta="", step=19, loss=1.75),
        ROW.format(eta="", step=39, loss=1.5),
        "FloatingPointError: Loss became infinite or NaN at iteration=45!",
        "loss_dict = {'loss_cls': nan, 'loss_box_reg': 0.5}",
    )
    assert rows_of(trace) == [(20, 1.75), (40, 1.5), (46, None)]


def test_a_resumed_run_repeats_iterations() -> None:
    rows = [ROW.format(eta="", step=step, loss=1.5) for step in (19, 39, 59, 39, 59)]
    trace = read_lines("detectron2", *rows)
    assert [step for step, _ in rows_of(trace)] == [20, 40, 60]
    assert "resume" in [event.kind for event in trace.events]
