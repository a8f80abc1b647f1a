"""How the sinks of a run are served: thinned, within the bill, each on its own."""

from collections.abc import Mapping

import numpy as np
import pytest
from small_training import failures, net, quiet, rows, train
from torch.optim import AdamW

from optdoctor.live.guard import Guard
from optdoctor.live.outlets import ROWS, SAMPLES, Outlets, Thinning
from optdoctor.live.schedule import Schedule
from optdoctor.sinks import Sample, Sink

STEPS = 30
NOTHING = Sample(1, (), {}, {})


class Book(Sink):
    """Takes everything down."""

    histograms = True

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.samples: list[Sample] = []

    def row(self, step: int, values: Mapping[str, float]) -> None:
        self.rows.append((step, dict(values)))

    def sample(self, sample: Sample) -> None:
        self.samples.append(sample)


def outlets_of(*sinks: Sink, interval: int | None = None) -> Outlets:
    schedule = Schedule(interval=interval)
    return Outlets(sinks, Guard(schedule, lambda part, error: None), set(), schedule)


@pytest.mark.parametrize(
    ("whole", "shown", "passed"), [(ROWS, 1_000_000, 7482), (SAMPLES, 950, 126)]
)
def test_the_first_pass_whole_and_later_ones_ever_rarer(
    whole: int, shown: int, passed: int
) -> None:
    thinning = Thinning(whole)
    through = [number for number in range(1, shown + 1) if thinning.passes()]
    assert through[:whole] == [*range(1, whole + 1)]
    assert len(through) == passed <= whole * (1 + np.log(shown / whole))
    gaps = np.diff(through)
    assert (gaps <= np.array(through[1:]) / whole + 1).all()


def test_rows_are_thinned_channel_by_channel() -> None:
    book = Book()
    outlets = outlets_of(book)
    for step in range(1, 10_001):
        outlets.row(step, {"loss": 1.0} | ({"eval_loss": 2.0} if step % 1000 == 0 else {}))
    assert sum("eval_loss" in values for _, values in book.rows) == 10, "what is rare is kept"
    assert ROWS < len(book.rows) <= ROWS * (1 + np.log(10))


def test_a_run_hands_on_its_rows_samples_and_histograms() -> None:
    model, book = net(), Book()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    doctor = quiet(model, optimizer)
    doctor.runs[0]._outlets.sinks.append(book)
    train(model, optimizer, STEPS, doctor)
    doctor.close()
    assert failures(doctor) == []
    assert {step: row["loss"] for step, row in book.rows} == rows(doctor, "loss")
    assert [sample.step for sample in book.samples] == [*range(1, STEPS + 1)]
    for sample in book.samples:
        assert sample.tensors == tuple(name for name, _ in model.named_parameters())
        np.testing.assert_array_equal(
            sample.channels["update_rms"], rows(doctor, "update_rms")[sample.step]
        )
        assert sample.histograms["moment1"].keys() == set(sample.tensors)


def test_samples_are_shown_for_no_more_than_all_else_costs() -> None:
    outlets = outlets_of(Book())
    assert outlets.want_sample(), "the first is free"
    outlets._spent_s = outlets._schedule.work_s = 1.0
    assert not outlets.want_sample()
    outlets._schedule.work_s = 2.0
    assert outlets.want_sample()


def test_an_interval_is_kept_whatever_showing_costs() -> None:
    outlets = outlets_of(Book(), interval=1)
    outlets._spent_s = outlets._schedule.work_s = 1.0
    assert outlets.want_sample()


def test_what_a_sink_spends_is_billed_once() -> None:
    book = Book()
    outlets = outlets_of(book)
    outlets.row(1, {"loss": 1.0})
    assert (outlets._schedule.idle_s > 0, outlets._schedule.work_s) == (True, 0)
    outlets.sample(NOTHING)
    assert 0 < outlets._spent_s <= outlets._schedule.work_s


def test_a_sink_without_histograms_costs_none() -> None:
    class Curves(Book):
        histograms = False

    outlets = outlets_of(Curves())
    assert outlets.want_sample()
    assert outlets.histograms(lambda: pytest.fail("nobody wants them")) == {}


def test_a_sink_that_only_tells_wants_no_sample() -> None:
    assert not outlets_of(Sink()).want_sample()
