"""Transformer-XL's log.txt."""

import pytest

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of


def read(*lines: str) -> Trace:
    return read_lines("transformer-xl", *lines)


@pytest.mark.parametrize("batches", ["{:6d} batches", "batches {:6d} / 1200"])
def test_steps_evaluations_and_the_steps_planned(batches: str) -> None:
    row = (
        "| epoch   1 step {n:8d} | " + batches + " | lr {lr} | ms/batch 31.50 | loss {x} | ppl  9.9"
    )
    trace = read(
        *("    - dynamic_loss_scale : False", "    - lr : 0.0015", "    - max_step : 4000"),
        row.format(200, n=200, lr="6e-05", x=" 8.99"),
        "| Eval   1 at step      200 | time: 71.25s | valid loss  4.28 | valid ppl    72.240",
        row.format(400, n=400, lr="0", x="  nan"),
        "| End of training | test loss  3.27 | test ppl    26.217",
    )
    assert rows_of(trace) == [(200, 8.99), (400, None)]
    assert rows_of(trace, "lr") == [(200, 6e-05), (400, 0.0)]
    assert rows_of(trace, "eval_loss") == [(200, 4.28)]
    assert trace.facts["total_steps"] == 4000
    assert trace.facts["loss_window"] == 200
    assert set(trace.series) == {"loss", "eval_loss", "lr", "epoch"}
