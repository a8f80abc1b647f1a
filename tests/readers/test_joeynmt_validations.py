"""JoeyNMT's validations.txt."""

import math

from text_logs import read_lines, rows_of


def test_the_perplexity_is_the_loss_and_the_sum_is_not() -> None:
    trace = read_lines(
        "joeynmt-validations",
        "Steps: 500\tLoss: 90000.00000\tPPL: 64.00000\tbleu: 0.50000\tLR: 0.00030000\t*",
        "Steps: 1000\tLoss: 80000.00000\tPPL: 32.00000\tbleu: 2.25000\tLR: 0.00015000\t",
    )
    assert rows_of(trace, "eval_loss") == [(500, math.log(64)), (1000, math.log(32))]
    assert rows_of(trace, "lr") == [(500, 0.0003), (1000, 0.00015)]
    assert rows_of(trace, "metric:bleu") == [(500, 0.5), (1000, 2.25)]
    assert rows_of(trace) == []
    assert trace.facts["loss_base"] == "nats"


def test_version_2_has_names_in_small_letters() -> None:
    trace = read_lines(
        "joeynmt-validations",
        "Steps: 500\tloss: 4.12500\tacc: 0.25000\tppl: 64.00000\tbleu: 0.50000\tLR: 0.00030000\t*",
        "Steps: 1000\tloss: nan\tacc: 0.25000\tppl: nan\tbleu: 0.00000\tLR: 0.00030000\t",
    )
    assert rows_of(trace, "eval_loss") == [(500, math.log(64)), (1000, None)]
    assert set(trace.series) == {"eval_loss", "lr", "metric:acc", "metric:bleu"}


def test_steps_that_go_back_are_a_resume() -> None:
    row = "Steps: {}\tLoss: 90000.00000\tPPL: {}\tbleu: 0.50000\tLR: 0.00030000\t"
    trace = read_lines(
        "joeynmt-validations", row.format(500, 64), row.format(1000, 32), row.format(1000, 30)
    )
    assert rows_of(trace, "eval_loss") == [(500, math.log(64)), (1000, math.log(30))]
