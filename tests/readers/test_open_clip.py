"""OpenCLIP."""

import pytest
from text_logs import read_lines, rows_of


@pytest.mark.parametrize(
    "row",
    [
        "2026-01-02,03:04:05 | INFO | Train Epoch: 0 [  {n}/109468 (0%)] Loss: {loss} (9.5) "
        "Data (t): 14.173 Batch (t): 18.240, 1.75441/s LR: 0.000125 Logit Scale: 100.000 - V4",
        "2026-01-02,03:04:05 | INFO | Train Epoch: 0 [  {n}/109468 (0%)] Data (t): 1.5 Batch (t): "
        "3.25, 1260.31/s, 157.5/s/gpu LR: 0.000125 Logit Scale: 14.286 "
        "Contrastive_loss: 9.25 (9.5) Loss: {loss} (9.5)",
    ],
)
def test_the_update_counts_and_the_mean_in_brackets_does_not(row: str) -> None:
    trace = read_lines("open-clip", row.format(n=64, loss=8.25), row.format(n=6464, loss="nan"))
    assert rows_of(trace) == [(1, 8.25), (2, None)]
    assert rows_of(trace, "lr") == [(1, 0.000125), (2, 0.000125)]
    assert rows_of(trace, "epoch") == [(1, 0.0), (2, 0.0)]
    assert trace.facts["step_source"] == "counted rows"
    assert trace.facts["loss_window"] == 1


def test_an_evaluation_has_a_loss() -> None:
    trace = read_lines(
        "open-clip",
        "Train Epoch: 0 [  64/109468 (0%)] LR: 0.000125 Loss: 8.25 (9.5)",
        "Eval Epoch: 1 image_to_text_R@1: 0.4132\tclip_val_loss: 7.5000\tepoch: 1.0000",
    )
    assert rows_of(trace, "eval_loss") == [(1, 7.5)]
