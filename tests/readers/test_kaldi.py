"""Kaldi's objective functions: a log probability, of which the loss is minus."""

import pytest

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

LOG = "LOG (nnet3-chain-train[5.5.103~1-34cc4e]:PrintStatsForThisPhase():nnet-training.cc:323) "


def read(*lines: str) -> Trace:
    return read_lines("kaldi", *lines)


def test_the_loss_is_minus_the_objective_at_the_last_of_its_minibatches() -> None:
    line = LOG + "Average objective function for 'output' for minibatches {} is {} over 9 frames."
    trace = read(line.format("40-49", -35.25), line.format("50-59", -34.5))
    assert rows_of(trace) == [(50, 35.25), (60, 34.5)]


def test_of_an_objective_in_two_parts_their_sum_counts() -> None:
    text = "Average objective function for 'output' for minibatches 0-9 is -0.5 + -0.125 = -0.625"
    assert rows_of(read(LOG + text + " over 6400 frames.")) == [(10, 0.625)]


def test_a_phase_with_minibatches_left_out_counts() -> None:
    text = "Average objective function for 'output using 7 minibatches in minibatch range 10-19 is "
    assert rows_of(read(LOG + text + "-0.5 over 6400 frames.")) == [(20, 0.5)]


def test_the_second_output_of_a_chain_model_is_a_metric() -> None:
    line = LOG + "Average objective function for '{}' for minibatches 0-9 is {} over 6400 frames."
    trace = read(line.format("output", -0.25), line.format("output-xent", -4.5))
    assert rows_of(trace) == [(10, 0.25)]
    assert rows_of(trace, "metric:output_xent") == [(10, 4.5)]


@pytest.mark.parametrize(
    "begin",
    [
        "Process {n}/250({n}.000000%) ",
        "Device (0) processing {n}/250({n}.000000%) ",
        "Device (0) processing batch {n}, current pseudo-epoch is {n}/250({n}.000000%), ",
    ],
)
def test_the_python_bindings_count_batches_within_epochs_from_0(begin: str) -> None:
    line = (
        "2026-01-02 03:04:05,678 INFO [train.py:102] " + begin + "global average objf: {g} over "
        "6400.0 frames, current batch average objf: {x} over 6400 frames, epoch {e}"
    )
    trace = read(
        "2026-01-02 03:04:05,678 INFO [train.py:185] epoch 0, learning rate 0.001",
        line.format(n=0, g=-1.5, x=-1.25, e=0),
        line.format(n=100, g=-1.0, x=-0.5, e=0),
        "....",
        line.format(n=0, g=-0.75, x=-0.25, e=1),
    )
    assert rows_of(trace) == [(1, 1.25), (101, 0.5), (251, 0.25)]
    assert rows_of(trace, "metric:global_objf") == [(1, 1.5), (101, 1.0), (251, 0.75)]
    assert rows_of(trace, "lr")[0][1] == 0.001


@pytest.mark.parametrize(
    "begin", ["batch {n}, epoch {e}/8", "processing batch {n}, current epoch is {e}/8"]
)
def test_snowfall_prints_the_loss_itself_under_the_same_name(begin: str) -> None:
    line = (
        "2026-01-02 03:04:05,678 INFO [train.py:211] " + begin + " global average objf: {g} over "
        "9.0 frames (100.0% kept), current batch average objf: {x} over 9 frames (99.5% kept) "
        "avg time waiting for batch 0.125s"
    )
    trace = read(
        line.format(n=0, e=0, g=2.5, x=2.5),
        line.format(n=10, e=0, g=2.25, x=2.0),
        "Validation average objf: 2.125 over 900.0 frames (100.0% kept)",
        line.format(n=0, e=1, g=1.5, x=1.5),
    )
    assert [value for _, value in rows_of(trace)] == [2.5, 2.0, 1.5]
    assert [value for _, value in rows_of(trace, "eval_loss")] == [2.125]
