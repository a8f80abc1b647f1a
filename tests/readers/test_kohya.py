"""kohya's sd-scripts."""

import pytest
from text_logs import read_lines, rows_of


@pytest.mark.parametrize("name", ["avr_loss", "loss"])
def test_the_newest_text_of_a_bar_counts(name: str) -> None:
    bar = "steps:   1%|1         | {n}/900 [00:10<15:00,  1.01s/it, {name}={loss}]"
    trace = read_lines(
        "kohya",
        "steps:   0%|          | 0/900 [00:00<?, ?it/s]",
        bar.format(n=1, name=name, loss=0.125)
        + "\r"
        + bar.format(n=2, name=name, loss=0.125)
        + "\r"
        + bar.format(n=2, name=name, loss=0.25),
        bar.format(n=3, name=name, loss="nan"),
    )
    assert rows_of(trace) == [(1, 0.125), (2, 0.25), (3, None)]
    assert trace.facts["total_steps"] == 900
    assert trace.facts["loss_kind"] == "diffusion"
    assert trace.facts["loss_form"] == "running mean"
    assert trace.lines_skipped == 0
