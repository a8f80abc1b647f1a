"""Megatron and its kin: what is not printed, what stands for nothing, other spellings."""

import pytest

from tests.readers.language_model_logs import read, rows


def line(step: int, loss: str = "", rest: str = "", skipped: int = 0, nan: int = 0) -> str:
    return (
        f" iteration {step:8d}/     900 | consumed samples: {8 * step:12d} | elapsed time per"
        f" iteration (ms): 312.5 | learning rate: 1.000E-05 | global batch size:     8 |"
        f" {loss}{rest}number of skipped iterations: {skipped:3d} |"
        f" number of nan iterations: {nan:3d} |"
    )


def test_a_missing_loss_is_one_that_was_not_finite() -> None:
    trace = read("megatron", line(1, "lm loss: 1.050000E+01 | "), line(2, rest="grad norm: nan | "))
    assert rows(trace) == {1: 10.5, 2: "nan"}
    assert rows(trace, "grad_norm") == {2: "nan"}
    assert rows(trace, "lr") == {1: 1e-05, 2: 1e-05}
    assert "step_skipped" not in trace.series
    assert not any("consumed" in name or "elapsed" in name for name in trace.series)


def test_a_loss_is_also_missing_where_all_updates_were_skipped() -> None:
    trace = read("megatron", line(1, "lm loss: 1.050000E+01 | "), line(2, skipped=1))
    assert rows(trace) == {1: 10.5}
    assert rows(trace, "step_skipped") == {2: 1.0}


def test_a_skipped_update_whose_loss_was_nan_says_so() -> None:
    trace = read("megatron", line(1, "lm loss: 1.050000E+01 | "), line(2, skipped=1, nan=1))
    assert rows(trace) == {1: 10.5, 2: "nan"}
    assert rows(trace, "step_skipped") == {2: 1.0}


def test_some_skipped_updates_of_an_interval_are_no_skipped_step() -> None:
    trace = read("megatron", line(100, "lm loss: 1.050000E+01 | ", skipped=3))
    assert "step_skipped" not in trace.series
    assert rows(trace, "metric:number of skipped iterations") == {100: 3.0}


def test_a_loss_of_another_name_is_not_a_missing_one() -> None:
    trace = read("megatron", line(1, "retrieval loss: 1.050000E+01 | "))
    assert "loss" not in trace.series
    assert rows(trace, "metric:retrieval loss") == {1: 10.5}


def test_a_line_that_is_cut_before_its_loss_makes_no_nan() -> None:
    whole = line(2, "lm loss: 9.500000E+00 | ")
    trace = read("megatron", line(1, "lm loss: 1.050000E+01 | "), whole[: whole.find(" lm loss")])
    assert rows(trace) == {1: 10.5}


def test_a_scale_of_minus_one_and_a_norm_of_zero_were_not_recorded() -> None:
    trace = read(
        "megatron",
        line(1, "lm-loss: 1.050000E+01 | ", "loss scale: -1.0 | grad norm: 0.000 | "),
        line(2, "lm-loss: 9.500000E+00 | ", "loss scale: 1.0 | grad norm: 0.000 | "),
    )
    assert rows(trace) == {1: 10.5, 2: 9.5}
    assert rows(trace, "loss_scale") == {2: 1.0}
    assert rows(trace, "grad_norm") == {2: 0.0}


def test_the_window_is_the_interval_between_lines() -> None:
    losses = [line(step, "lm loss: 9.500000E+00 | ") for step in (10, 20, 400)]
    assert read("megatron", *losses).facts["loss_window"] == 10


def test_the_prefixes_of_launchers_and_of_newer_versions_do_not_matter() -> None:
    trace = read(
        "megatron",
        "[default7]:" + line(1, "lm loss: 1.050000E+01 | ").replace("(ms)", "(s)"),
        " [2026-01-02 03:04:05.678901]" + line(2, "lm loss: 9.500000E+00 | mtp_1 loss: 9.75 | "),
        "15: [2026-01-02 03:04:05]"
        + line(3, "lm loss: 9.250000E+00 | load_balancing_loss: 1.5 | ", "params norm: 99.5 | "),
    )
    assert rows(trace) == {1: 10.5, 2: 9.5, 3: 9.25}
    assert rows(trace, "metric:mtp_1 loss") == {2: 9.75}
    assert rows(trace, "metric:load_balancing_loss") == {3: 1.5}
    assert rows(trace, "metric:params norm") == {3: 99.5}


def test_an_evaluation_is_of_the_validation_data_and_then_of_the_test_data() -> None:
    trace = read(
        "megatron",
        line(10, "lm loss: 1.050000E+01 | "),
        " validation loss at iteration 10 on validation set | lm loss value: 9.5 | lm loss PPL: 7",
        " validation loss at iteration 10 on test set | lm loss value: 9.75 | lm loss PPL: 8 |",
    )
    assert rows(trace, "eval_loss") == {10: 9.5}
    assert rows(trace, "metric:test_loss") == {10: 9.75}
    assert rows(trace) == {10: 10.5}


@pytest.mark.parametrize(
    "evaluation",
    [
        " validation loss at iteration 10 | lm loss value: 9.500000E+00 | lm loss PPL: 1.3E+04 |",
        " validation results at iteration 10 | lm_loss value: 9.5E+00 | lm_loss_ppl value: 9.0 |",
        "validation loss at the end of training for val data | lm loss value: 9.5 |",
    ],
)
def test_the_evaluations_of_other_versions_are_read(evaluation: str) -> None:
    trace = read("megatron", line(10, "lm loss: 1.050000E+01 | "), "-" * 80, evaluation, "-" * 80)
    assert rows(trace, "eval_loss") == {10: 9.5}
    assert not any("PPL" in name or "ppl" in name for name in trace.series)


def test_gpt_neox_prints_its_speed_first_and_a_nan_as_it_is() -> None:
    start = "10.0.0.1:  samples/sec: 12.3 | iteration {}/  900 | elapsed time per iteration (ms): 9"
    end = " | learning rate: 1.0E-05 | lm_loss: {} | number of skipped iterations:   0 |"
    trace = read(
        "megatron", (start + end).format("       1", "1.05E+01"), (start + end).format("2", "nan")
    )
    assert rows(trace) == {1: 10.5, 2: "nan"}


def test_an_overflow_belongs_to_the_iteration_after_it() -> None:
    trace = read(
        "megatron",
        line(7, "lm loss: 2.5E+00 | ", "loss scale: 64.0 | "),
        "[2026-01-02 03:04:05,678] [INFO] [stage_1_and_2.py:1644:step] [deepspeed] OVERFLOW! Rank 0"
        " Skipping step. Attempted loss scale: 64.0, reducing to 32.0",
        line(8, "lm loss: 2.5E+00 | ", "loss scale: 64.0 | "),
        line(9, "lm loss: 2.5E+00 | ", "loss scale: 32.0 | "),
    )
    assert rows(trace, "step_skipped") == {8: 1.0}
    assert rows(trace, "loss_scale") == {7: 64.0, 8: 64.0, 9: 32.0}
    assert trace.lines_skipped == 0


def test_a_total_that_no_run_has_is_no_fact() -> None:
    trace = read("megatron", line(1, "lm loss: 1.050000E+01 | ").replace("900 |", "1e999 |", 1))
    assert "total_steps" not in trace.facts
