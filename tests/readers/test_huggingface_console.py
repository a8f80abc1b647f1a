"""The console of the Hugging Face Trainer: two generations, bars, escapes, torn lines."""

import math

import pytest

from optdoctor.reader import Source, Unreadable
from optdoctor.readers import read_source
from optdoctor.trace import Trace

BAR = "  3%|▎         | 3/100 [00:01<00:30,  3.20it/s]"


def read(text: str) -> Trace:
    return read_source(Source(text.encode(), "train.log"))


def losses(trace: Trace) -> list[float]:
    return [float(value) for value in trace.series["loss"].values]


def test_floats_of_the_fourth_generation_are_read() -> None:
    trace = read(
        "{'loss': 3.92, 'grad_norm': 2.5, 'learning_rate': 5e-05, 'epoch': 0.25}\n"
        "{'loss': nan, 'grad_norm': inf, 'learning_rate': 4e-05, 'epoch': 0.5}\n"
    )
    assert trace.reader == "huggingface-console"
    assert losses(trace)[0] == 3.92
    assert math.isnan(losses(trace)[1])
    assert trace.series["grad_norm"].values[1] == math.inf
    assert list(trace.series["lr"].values) == [5e-05, 4e-05]
    assert list(trace.series["epoch"].values) == [0.25, 0.5]


def test_quoted_numbers_of_the_fifth_generation_are_read() -> None:
    trace = read(
        "{'loss': '3.437', 'grad_norm': '1.137', 'learning_rate': '0.01', 'epoch': '0.25'}\n"
        "{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '1e-05', 'epoch': '0.5'}\n"
    )
    assert losses(trace) == [3.437, 0.0]
    assert math.isnan(trace.series["grad_norm"].values[1])
    assert trace.series["lr"].values[1] == 1e-05


def test_rows_are_counted_because_the_console_names_no_step() -> None:
    trace = read("{'loss': 3.5}\n{'loss': 3.25}\n{'loss': 3.0}\n")
    assert list(trace.series["loss"].steps) == [1, 2, 3]
    assert trace.facts["step_source"] == "counted rows"
    assert trace.facts["framework"] == "huggingface"


def test_a_step_in_the_dictionary_is_used() -> None:
    trace = read("{'loss': 3.5, 'step': 10}\n{'loss': 3.25, 'step': 20}\n")
    assert list(trace.series["loss"].steps) == [10, 20]
    assert trace.facts["step_source"] == "logged"


def test_bars_before_and_after_and_carriage_returns_do_not_matter() -> None:
    trace = read(f"{BAR}\r{BAR}{{'loss': 3.5}}{BAR}\r\n{BAR}\n\r{{'loss': 3.25}}   \r{BAR}")
    assert losses(trace) == [3.5, 3.25]
    assert trace.lines_skipped == 0


def test_escapes_for_colour_do_not_matter() -> None:
    trace = read("\x1b[34m{'loss'\x1b[0m: \x1b[1;31m3.5\x1b[0m}\x1b[K\n{'loss': 3.25}\n")
    assert losses(trace) == [3.5, 3.25]


def test_text_behind_a_row_does_not_matter() -> None:
    trace = read("{'loss': 1.14,  'grad_norm':    92.10}    <-- spike (step 1)\n")
    assert trace.series["grad_norm"].values[0] == 92.1


def test_several_dictionaries_on_a_line_are_several_rows() -> None:
    assert losses(read("{'loss': 3.5}{'loss': 3.25} {'loss': 3.0}\n")) == [3.5, 3.25, 3.0]


def test_a_torn_last_line_is_skipped_and_counted() -> None:
    trace = read("{'loss': 3.5, 'epoch': 0.1}\n{'loss': 3.25, 'epoch': 0.2}\n{'loss': 3.1, 'ep")
    assert losses(trace) == [3.5, 3.25]
    assert trace.lines_skipped == 1


def test_an_evaluation_stands_at_the_last_loss_row() -> None:
    trace = read(
        "{'loss': 3.5}\n{'loss': 3.25}\n"
        "{'eval_loss': 3.4, 'eval_accuracy': 0.5, 'eval_runtime': 2.0,"
        " 'eval_samples_per_second': 9.0, 'epoch': 1.0}\n"
        "{'loss': 3.0}\n"
    )
    assert list(trace.series["eval_loss"].steps) == [2]
    assert list(trace.series["metric:eval_accuracy"].values) == [0.5]
    assert list(trace.series["loss"].steps) == [1, 2, 3]
    assert not any("runtime" in name or "per_second" in name for name in trace.series)


def test_the_final_summary_is_no_row() -> None:
    trace = read("{'loss': 3.5}\n{'train_runtime': 9.1, 'train_loss': 1.284, 'epoch': 3.0}\n")
    assert losses(trace) == [3.5]
    assert "metric:train_loss" not in trace.series


def test_a_printed_configuration_is_no_row() -> None:
    trace = read("{'eval_steps': 100, 'lr': 0.1}\n{'loss': 'mse', 'size': 3}\n{'loss': 3.5}\n")
    assert set(trace.series) == {"loss"}


def test_loss_zero_beside_a_nan_norm_is_the_mark_of_the_filter() -> None:
    trace = read("{'loss': 1.7, 'grad_norm': nan}\n{'loss': 0.0, 'grad_norm': nan}\n")
    assert trace.facts["nan_filter"] == "seen"


def test_loss_zero_beside_a_finite_norm_is_no_mark() -> None:
    trace = read("{'loss': 0.0, 'grad_norm': 0.3, 'reward': 0.1}\n" * 2)
    assert "nan_filter" not in trace.facts
    assert trace.facts["loss_kind"] == "reward"


def test_the_quantum_is_the_last_decimal_shown() -> None:
    assert read("{'loss': 3.5}\n{'loss': 3.4375}\n").facts["loss_quantum"] == 1e-4
    assert read("{'loss': '0'}\n{'loss': '3.43'}\n").facts["loss_quantum"] == 1e-2
    assert "loss_quantum" not in read("{'loss': 3.437512345}\n").facts


def test_source_code_that_mentions_a_loss_is_not_claimed() -> None:
    with pytest.raises(Unreadable):
        read("logs = {'loss': loss.item(), 'epoch': epoch}\nprint({'loss': total})\n")


def test_of_two_evaluations_between_counted_rows_the_newest_stands() -> None:
    trace = read("{'loss': 2.5}\n{'eval_loss': 3.0}\n{'eval_loss': 2.0}\n{'loss': 2.25}\n")
    assert list(trace.series["eval_loss"].values) == [2.0]
