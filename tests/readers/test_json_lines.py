"""JSON lines: LLaMA-Factory, DeiT and free names."""

import json
import math
import random
from typing import Any

import numpy as np
import pytest

from optdoctor.readers import json_lines, read_source
from optdoctor.reading.json_list import objects_of
from optdoctor.reading.log import MAX_METRICS, Log
from optdoctor.reading.reader import Head, Source
from optdoctor.trace import Trace


def read(*lines: str) -> Trace:
    return read_source(Source("\n".join(lines).encode(), "log.jsonl"), "json-lines")


def steps(trace: Trace, name: str = "loss") -> list[int]:
    return [int(step) for step in trace.series[name].steps]


def values(trace: Trace, name: str = "loss") -> list[float]:
    return [float(value) for value in trace.series[name].values]


def test_lines_of_llama_factory_are_read() -> None:
    trace = read(
        '{"current_steps": 5, "total_steps": 90, "loss": 2.5, "lr": 1e-4, "elapsed": "0:01"}',
        '{"current_steps": 10, "total_steps": 90, "loss": 2.25, "lr": 2e-4, "elapsed": "0:02"}',
        '{"current_steps": 10, "total_steps": 90, "eval_loss": 2.4, "epoch": 0.5}',
        '{"current_steps": 12, "total_steps": 90, "epoch": 0.6, "percentage": 99.9}',
    )
    assert trace.reader == "json-lines"
    assert steps(trace) == [5, 10]
    assert steps(trace, "eval_loss") == [10]
    assert trace.facts["loss_window"] == 5
    assert trace.facts["framework"] == "huggingface"
    assert values(trace, "lr") == [1e-4, 2e-4]
    assert trace.facts["total_steps"] == 90
    assert "metric:total_steps" not in trace.series


def test_epochs_without_steps_are_counted() -> None:
    trace = read(
        '{"train_lr": 1e-4, "train_loss": 6.5, "test_loss": 6.25, "epoch": 0}',
        '{"train_lr": 2e-4, "train_loss": 6.0, "test_loss": 5.75, "epoch": 1}',
    )
    assert steps(trace) == steps(trace, "eval_loss") == [1, 2]
    assert values(trace, "lr") == [1e-4, 2e-4]
    assert trace.facts["step_source"] == "counted rows"


@pytest.mark.parametrize("name", ["step", "global_step", "iter", "iteration", "current_steps"])
@pytest.mark.parametrize("loss", ["loss", "train_loss", "training_loss", "train/loss"])
def test_names_are_recognised(name: str, loss: str) -> None:
    trace = read(*(f'{{"{name}": {at}, "{loss}": 2.5, "valid_loss": 3}}' for at in (1, 2)))
    assert steps(trace) == steps(trace, "eval_loss") == [1, 2]
    assert trace.facts["loss_kind"] == "falling"


def test_steps_from_zero_are_shifted() -> None:
    assert steps(read('{"step": 0, "loss": 2.5}', '{"step": 1, "loss": 2.25}')) == [1, 2]


def test_one_of_several_names_is_the_loss_throughout() -> None:
    trace = read(
        '{"step": 1, "train_loss": 9.0, "loss": 2.5}',
        '{"step": 2, "loss": 2.25}',
        '{"step": 2, "train_loss": 8.0}',
    )
    assert values(trace) == [2.5, 2.25]
    assert values(trace, "metric:train_loss") == [9.0, 8.0]


def test_a_guessed_loss_proves_nothing() -> None:
    trace = read('{"iteration": 19, "total_loss": 2.5}', '{"iteration": 39, "total_loss": 2.25}')
    assert trace.facts["loss_kind"] == "unknown"


def test_nan_texts_and_infinity_are_numbers() -> None:
    trace = read('{"loss": NaN}', '{"loss": "2.5"}', '{"loss": -Infinity}', '{"loss": 1e999}')
    assert math.isnan(values(trace)[0])
    assert values(trace)[1:] == [2.5, -math.inf, math.inf]


def test_lists_texts_and_booleans_are_passed_over() -> None:
    trace = read('{"loss": 2.5, "list": [1], "flag": true, "none": null, "text": "of 5"}')
    assert set(trace.series) == {"loss"}


@pytest.mark.parametrize(
    "line",
    [
        '{"step": %d, "train": {"loss": 2.5}, "val": {"loss": 3.5}}',
        '{"step": %d, "metrics": {"train/loss": 2.5, "val_loss": 3.5}}',
        '{"step": %d, "metrics": {"train": {"loss": 2.5}, "eval": {"loss": 3.5}}}',
        '{"data": {"step": %d}, "loss": {"train": 2.5, "val": 3.5}}',
    ],
)
def test_names_of_objects_within_objects_are_joined(line: str) -> None:
    trace = read(line % 10, line % 20)
    assert set(trace.series) == {"loss", "eval_loss"}
    assert steps(trace) == [10, 20]
    assert values(trace, "eval_loss") == [3.5, 3.5]


def test_lines_that_hold_no_row_are_counted() -> None:
    trace = read('{"env": "linux"}', '{"loss": 2.5}', "[1]", '{"loss": 2.25}', '{"loss": 2.')
    assert values(trace) == [2.5, 2.25]
    assert trace.lines_skipped == 3


def test_a_row_without_a_step_belongs_to_the_last_one_logged() -> None:
    trace = read('{"step": 50, "loss": 2.5}', '{"val_loss": 2.4}', '{"step": 100, "loss": 2.25}')
    assert steps(trace, "eval_loss") == [50]
    assert steps(trace) == [50, 100]


def test_steps_that_go_back_are_a_resume() -> None:
    trace = read(
        *(f'{{"step": {s}, "loss": {v}}}' for s, v in [(10, 3), (20, 9), (20, 2), (15, 1)])
    )
    assert steps(trace) == [10, 15]
    assert values(trace) == [3, 1]
    assert [event.kind for event in trace.events] == ["resume"]


def test_a_step_no_run_can_have_is_taken_for_none() -> None:
    trace = read('{"step": 1e300, "loss": 2.5}', '{"step": -4, "loss": 2.25}')
    assert steps(trace) == [1, 2]


def test_names_without_end_do_not_fill_the_memory() -> None:
    many = ", ".join(f'"metric:{index}": 1' for index in range(3 * MAX_METRICS))
    trace = read('{"loss": 2.5, ' + many + "}", '{"loss": 2.25, "' + "x" * 1000 + '": 1}')
    assert len(trace.series) == MAX_METRICS + 1


@pytest.mark.parametrize(
    "text",
    [
        '{\n "loss": 2.5,\n "step": 1\n}\n',
        '[\n2.5, {"loss": 2.5},\n{"loss": 2.25}\n]\n',
        '{"log_history": {"loss": 2.5}, "loss": 2.5}\n',
        '{"name": "ann"}\n{"name": "bob"}\n',
        'step 1 {"loss": 2.5}\nstep 2 {"loss": 2.25}\n',
    ],
)
def test_documents_and_other_objects_are_not_claimed(text: str) -> None:
    assert not json_lines.READER.sniff(Head(text.encode()))


def test_lines_of_the_first_llama_factory_are_read() -> None:
    line = (
        '{"current_steps": %d, "total_steps": 90, "loss": 2.5, "eval_loss": null, "reward": null,'
        ' "predict_loss": null, "learning_rate": 1e-05, "epoch": 0.5, "percentage": 5.5,'
        ' "elapsed_time": "1 day, 0:01:00", "remaining_time": "9 days, 0:01:00"}'
    )
    trace = read(line % 5, line % 10)
    assert set(trace.series) == {"loss", "lr", "epoch"}
    assert steps(trace) == [5, 10]
    assert trace.facts["loss_kind"] == "falling"


def test_lines_of_ms_swift_are_read() -> None:
    line = (
        '{"loss": 2.5, "grad_norm": 1.5, "learning_rate": 1e-05, "memory(GiB)": 20.5,'
        ' "train_speed(iter/s)": 0.5, "epoch": 0.5, "global_step/max_steps": "%d/500",'
        ' "percentage": "2.00%%", "elapsed_time": "12s", "remaining_time": "9m 48s"}'
    )
    trace = read(line % 10, line % 20, '{"train_runtime": 9.5, "train_loss": 2.5, "epoch": 1}')
    assert set(trace.series) == {"loss", "grad_norm", "lr", "epoch"}
    assert steps(trace) == [10, 20]
    assert trace.facts["total_steps"] == 500
    assert "nan_filter" not in trace.facts
    dead = line.replace("2.5", "0.0").replace("1.5", "NaN")
    assert read(line % 10, dead % 20).facts["nan_filter"] == "seen"


def test_of_several_counters_the_surest_that_moves_is_the_step() -> None:
    trace = read(
        '{"_step": 7, "train/global_step": 10, "train/loss": 2.5, "_runtime": 3.5, "batch": 0}',
        '{"_step": 8, "system": 1}',
        '{"_step": 9, "train/global_step": 20, "train/loss": 2.25, "_timestamp": 1e9, "batch": 0}',
    )
    assert steps(trace) == [10, 20]
    assert set(trace.series) == {"loss", "metric:system"}
    line = '{"_step": %d, "iter": 1, "loss": 2.5}'
    assert steps(read(line % 7, line % 9)) == [7, 9]


def test_rows_behind_a_long_beginning_have_their_steps() -> None:
    text = "some words\n" * 300_000 + '{"step": 10, "loss": 2.5}\n{"step": 20, "loss": 2.25}\n' * 20
    assert steps(read(text))[-1] == 20


def irregular(seed: int) -> list[str]:
    """Lines of a long log in which something is odd now and then."""
    draw = random.Random(seed)
    lines = []
    for step in range(1, 3001):
        loss = "NaN" if draw.random() < 0.01 else repr(draw.random())
        rate = draw.choice(["1e-05", "2E-3", "0"])
        lines.append(f'{{"step": {step}, "loss": {loss}, "lr": "{rate}", "took": "{step} s"}}')
        if draw.random() < 0.02:
            odd = (
                f'{{"step": {step}, "val_loss": 2.5}}',
                f'  {{"step": {step}, "loss": 7, "lr": "1e-05", "took": ""}}',
                f'{{"step": {step}, "loss": null, "lr": "1e-05", "took": "9 s"}}',
                f'{{"step": {step}, "loss": "nan", "lr": "nan", "took": "9 s"}}',
                f'{{"step": {step}, "loss": 01, "lr": "1", "took": "9 s"}}',
                '{"step": 9, "lo',
                "a warning",
                "",
                lines[-1] + " ",
                "x" + lines[-1].replace('"loss": ', '"loss": 7'),
            )
            lines.append(draw.choice(odd))
    return lines


@pytest.mark.parametrize("seed", range(4))
def test_whole_stretches_are_read_as_line_by_line(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = read(*irregular(seed))
    monkeypatch.setattr(json_lines, "learn", lambda *_: None)
    slow = read(*irregular(seed))
    assert fast.series.keys() == slow.series.keys() == {"loss", "lr", "eval_loss"}
    for name, series in fast.series.items():
        assert np.array_equal(series.steps, slow.series[name].steps)
        assert np.array_equal(series.values, slow.series[name].values, equal_nan=True)
    assert fast.facts == slow.facts
    assert fast.lines_skipped == slow.lines_skipped > 0


def test_a_long_log_is_read_in_whole_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    real = json_lines._object

    def counted(line: str) -> dict[str, Any] | None:
        decoded.append(line)
        return real(line)

    lines = [f'{{"step": {step}, "loss": {step / 8}}}' for step in range(1, 1001)]
    log = Log(aliases=json_lines.READER.aliases)
    source = Source(("\n".join(lines) + "\n").encode(), "log")
    monkeypatch.setattr(json_lines, "_told", lambda head: [{"step": 1, "loss": 1.0}])
    monkeypatch.setattr(json_lines, "_object", counted)
    json_lines.READER.read(source, log)
    assert log.trace("log", "json-lines").series["loss"].rows == 1000
    assert len(decoded) < 10


def test_numbers_as_words_are_read_in_a_long_log_too() -> None:
    assert (
        len(values(read(*(f'{{"step": {step}, "loss": "nan"}}' for step in range(1, 100))))) == 99
    )


NESTED = [{"epoch": n, "train": {"loss": 2.0 + n / 8}, "val": {"loss": 3.0}} for n in range(1, 5)]


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_a_document_that_lists_rows_is_read_as_lines_of_them(indent: int | None) -> None:
    trace = read_source(Source(json.dumps(NESTED, indent=indent).encode(), "history.json"))
    assert trace.reader == "json-lines"
    assert values(trace) == [2.125, 2.25, 2.375, 2.5]
    assert trace.series["eval_loss"].values.tolist() == [3.0] * 4


@pytest.mark.parametrize("damage", ["", ' {"epoch": 3, "tra', " nonsense ", "]"])
def test_a_list_is_read_up_to_its_damage(damage: str) -> None:
    text = json.dumps(NESTED[:2])[:-1] + "," + damage
    trace = read_source(Source(text.encode(), "history.json"))
    assert values(trace) == [2.125, 2.25]
    assert trace.lines_skipped == (damage not in ("", "]"))


def test_a_list_of_many_rows_comes_in_pieces() -> None:
    rows = [{"step": n, "loss": n / 8, "text": "x" * 100} for n in range(1, 20_001)]
    trace = read_source(Source(json.dumps(rows, indent=1).encode(), "history.json"))
    assert trace.series["loss"].rows == 20_000
    assert steps(trace)[-1] == 20_000


def test_an_object_without_end_does_not_fill_the_memory() -> None:
    blocks = iter([json.dumps(NESTED)[:-1] + ', {"a": [', *["1," * (1 << 19)] * 12])
    assert len(list(objects_of(blocks))) == len(NESTED)
    assert len(list(blocks)) > 6  # are not asked for


@pytest.mark.parametrize("is_known", [True, False])
def test_the_one_rate_of_something_is_that_of_the_run(is_known: bool) -> None:
    rates = {"optim": {"lr": 0.5}} if is_known else {"actor": {"lr": 0.5}, "critic": {"lr": 0.25}}
    trace = read(*(json.dumps({"step": n, "loss": 2.5, **rates}) for n in (1, 2)))
    assert ("lr" in trace.series) is is_known
