"""The bar of diffusers' scripts."""

import pytest
from text_logs import read_lines, rows_of


@pytest.mark.parametrize("name", ["step_loss", "loss"])
def test_the_newest_text_of_a_bar_counts(name: str) -> None:
    bar = "Steps:   1%|1         | {n}/900 [00:10<15:00,  1.01s/it, lr=1e-5, {name}={loss}]"
    trace = read_lines(
        "diffusers-bar",
        "Steps:   0%|          | 0/900 [00:00<?, ?it/s]",
        bar.format(n=1, name=name, loss=0.125)
        + "\r"
        + bar.format(n=2, name=name, loss=0.125)
        + "\r"
        + bar.format(n=2, name=name, loss=0.25),
        bar.format(n=3, name=name, loss="nan"),
    )
    assert rows_of(trace) == [(1, 0.125), (2, 0.25), (3, None)]
    assert rows_of(trace, "lr")[0] == (1, 1e-05)
    assert trace.facts["total_steps"] == 900
    assert trace.facts["loss_kind"] == "diffusion"
    assert trace.facts["loss_window"] == 1
    assert trace.lines_skipped == 0
