"""Reports print the steps that the log prints, also of one that counts from 0."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from optdoctor.cli import main
from optdoctor.engine import diagnose
from optdoctor.readers import read_source
from optdoctor.reading.source import Source
from optdoctor.report import many, markdown, page, text
from optdoctor.report.own_steps import as_logged, words_as_logged
from optdoctor.trace import Trace


def jumped(first: int) -> Trace:
    """A loss that jumps in the 251st of 400 rows, ten steps apart."""
    rows = np.arange(400)
    loss = (2 + 6 * (rows + 1.0) ** -0.4 + 0.01 * (-1.0) ** rows) * np.where(rows < 250, 1, 3)
    lines = [f"{first + 10 * i},{value:.4f}" for i, value in enumerate(loss)]
    return read_source(Source("\n".join(["step,loss", *lines]).encode(), "log.csv"))


@pytest.mark.parametrize("first", [0, 10])
def test_the_step_of_a_finding_is_the_one_in_the_log(first: int) -> None:
    trace = jumped(first)
    diagnosis = diagnose(trace)
    jump, last = first + 2500, first + 3990
    told = text.render(diagnosis, trace)
    assert re.search(rf"at step {jump} and stays", " ".join(told.split()))
    assert f"steps {jump}-{last}" in told
    for report in (told, markdown.render([(diagnosis, trace)]), page.render([(diagnosis, trace)])):
        assert f"step {jump}" in report
        assert f"step {jump + 1}" not in report
        assert "counts from 0" not in report
    assert str(jump) in many.render_many([(diagnosis, trace), (diagnosis, trace)])


def test_json_keeps_the_steps_of_the_trace_and_says_so(tmp_path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("step,loss\n" + "".join(f"{i * 10},{9 / (i + 1):.4f}\n" for i in range(60)))
    (run,) = json.loads(CliRunner().invoke(main, ["analyze", str(log), "--format", "json"]).stdout)[
        "runs"
    ]
    assert run["steps"] == [1, 591]
    assert any("counts from 0" in event["text"] for event in run["events"])


def test_a_log_that_counts_from_one_is_told_as_it_is() -> None:
    trace = jumped(10)
    diagnosis = diagnose(trace)
    assert as_logged(diagnosis, trace) == (diagnosis, trace)
    shifted = as_logged(diagnose(jumped(0)), jumped(0))
    assert as_logged(*shifted) == shifted, "once is enough"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("at step 301 for 40 steps", "at step 300 for 40 steps"),
        ("steps 111, 211 and 311", "steps 110, 210 and 310"),
        ("Steps 5-9, from step 1 to step 10", "Steps 4-8, from step 0 to step 9"),
        ("every 100 steps, 3 times in epoch 7", "every 100 steps, 3 times in epoch 7"),
        ("steps 204 to 206", "steps 203 to 205"),
        ("NaN from step 402 to the end, 600: 199", "NaN from step 401 to the end, 599: 199"),
        ("silent from step 41 to 45.", "silent from step 40 to 44."),
        ("at step 240 to 9 (8 times)", "at step 239 to 9 (8 times)"),
        ("step 1,000, steps 1,200 and 13", "step 999, steps 1,199 and 12"),
    ],
)
def test_only_numbers_that_are_steps_change(words: str, told: str) -> None:
    assert words_as_logged(words) == told
