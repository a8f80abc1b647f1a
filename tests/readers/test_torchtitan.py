"""torchtitan: ranks, colours, keys that came and went, validation."""

from tests.readers.language_model_logs import read, rows

PREFIX = "[titan] 2026-01-02 03:04:05,678 - root - INFO - "


def test_a_line_a_rank_is_one_row() -> None:
    line = PREFIX + "step:  4  loss:  7.5  grad_norm: 26.5  memory: 66.91GiB(37.51%)  tps: 10,050"
    trace = read("torchtitan", f"[rank0]:{line}", f"[rank1]:{line}", f"[rank7]:{line}")
    assert rows(trace) == {4: 7.5}
    assert rows(trace, "grad_norm") == {4: 26.5}
    assert trace.series.keys() == {"loss", "grad_norm"}


def test_colours_do_not_matter() -> None:
    trace = read(
        "torchtitan",
        PREFIX + "\x1b[31mstep:  4  \x1b[32mloss:  7.50000  \x1b[33mgrad_norm: 26.5  "
        "\x1b[36mmemory: 66.91GiB(37.51%)  \x1b[34mtps: 10,050  \x1b[35mmfu: 13.99%\x1b[39m",
    )
    assert rows(trace) == {4: 7.5}
    assert rows(trace, "grad_norm") == {4: 26.5}


def test_older_versions_have_no_norm_and_say_wps_or_the_rate() -> None:
    trace = read(
        "torchtitan",
        PREFIX + "step:  1  loss: 12.2500  memory:  6.91GiB(7.51%)  wps: 1,050  mfu: 13.99%",
        PREFIX + "step:  2  loss: 11.2500  iter:  0.1250  data: 0.0250  lr: 0.00025",
        PREFIX + "step:  3  loss: 10.2500 (global)  memory:  6.91GiB(7.51%)  wps: 1,050",
    )
    assert rows(trace) == {1: 12.25, 2: 11.25, 3: 10.25}
    assert rows(trace, "lr") == {2: 0.00025}
    assert trace.series.keys() == {"loss", "lr"}


def test_a_validation_is_no_training() -> None:
    trace = read(
        "torchtitan",
        PREFIX + "step:  4  loss:  7.5  grad_norm: 26.5  memory: 66.91GiB(37.51%)  tps: 10,050",
        PREFIX + "validate step:  4  loss:  7.25  memory: 66.91GiB(37.51%)  tps: 10,050",
    )
    assert rows(trace) == {4: 7.5}
    assert rows(trace, "eval_loss") == {4: 7.25}


def test_flame_adds_the_rate_and_shortens_the_norm() -> None:
    trace = read(
        "torchtitan",
        PREFIX + "step:  4  loss:  7.5  memory: 6.91GiB(7.51%)  tps: 10,050  lr: 1.5e-03"
        " gnorm: 2.25",
    )
    assert rows(trace, "lr") == {4: 0.0015}
    assert rows(trace, "grad_norm") == {4: 2.25}
