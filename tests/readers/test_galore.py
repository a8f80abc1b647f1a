"""GaLore: two clocks, a divided loss, processes that write into one line."""

import pytest

from tests.readers.language_model_logs import read, rows

SETTINGS = (
    "2026-01-02 03:04:05.678 | INFO     | __main__:main:221 - lr                             0.004",
    "lr                             0.004",
    "gradient_accumulation          4",
    "num_training_steps             900",
)


def test_losses_count_micro_batches_and_evaluations_updates() -> None:
    trace = read(
        "galore",
        *SETTINGS,
        "loss at 4 2.625",
        "loss at 404 1.75",
        "2026-01-02 03:04:05.678 | INFO     | __main__:main:576 - Eval loss at step 100: 6.5,"
        "tokens_seen: 99979486",
        "lr 0.002",
        "loss at 804 nan",
    )
    assert rows(trace) == {1: 2.625, 101: 1.75, 201: "nan"}
    assert rows(trace, "eval_loss") == {100: 6.5}
    assert list(rows(trace, "lr").values()) == [0.002]
    assert trace.facts["loss_form"] == "divided"
    assert trace.facts["accumulation_steps"] == 4
    assert trace.facts["total_steps"] == 900


@pytest.mark.parametrize(
    "line",
    [
        "loss at loss at2 2  5.25",
        "loss atloss at 2  5.25",
        "loss at 2 loss at5.25",
        "loss at loss at2 2 5.25",
        "loss at 2 5.25",
    ],
)
def test_two_processes_in_one_line_are_one_row(line: str) -> None:
    trace = read("galore", "gradient_accumulation          2", line, " 2 5.5", "loss at 202 4.5")
    assert rows(trace) == {1: 5.25, 101: 4.5}


def test_without_accumulation_the_loss_is_whole() -> None:
    trace = read("galore", "\x1b[1mgradient_accumulation          1\x1b[0m", "loss at 1 10.5")
    assert trace.facts["loss_form"] == "mean"
    assert rows(trace) == {1: 10.5}
