"""wandb-summary.json: one row, and no claim to other JSON."""

import json

import pytest

from optdoctor.readers import read_source
from optdoctor.readers.wandb_summary import READER
from optdoctor.reading.reader import Source
from optdoctor.trace import Trace

OWN = {"_step": 499, "_runtime": 12.5, "_timestamp": 1.7e9, "_wandb": {"runtime": 12}}


def read(values: dict[str, object]) -> Trace:
    return read_source(Source(json.dumps(values).encode(), "log"))


def rows(trace: Trace, name: str = "loss") -> list[tuple[int, float]]:
    series = trace.series[name]
    return [(int(s), float(v)) for s, v in zip(series.steps, series.values, strict=True)]


def test_the_last_values_are_one_row() -> None:
    trace = read(
        {"train/loss": 0.5, "eval/loss": 0.75, "train/learning_rate": 1e-5, "acc": 0.5} | OWN
    )
    assert trace.reader == "wandb-summary"
    assert rows(trace) == [(499, 0.5)]
    assert rows(trace, "eval_loss") == [(499, 0.75)]
    assert rows(trace, "lr") == [(499, 1e-5)]
    assert set(trace.series) == {"loss", "eval_loss", "lr", "metric:acc"}


def test_the_trainers_own_step_goes_before_wandbs() -> None:
    assert rows(read({"train/loss": 0.5, "train/global_step": 5000} | OWN)) == [(5000, 0.5)]


def test_a_part_of_a_loss_is_not_taken_for_it() -> None:
    trace = read({"train/box_loss": 0.5, "loss": {"min": 0.25}} | OWN)
    assert set(trace.series) == {"metric:train/box_loss", "metric:loss/min"}
    assert "loss_kind" not in trace.facts


def test_nan_and_media_are_told_apart() -> None:
    trace = read({"loss": "NaN", "hist": {"_type": "histogram", "bins": 3}} | OWN)
    assert set(trace.series) == {"loss"}
    assert trace.series["loss"].bad.sum() == 1


@pytest.mark.parametrize("step", [-1, 1e300, "NaN"])
def test_a_step_out_of_all_bounds_is_none(step: object) -> None:
    assert rows(read(OWN | {"loss": 0.5, "_step": step})) == [(1, 0.5)]


def test_a_summary_without_numbers_of_its_own_mark_is_known_by_its_clocks() -> None:
    old = {name: value for name, value in OWN.items() if name != "_wandb"}
    assert READER.sniff(Source(json.dumps({"loss": 1} | old).encode(), "log").head)


@pytest.mark.parametrize(
    "text",
    [
        '{"loss": 0.5, "_step": 3}',
        '{"log_history": [], "_x": 1}',
        '{"loss": 0.5}\n{"loss": 0.25, "_step": 3, "_runtime": 1}',
        '["_step", "_runtime"]',
        '{"_wandb": 5}',
        '{"_step": 1, "_runtime": ' + "[" * 100_000,
        "_step _runtime",
        "",
    ],
)
def test_other_files_are_not_claimed(text: str) -> None:
    assert not READER.sniff(Source(text.encode(), "log").head)
