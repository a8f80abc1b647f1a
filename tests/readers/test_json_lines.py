"""JSON lines: LLaMA-Factory, DeiT and free names."""

import math

import pytest

from optdoctor.log import MAX_METRICS
from optdoctor.reader import Source, Unreadable
from optdoctor.readers import read_source
from optdoctor.trace import Trace


def read(*lines: str) -> Trace:
    return read_source(Source("\n".join(lines).encode(), "log.jsonl"))


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


def test_nested_values_lists_and_booleans_are_passed_over() -> None:
    trace = read('{"loss": 2.5, "more": {"loss": 9}, "list": [1], "flag": true, "none": null}')
    assert set(trace.series) == {"loss"}


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
        '[\n{"loss": 2.5},\n{"loss": 2.25}\n]\n',
        '{"log_history": {"loss": 2.5}, "loss": 2.5}\n',
        '{"name": "ann"}\n{"name": "bob"}\n',
        'step 1 {"loss": 2.5}\nstep 2 {"loss": 2.25}\n',
    ],
)
def test_documents_and_other_objects_are_not_claimed(text: str) -> None:
    with pytest.raises(Unreadable):
        read(text)
