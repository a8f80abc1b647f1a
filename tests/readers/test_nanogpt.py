"""nanoGPT: quotes, bits, forks."""

import math

import pytest

from tests.readers.language_model_logs import read, rows


def test_updates_and_evaluations_are_two_kinds_of_lines() -> None:
    trace = read(
        "nanogpt",
        "step 0: train loss 4.25, val loss 4.5",
        "iter 0: loss 4.125, time 48623.77ms, mfu -100.00%",
        "iter 10: loss 3.25, time 52.10ms, mfu 7.09%",
        "step 10: train loss 3.0, val loss 3.5",
        "iter 20: loss nan, time 52.10ms, mfu 7.09%",
    )
    assert rows(trace) == {1: 4.125, 11: 3.25, 21: "nan"}
    assert rows(trace, "eval_loss") == {1: 4.5, 11: 3.5}
    assert rows(trace, "metric:train_split_loss") == {1: 4.25, 11: 3.0}
    assert "metric:mfu" not in trace.series
    assert trace.facts["loss_base"] == "nats"


def test_quoted_lines_behind_a_date_are_read() -> None:
    trace = read(
        "nanogpt",
        "> 2026-01-02 03:04:05 iter 2920: loss 4.25, time 1099.34ms, mfu 15.34%",
        ">",
        "> 2026-01-02 03:04:16 iter 2930: loss 4.5, time 1097.30ms, mfu 15.34%",
    )
    assert rows(trace) == {2920: 4.25, 2930: 4.5}


def test_bits_on_both_lines_stay_as_printed() -> None:
    trace = read(
        "nanogpt",
        "step 10: train loss 6.25 BPC, val loss 6.5 BPC",
        "iter 10: loss 6.125 BPC, time 65940.03ms, mfu -100.00%",
        "iter 20: loss 4.5 BPC, time 52.57ms, mfu 7.09%",
    )
    assert trace.facts["loss_base"] == "bits"
    assert rows(trace) == {10: 6.125, 20: 4.5}
    assert rows(trace, "eval_loss") == {10: 6.5}


def test_bits_before_the_first_update_say_the_unit() -> None:
    trace = read("nanogpt", "step 0: train loss 12.5 BPC, val loss 12.75 BPC")
    assert trace.facts["loss_base"] == "bits"
    assert rows(trace, "eval_loss") == {1: 12.75}


@pytest.mark.parametrize(
    ("train", "evaluation", "base", "factor"),
    [("", " BPC", "nats", math.log(2)), (" BPC", "", "bits", 1 / math.log(2))],
)
def test_an_evaluation_in_the_other_unit_is_brought_to_that_of_training(
    train: str, evaluation: str, base: str, factor: float
) -> None:
    trace = read(
        "nanogpt",
        f"step 10: train loss 2.0{evaluation}, val loss 3.0{evaluation}",
        f"iter 10: loss 2.5{train}, time 52.57ms, mfu 7.09%",
    )
    assert trace.facts["loss_base"] == base
    assert rows(trace) == {10: 2.5}
    assert rows(trace, "eval_loss") == {10: 3.0 * factor}
    assert rows(trace, "metric:train_split_loss") == {10: 2.0 * factor}


def test_build_nanogpt_prints_fields_between_bars() -> None:
    trace = read(
        "nanogpt",
        "validation loss: 10.75",
        "step    0 | loss: 10.5 | lr 1.0e-06 | norm: 15.25 | dt: 2000.00ms | tok/sec: 1000.0",
        "step    1 | loss: 9.5 | lr 2.0e-06 | norm: 9.5 | dt: 300.00ms | tok/sec: 9000.0",
    )
    assert rows(trace) == {1: 10.5, 2: 9.5}
    assert rows(trace, "lr") == {1: 1e-06, 2: 2e-06}
    assert rows(trace, "grad_norm") == {1: 15.25, 2: 9.5}
    assert rows(trace, "eval_loss") == {1: 10.75}


def test_build_nanogpt_keeps_pairs_in_a_file() -> None:
    trace = read("nanogpt", "0 val 10.75", "0 hella 0.25", "0 train 10.5", "1 train 9.5")
    assert rows(trace) == {1: 10.5, 2: 9.5}
    assert rows(trace, "eval_loss") == {1: 10.75}
