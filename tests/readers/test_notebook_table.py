"""The Trainer's table in a notebook: HTML, a notebook file, pasted text, a model card."""

import json
import math

import pytest

from optdoctor.readers import notebook_table, read_source
from optdoctor.reading.reader import Head, Source
from optdoctor.trace import Trace


def table(*rows: tuple[object, ...]) -> str:
    """As transformers writes it."""
    html = '<table border="1" class="dataframe">\n  <thead>\n <tr style="text-align: left;">\n'
    html += "".join(f"      <th>{name}</th>\n" for name in rows[0])
    html += "    </tr>\n  </thead>\n  <tbody>\n"
    for row in rows[1:]:
        cells = (f"{cell:.6f}" if isinstance(cell, float) else cell for cell in row)
        html += "    <tr>\n" + "".join(f"      <td>{cell}</td>\n" for cell in cells) + "    </tr>\n"
    return html + "  </tbody>\n</table><p>\n"


BAR = (
    "    <div>\n      <progress value='90' max='90'></progress>\n"
    "      [ 90/ 90 02:21, Epoch 1.50/3]\n    </div>\n"
)
STEPS = ("Step", "Training Loss")


def read(text: str) -> Trace:
    return read_source(Source(text.encode(), "cell.html"))


def values(trace: Trace, name: str = "loss") -> list[float]:
    return [float(value) for value in trace.series[name].values]


def steps(trace: Trace, name: str = "loss") -> list[int]:
    return [int(step) for step in trace.series[name].steps]


def test_steps_and_losses_are_read() -> None:
    trace = read(BAR + table(STEPS, (10, 2.5), (20, 2.25), (30, math.nan)))
    assert trace.reader == "notebook-table"
    assert steps(trace) == [10, 20, 30]
    assert values(trace)[:2] == [2.5, 2.25]
    assert math.isnan(values(trace)[2])
    assert trace.facts["total_steps"] == 90
    assert trace.facts["framework"] == "huggingface"


def test_an_evaluation_has_its_loss_and_metrics() -> None:
    names = (*STEPS, "Validation Loss", "F1 Macro", "Runtime")
    trace = read(table(names, (10, 2.5, 2.75, 0.5, 9), (20, 2.25, 2.5, 0.75, 9)))
    assert values(trace, "eval_loss") == [2.75, 2.5]
    assert values(trace, "metric:F1 Macro") == [0.5, 0.75]
    assert "metric:Runtime" not in trace.series


def test_a_loss_that_no_log_renewed_is_not_counted_twice() -> None:
    names = (*STEPS, "Validation Loss")
    trace = read(
        table(names, (10, "No log", 3.0), (20, 2.5, 2.75), (30, 2.5, 2.5), (40, 2.25, 2.25))
    )
    assert steps(trace) == [20, 40]
    assert steps(trace, "eval_loss") == [10, 20, 30, 40]


def test_a_loss_of_zero_is_shown_as_often_as_it_stands() -> None:
    names = (*STEPS, "Validation Loss")
    assert values(read(table(names, (10, 2.5, 2.0), (20, 0.0, 2.0), (30, 0.0, 2.0)))) == [2.5, 0, 0]


def test_epochs_without_steps_are_counted() -> None:
    names = ("Epoch", "Training Loss", "Validation Loss")
    trace = read(table(names, (1, "No log", 3.0), (2, 2.5, 2.75), (3, 2.25, 2.5)))
    assert values(trace) == [2.5, 2.25]
    assert values(trace, "epoch")[-1] == 3


def test_a_reward_beside_the_loss_tells_that_it_need_not_fall() -> None:
    assert read(table(STEPS, (1, 0.5), (2, 0.25))).facts["loss_kind"] == "falling"
    trace = read(table((*STEPS, "reward", "kl"), (1, 0.0, 0.5, 0.1), (2, 0.0, 0.75, 0.1)))
    assert trace.facts["loss_kind"] == "reward"


def test_a_notebook_file_is_read() -> None:
    lines = (BAR + table(STEPS, (10, 2.5), (20, 2.25))).splitlines(keepends=True)
    output = {"output_type": "display_data", "data": {"text/html": lines, "text/plain": ["<x>"]}}
    notebook = {
        "cells": [{"cell_type": "code", "source": ["trainer.train()"], "outputs": [output]}]
    }
    for indent in (None, 1):
        trace = read(json.dumps(notebook, indent=indent))
        assert steps(trace) == [10, 20]
        assert values(trace) == [2.5, 2.25]


def test_of_two_trainings_the_last_counts_and_other_tables_do_not() -> None:
    other = table(("name", "count"), ("ann", 3), ("bob", 4))
    first, last = table(STEPS, (10, 9.0), (20, 8.0)), table(STEPS, (30, 2.5), (40, 2.25))
    trace = read(other + first + other + last + other)
    assert steps(trace) == [30, 40]
    assert values(trace) == [2.5, 2.25]


@pytest.mark.parametrize(
    "text",
    [
        "Step\tTraining Loss\tValidation Loss\n10\t2.500000\t2.750000\n20\t2.250000\t2.500000\n",
        "Step  Training Loss  Validation Loss\n10 2.5 2.75\n20 2.25 2.5\n",
        "| Training Loss | Epoch | Step | Validation Loss |\n|:--:|:--:|:--:|:--:|\n"
        "| 2.5 | 0.5 | 10 | 2.75 |\n| 2.25 | 1.0 | 20 | 2.5 |\n",
    ],
)
def test_a_table_as_text_is_read(text: str) -> None:
    trace = read("Training went well:\n\n" + text + "\nand 3 words behind\n")
    assert trace.reader == "notebook-table"
    assert steps(trace) == steps(trace, "eval_loss") == [10, 20]
    assert values(trace) == [2.5, 2.25]
    assert values(trace, "eval_loss") == [2.75, 2.5]


def test_a_row_that_was_cut_keeps_its_whole_cells() -> None:
    text = table((*STEPS, "Validation Loss"), (10, 2.5, 2.75), (20, 2.25, 2.5))
    trace = read(text[: text.index("2.500000</td>\n    </tr>\n  <")])
    assert values(trace) == [2.5, 2.25]
    assert values(trace, "eval_loss") == [2.75]


@pytest.mark.parametrize(
    "text",
    ["Training loss fell.\n10 20\n", "<p>training loss</p>", table(("Step", "Loss"), (1, 2))],
)
def test_words_and_other_tables_are_not_claimed(text: str) -> None:
    assert not notebook_table.READER.sniff(Head(text.encode()))
