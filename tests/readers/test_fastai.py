"""fastai's table."""

import pytest
from text_logs import read_lines, rows_of


def test_a_row_is_an_epoch_under_the_names_of_the_header() -> None:
    trace = read_lines(
        "fastai",
        "epoch     train_loss  valid_loss  accuracy  time    ",
        "0         2.250000    1.750000    0.500000  01:30     ",
        "1         nan         1.500000    0.625000  01:30     ",
    )
    assert rows_of(trace) == [(1, 2.25), (2, None)]
    assert rows_of(trace, "eval_loss") == [(1, 1.75), (2, 1.5)]
    assert rows_of(trace, "metric:accuracy") == [(1, 0.5), (2, 0.625)]
    assert trace.facts["step_source"] == "epochs"
    assert trace.facts["loss_form"] == "running mean"
    assert "metric:time" not in trace.series


def test_a_second_fit_goes_on_with_the_same_weights() -> None:
    trace = read_lines(
        "fastai",
        "epoch     train_loss  valid_loss  time    ",
        "0         2.250000    1.750000    01:30     ",
        "Better model found at epoch 0",
        "epoch     train_loss  valid_loss  error_rate  time    ",
        "0         1.250000    None        0.250000    01:30     ",
        "1         1.125000    1.500000    0.125000    01:30     ",
    )
    assert rows_of(trace) == [(1, 2.25), (2, 1.25), (3, 1.125)]
    assert rows_of(trace, "eval_loss") == [(1, 1.75), (3, 1.5)]
    assert rows_of(trace, "metric:error_rate") == [(2, 0.25), (3, 0.125)]


def test_the_old_names_are_known_and_a_row_of_another_length_is_none() -> None:
    trace = read_lines(
        "fastai",
        "epoch      trn_loss   val_loss   accuracy   ",
        "    0      2.25       1.75       0.5      ",
        "    1      1.25       1.5",
        "2 models were saved",
        "best 1.25 1.5 0.25",
    )
    assert rows_of(trace) == [(1, 2.25)]
    assert rows_of(trace, "epoch") == [(1, 0.0)]
    assert rows_of(trace, "eval_loss") == [(1, 1.75)]


@pytest.mark.parametrize(
    ("header", "row", "reader"),
    [
        ("epoch\ttrain_loss\tvalid_loss", "1\t2.5\t2.75", "csv"),
        (
            "  epoch    train_loss    valid_loss",
            "      1        2.5000        2.7500",
            "console-table",
        ),
        ("epoch  train_loss  valid_loss", "1  2.5000  2.7500", "console-table"),
    ],
)
def test_tables_of_others_are_not_its_own(header: str, row: str, reader: str) -> None:
    trace = read_lines(reader, header, row, row.replace("1", "2", 1))
    assert rows_of(trace, "eval_loss")[0][1] == 2.75
    assert trace.facts.get("loss_form") is None


def test_a_copied_table_has_tabs() -> None:
    trace = read_lines(
        "fastai",
        "epoch\ttrain_loss\tvalid_loss\ttime",
        "0\t2.5\t2.75\t00:09",
        "1\t2.25\t2.5\t00:09",
    )
    assert rows_of(trace) == [(1, 2.5), (2, 2.25)]
