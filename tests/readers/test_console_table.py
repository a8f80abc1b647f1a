"""Tables that are printed to a console, in the forms of rich, tabulate, pandas and others."""

import pytest

from optdoctor.readers import claiming
from optdoctor.reading.reader import Head
from tests.text_logs import read_lines, rows_of

RICH = """
┏━━━━━━━┳━━━━━━━━━━━━┳━━━━━━━━━━┳━━━━━━━━━┓
┃ Epoch ┃ Train Loss ┃ Val Loss ┃ LR      ┃
┡━━━━━━━╇━━━━━━━━━━━━╇━━━━━━━━━━╇━━━━━━━━━┩
│   1/3 │     2.2500 │   2.5000 │ 1.0e-03 │
│   2/3 │     2.1250 │   2.3750 │ 1.0e-03 │
│   3/3 │        nan │   2.2500 │ 1.0e-04 │
└───────┴────────────┴──────────┴─────────┘
"""
MARKDOWN = """
| epoch | **train_loss** | val_loss | lr |
|---|:-:|--:|----|
| 1 | 2.2500 | 2.5000 | 0.001 |
| 2 | 2.1250 | **2.3750** | 0.001 |
| 3 | nan | 2.2500 | 0.0001 |
"""
PSQL = """
+---------+--------------+------------+--------+
|   epoch |   train_loss |   val_loss |     lr |
|---------+--------------+------------+--------|
|       1 |       2.2500 |     2.5000 | 0.001  |
|       2 |       2.1250 |     2.3750 | 0.001  |
|       3 |     nan      |     2.2500 | 0.0001 |
+---------+--------------+------------+--------+
"""
PRESTO = """
   epoch |   train_loss |   val_loss |     lr
---------+--------------+------------+--------
       1 |       2.2500 |     2.5000 | 0.001
       2 |       2.1250 |     2.3750 | 0.001
       3 |          nan |     2.2500 | 0.0001
"""
SIMPLE = """
  epoch    train loss    val loss      lr
-------  ------------  ----------  ------
      1        \x1b[36m2.2500\x1b[0m      2.5000  0.001
      2        \x1b[32m2.1250\x1b[0m      2.3750  0.001
      3           nan      2.2500  0.0001
"""
FRAME = """
    epoch  train_loss  val_loss      lr
0       1      2.2500    2.5000  0.0010
1       2      2.1250    2.3750  0.0010
10      3         NaN    2.2500  0.0001
"""
BLANKS = "epoch train_loss val_loss lr\n1 2.25 2.5 0.001\n2 2.125 2.375 0.001\n3 nan 2.25 1e-4"


@pytest.mark.parametrize("table", [RICH, MARKDOWN, PSQL, PRESTO, SIMPLE, FRAME, BLANKS])
def test_a_table_is_read_in_every_form(table: str) -> None:
    trace = read_lines("console-table", *table.strip("\n").split("\n"))
    assert rows_of(trace) == [(1, 2.25), (2, 2.125), (3, None)]
    assert rows_of(trace, "eval_loss") == [(1, 2.5), (2, 2.375), (3, 2.25)]
    assert rows_of(trace, "lr") == [(1, 0.001), (2, 0.001), (3, 0.0001)]
    assert trace.facts["loss_kind"] == "falling"
    assert trace.facts["step_source"] == "epochs"
    assert trace.lines_skipped == 0


def test_a_table_says_its_steps_and_thousands() -> None:
    rows = (f"| {n:,} | {n / 8:,.3f} | 9 s |" for n in (1000, 2000, 3000))
    trace = read_lines("console-table", "| Step | Loss | Time |", "|---|---|---|", *rows)
    assert rows_of(trace) == [(1000, 125.0), (2000, 250.0), (3000, 375.0)]
    assert set(trace.series) == {"loss"}


def test_a_header_comes_back_and_other_lines_stand_between() -> None:
    head = ("  epoch    train_loss", "-------  ------------")
    trace = read_lines("console-table", *head, "  1  2.5", "saved a model", *head, "  2  2.25")
    assert rows_of(trace) == [(1, 2.5), (2, 2.25)]


def test_a_part_of_the_loss_in_a_column_is_a_metric_and_a_word_is_none() -> None:
    rows = (f"| {n} | 2.{n} | 1.{n} | yes |" for n in (1, 2))
    trace = read_lines("console-table", "| epoch | loss | box_loss | saved |", *rows)
    assert set(trace.series) == {"epoch", "loss", "metric:box_loss"}


def test_a_cell_without_a_number_is_no_value() -> None:
    trace = read_lines(
        "console-table",
        "| epoch | loss | val_loss |",
        "| 1 | 2.5 | |",
        "| 2 | - | 2.75 |",
        "| 3 | 2.25 | n/a |",
    )
    assert rows_of(trace) == [(1, 2.5), (3, 2.25)]
    assert rows_of(trace, "eval_loss") == [(2, 2.75)]


def test_gaps_of_a_data_frame_are_no_nan() -> None:
    trace = read_lines(
        "console-table",
        "   step  train_loss  val_loss",
        "0    10        2.50       NaN",
        "1    10         NaN      2.75",
        "2    20        2.25       NaN",
        "3    20         NaN      2.50",
    )
    assert rows_of(trace) == [(10, 2.5), (20, 2.25)]
    assert rows_of(trace, "eval_loss") == [(10, 2.75), (20, 2.5)]


def test_rows_of_two_players_are_counted() -> None:
    trace = read_lines("console-table", "| d_loss | g_loss |", "| 1.5 | 2.5 |", "| 1.25 | 2.25 |")
    assert rows_of(trace, "metric:d_loss") == [(1, 1.5), (2, 1.25)]
    assert trace.facts["loss_kind"] == "adversarial"


@pytest.mark.parametrize(
    "text",
    [
        "the loss\nis 3\nwas 4\nand 5\n",
        "a loss of money\n1 2 3 4 5\nwe lost 3 of 4\n",
        "| name | weight loss |\n|---|---|\n| ann | some |\n| bob | none |\n",
        "| epoch | acc |\n| 1 | 0.5 |\n| 2 | 0.75 |\n",
        "| epoch | loss |\n| 1 | 0.5 |\n",
    ],
)
def test_other_tables_and_prose_are_not_claimed(text: str) -> None:
    found = claiming(Head(text.encode()))
    assert found is None or found.name != "console-table"
