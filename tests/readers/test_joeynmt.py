"""JoeyNMT's train.log."""

import math

import pytest
from text_logs import read_lines, rows_of


@pytest.mark.parametrize(
    "row",
    [
        "2026-01-02 03:04:05,678 Epoch {epoch} Step: {step} Batch Loss: {loss} Tokens per Sec: 9.5",
        "2026-01-02 03:04:05,678 Epoch   {epoch} Step:      {step} Batch Loss:     {loss} "
        "Tokens per Sec:    13096, Lr: 0.000300",
        "2026-01-02 03:04:05,678 - INFO - joeynmt.training - Epoch   {epoch}, Step:      {step}, "
        "Batch Loss:     {loss}, Batch Acc: 0.25, Tokens per Sec:    13096, Lr: 0.000300",
    ],
)
def test_all_versions_are_read(row: str) -> None:
    trace = read_lines(
        "joeynmt",
        row.format(epoch=1, step=100, loss="5.250000"),
        row.format(epoch=2, step=200, loss="nan"),
    )
    assert rows_of(trace) == [(100, 5.25), (200, None)]
    assert rows_of(trace, "epoch") == [(100, 1.0), (200, 2.0)]
    assert rows_of(trace, "lr") in ([], [(100, 0.0003), (200, 0.0003)])
    assert trace.facts["loss_window"] == 1
    assert "metric:Tokens per Sec" not in trace.series


def test_the_loss_of_an_evaluation_is_a_sum_so_that_its_perplexity_counts() -> None:
    trace = read_lines(
        "joeynmt",
        "Epoch   5 Step:     1000 Batch Loss:     3.125000 Tokens per Sec:    9000, Lr: 0.000300",
        "Hooray! New best validation result [ppl]!",
        "Validation result (greedy) at epoch   5, step     1000: bleu:   2.06, loss: 70000.5, "
        "ppl:  24.5000, duration: 13.5851s",
        "Best validation result (greedy) at step     1000:  24.5000 ppl.",
        "Epoch   5: total training loss 800.25",
    )
    assert rows_of(trace, "eval_loss") == [(1000, math.log(24.5))]
    assert rows_of(trace) == [(1000, 3.125)]
    assert rows_of(trace, "metric:bleu") == [(1000, 2.06)]
    assert trace.lines_skipped == 0


def test_an_evaluation_of_version_2_stands_at_the_newest_step() -> None:
    trace = read_lines(
        "joeynmt",
        "Epoch   5, Step:     1000, Batch Loss:     3.125000, Batch Acc: 0.25, Lr: 0.000300",
        "Evaluation result (greedy): bleu:  2.06, loss:   3.20, ppl:  24.50, acc:   0.31, 5.2[sec]",
    )
    assert rows_of(trace, "eval_loss") == [(1000, math.log(24.5))]
    assert rows_of(trace, "metric:valid_acc") == [(1000, 0.31)]
    assert "metric:loss" not in trace.series
