"""llm.c: its file and its consoles."""

from tests.readers.language_model_logs import read, rows


def test_the_file_has_losses_on_both_parts_of_the_data() -> None:
    trace = read(
        "llm-c",
        "s:0 tel:10.75",
        "s:0 trl:10.5 lr:0.000002 norm:14.25",
        "s:1 trl:10.25 lr:0.000004 norm:nan",
        "s:2 tel:9.75",
        "s:2 eval:0.25",
    )
    assert rows(trace) == {1: 10.5, 2: 10.25}
    assert rows(trace, "eval_loss") == {1: 10.75, 3: 9.75}
    assert rows(trace, "grad_norm") == {1: 14.25, 2: "nan"}
    assert rows(trace, "lr") == {1: 2e-06, 2: 4e-06}
    assert rows(trace, "metric:hellaswag") == {3: 0.25}


def test_the_file_of_older_versions_has_losses_only() -> None:
    assert rows(read("llm-c", "s:0 tel:10.75", "s:0 trl:10.5", "s:1 trl:9.5")) == {1: 10.5, 2: 9.5}


def test_a_z_score_of_nan_on_the_console_is_no_loss() -> None:
    trace = read(
        "llm-c",
        "val loss 10.75",
        "step    1/900 | loss 10.500000 (+nanz)| norm 14.2500 (+nanz)| lr 2.00e-06 | 30.25 ms |"
        " 42.6% bf16 MFU | 171575 tok/s",
        "step    2/900 | loss 10.250000 (-1.25z)| norm 12.5000 (+0.25z)| lr 4.00e-06 | 30.25 ms |"
        " 42.6% bf16 MFU | 171575 tok/s",
    )
    assert rows(trace) == {1: 10.5, 2: 10.25}
    assert rows(trace, "grad_norm") == {1: 14.25, 2: 12.5}
    assert rows(trace, "lr") == {1: 2e-06, 2: 4e-06}
    assert trace.facts["total_steps"] == 900


def test_the_console_of_the_first_program_is_read() -> None:
    trace = read(
        "llm-c",
        "val loss 5.5",
        "step 0: train loss 5.25 (took 1452.12 ms)",
        "step 1: train loss 4.25 (took 1288.67 ms)",
    )
    assert rows(trace) == {1: 5.25, 2: 4.25}
    assert list(rows(trace, "eval_loss").values()) == [5.5]


def test_the_console_of_the_python_program_is_read() -> None:
    trace = read(
        "llm-c",
        "step    1/10 | train loss 5.25 | norm 28.5 | lr 1.00e-04 | (120.55 ms | 2124 tok/s)",
        "step    2/10 | train loss 4.75 | norm 15.5 | lr 1.00e-04 | (120.55 ms | 2124 tok/s)",
    )
    assert rows(trace) == {1: 5.25, 2: 4.75}
    assert rows(trace, "grad_norm") == {1: 28.5, 2: 15.5}
