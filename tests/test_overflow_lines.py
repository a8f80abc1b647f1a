"""What gradient scalers print when they skip an update, in every spelling that is known."""

import pytest

from optdoctor.readers import read_source
from optdoctor.reading.log import Log
from optdoctor.reading.overflow_lines import add_overflow
from optdoctor.reading.reader import Source, Unreadable

STAMP = "[2026-01-02 03:04:05,678] [INFO] "


def scales(*lines: str) -> list[float]:
    """The scale of each skipped update."""
    log = Log()
    for line in lines:
        add_overflow(line, log)
    if not log.has_rows:
        return []
    trace = log.trace("log", "test")
    assert trace.series["step_skipped"].values.tolist() == [1.0] * trace.series["loss_scale"].rows
    return [float(value) for value in trace.series["loss_scale"].values]


@pytest.mark.parametrize(
    ("line", "scale"),
    [
        (
            STAMP + "[loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step."
            " Attempted loss scale: 64, reducing to 32",
            64.0,
        ),
        (
            STAMP + "[stage_1_and_2.py:1644:step] [deepscale] OVERFLOW! Rank 3 Skipping step."
            " Attempted loss scale: 64.0, reducing to 64.0",
            64.0,
        ),
        (
            STAMP + "[loss_scaler.py:188:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step."
            " Attempted loss scale: 64, but hysteresis is 2. Reducing hysteresis to 1",
            64.0,
        ),
        (
            STAMP + "[logging.py:96:log_dist] [Rank 0] Overflow detected. Skipping step."
            " Attempted loss scale: 64, reducing to 32.0",
            64.0,
        ),
        (
            STAMP + "[unfused_optimizer.py:207:step] [deepspeed] fp16 dynamic loss scale overflow!"
            " Skipping step. Attempted loss scale: 64.0, reducing to 32.0",
            64.0,
        ),
        (STAMP + "[fused_optimizer.py:363] Reducing dynamic loss scale from 64 to 32.0", 64.0),
        (
            "OVERFLOW! Skipping step. Attempted loss scale: 4294967296, reducing to 2147483648",
            2**32,
        ),
        ("[LOMO] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32", 64.0),
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32.0", 32.0),
        (
            "Gradient overflow.  Skipping step, loss scaler 1 reducing loss scale to 1.5e-303",
            1.5e-303,
        ),
        ("NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 2.0", 2.0),
        ("| WARNING: overflow detected, setting loss scale to: 64.0", 64.0),
        ("Overflow occurs, the loss scale is adjusted to 32.0", 32.0),
        (
            "50%|#####     | 1/2 [00:01<00:01]OVERFLOW! Skipping step. Attempted loss scale: 64,"
            " reducing to 32",
            64.0,
        ),
    ],
)
def test_a_spelling_says_the_scale(line: str, scale: float) -> None:
    assert scales(line) == [scale]


@pytest.mark.parametrize(
    "line",
    [
        STAMP + "[fused_optimizer.py:371] No Grad overflow for 500 iterations",
        STAMP + "[fused_optimizer.py:371] Increasing dynamic loss scale from 32.0 to 64.0",
        "No overflow for consecutive 1000 steps, the loss scale is adjusted to 64.0",
        STAMP + "[fused_optimizer.py:362:_update_scale] Grad overflow on iteration 0",
        "  initial_loss_scale .............................. 4294967296",
        "RuntimeError: value cannot be converted to type at::Half without overflow",
        "Attempted loss scale: many, reducing to few",
    ],
)
def test_other_lines_say_no_overflow(line: str) -> None:
    assert not add_overflow(line, Log())
    assert scales(line) == []


def test_the_three_lines_of_the_fused_optimizer_are_one_skipped_update() -> None:
    assert scales(
        "Grad overflow on iteration 0",
        "Reducing dynamic loss scale from 65536 to 32768.0",
        "[deepspeed] fp16 dynamic loss scale overflow! Skipping step. Attempted loss scale: 65536,"
        " reducing to 32768.0",
    ) == [65536.0]


def test_the_lines_of_several_processes_are_one_skipped_update() -> None:
    line = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}"
    assert scales(*[line.format(32.0)] * 8, *[line.format(16.0)] * 8) == [32.0, 16.0]


def test_hysteresis_and_the_reduction_after_it_are_two_skipped_updates() -> None:
    start = "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: "
    assert scales(
        start + "64, but hysteresis is 2. Reducing hysteresis to 1", start + "64, reducing to 32"
    ) == [64.0, 64.0]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "Exception: Current loss scale already at minimum - cannot decrease scale anymore."
            " Exiting run.",
            [2.0, 1.0],
        ),
        ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is", [2.0, 0.0001]),
    ],
)
def test_the_error_of_a_scaler_is_its_last_skipped_update(line: str, told: list[float]) -> None:
    first = "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 2, reducing to 1"
    assert scales(first, line, line) == told
    assert scales(first) == [2.0]
    log = Log()
    for text in (first, line):
        add_overflow(text, log)
    (event,) = log.trace("log", "test").events
    assert (event.step, event.kind, event.new) == (2, "step-skipped", told[1])
    assert "ended the run" in event.text


def test_an_error_of_a_scaler_of_which_nothing_else_is_known_tells_no_scale() -> None:
    log = Log()
    assert not add_overflow(
        "Exception: Current loss scale already at minimum - cannot decrease"
        " scale anymore. Exiting run.",
        log,
    )
    assert not log.has_rows


def test_the_same_overflow_after_another_row_is_another_skipped_update() -> None:
    log = Log()
    line = "OVERFLOW! Skipping step. Attempted loss scale: 64, reducing to 32"
    for step in (10, 2000, 4000):
        add_overflow(line, log)
        log.row({"loss": 2.5}, step)
    assert log.trace("log", "test").series["step_skipped"].rows == 3


def test_a_paste_of_nothing_but_overflows_is_read() -> None:
    said = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}"
    lines = [said.format(2.0**power) for power in range(15, 9, -1)]
    trace = read_source(Source("\n".join(lines).encode(), "paste.txt"))
    assert trace.series["loss_scale"].values.tolist() == [2.0**power for power in range(15, 9, -1)]
    with pytest.raises(Unreadable):  # two of them in a text make no log of it
        read_source(Source("\n".join([*lines[:2], "and so on"]).encode(), "paste.txt"))
