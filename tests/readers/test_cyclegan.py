"""CycleGAN's loss_log.txt: many losses, none of which is the loss of the run."""

import numpy as np

from optdoctor.reading.epoch_clock import EpochClock
from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

HEADER = "================ Training Loss (Fri Jan  2 03:04:05 2026) ================"


def read(*lines: str) -> Trace:
    return read_lines("cyclegan", *lines)


def row(epoch: int, iters: int, value: float | str = 0.5, mark: str = "") -> str:
    return (
        f"(epoch: {epoch}, iters: {iters}, time: 0.273, data: 0.184) {mark}"
        f"D_A: {value} G_A: 0.487 cycle_A: 2.132 idt_A: 0.435 "
    )


def test_all_losses_are_metrics_of_an_adversarial_run() -> None:
    trace = read(HEADER, row(1, 100, 0.25), row(1, 200, "nan"))
    assert rows_of(trace, "metric:D_A") == [(100, 0.25), (200, None)]
    assert set(trace.series) == {
        "epoch",
        *(f"metric:{name}" for name in ("D_A", "G_A", "cycle_A", "idt_A")),
    }
    assert trace.facts["loss_kind"] == "adversarial"


def test_iterations_that_begin_anew_go_on_at_the_usual_distance() -> None:
    trace = read(HEADER, row(1, 100), row(1, 200), row(2, 30), row(2, 130), row(3, 60))
    assert [step for step, _ in rows_of(trace, "metric:D_A")] == [100, 200, 300, 400, 500]


def test_newer_lines_have_a_comma_in_front() -> None:
    assert rows_of(read(row(1, 100, 0.25, ", ")), "metric:D_A") == [(100, 0.25)]


def test_a_run_that_begins_again_leaves_the_earlier_one_out() -> None:
    trace = read(
        HEADER, row(1, 100), row(2, 50), HEADER, row(1, 100, 0.75), row(1, 200), row(2, 50)
    )
    assert rows_of(trace, "metric:D_A") == [(100, 0.75), (200, 0.5), (300, 0.5)]
    assert [event.kind for event in trace.events] == ["start"]


def test_a_run_that_goes_on_keeps_the_earlier_rows() -> None:
    trace = read(
        *(HEADER, row(1, 100, 0.125), row(1, 200, 0.25), row(2, 100, 9.5), row(3, 100, 9.5)),
        *(HEADER, row(2, 100, 0.375), row(2, 200, 0.5)),
    )
    assert rows_of(trace, "metric:D_A") == [(100, 0.125), (200, 0.25), (300, 0.375), (400, 0.5)]


def test_a_log_without_its_head_begins_where_it_begins() -> None:
    clock = EpochClock()
    steps = [clock.step(7, 900), clock.step(7, 1000), clock.step(8, 20), clock.step(9, 40)]
    assert steps[:2] == [900, 1000]
    assert (np.diff(steps) == 100).all()
