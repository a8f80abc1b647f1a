"""What a report of a log says to record next time."""

import json
from dataclasses import replace

import numpy as np
import pytest

from optdoctor.attribution import explained_by
from optdoctor.channels import CHANNELS, Axis
from optdoctor.engine import diagnose
from optdoctor.findings import Differential, NotExamined
from optdoctor.knowledge.recording import HOW, HOW_IN, TELLS, how
from optdoctor.report import document, explain, markdown, page, text
from optdoctor.report.recording import MOST, to_record
from optdoctor.rules import RULES
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace


def broken(**more: object) -> Trace:
    """A log whose loss is NaN from step 51 on."""
    loss = falling_loss(100)
    loss[50:] = np.nan
    return replace(make_trace({"loss": loss, **more}), reader="prints", origin="train.log")


def names(trace: Trace) -> list[str]:
    return [record.channel for record in to_record(diagnose(trace), trace)]


@pytest.mark.parametrize("symptom", sorted(TELLS))
def test_what_a_channel_is_said_to_tell_is_read_by_a_rule(symptom: str) -> None:
    rules = {rule.name: rule for rule in RULES}
    causes = explained_by(RULES).get(symptom, ())
    read = set().union(*(rules[name].declared for name in (symptom, *causes)))
    assert set(TELLS[symptom]) <= read
    assert set(TELLS[symptom]) <= set(HOW)
    assert all(tells.startswith("whether ") for tells in TELLS[symptom].values())


def test_only_channels_that_a_log_can_hold_are_to_be_recorded() -> None:
    assert all(CHANNELS[name].axis is Axis.STEP for name in HOW)
    assert all(set(own) <= set(HOW) for own in HOW_IN.values())
    assert "LearningRateMonitor" in how("lr", "lightning")
    assert how("lr", "huggingface") == how("lr") == HOW["lr"]


def test_the_channel_that_decides_most_comes_first() -> None:
    first, *others = to_record(diagnose(broken()), broken())
    assert first.channel == "grad_norm"
    assert {"bad-batch", "nonfinite-gradient"} <= set(first.causes)
    assert str(first) == (
        "grad_norm (what clip_grad_norm_ returns, with each loss) tells whether the gradient or"
        " the loss broke first"
    )
    assert all(len(first.causes) >= len(other.causes) for other in others)
    assert (others[-1].channel, others[-1].causes) == ("loss_scale", ())


def test_what_is_logged_already_or_cannot_be_is_not_asked_for() -> None:
    norm = np.ones(100)
    norm[50:] = np.nan
    assert "grad_norm" not in names(broken(grad_norm=norm))
    assert names(broken(compute_dtype="float16")) == ["grad_norm", "lr", "loss_scale"]
    assert names(broken(compute_dtype="bfloat16")) == ["grad_norm", "lr"]
    own = replace(broken(), reader="run-record")
    assert names(own) == [], "the doctor was there"


def test_a_cause_that_lacks_more_than_a_log_can_hold_is_not_promised() -> None:
    diagnosis = diagnose(broken())
    lacking = (
        NotExamined("bad-batch", missing=("grad_norm", "eps")),
        NotExamined("nonfinite-gradient", missing=("first_nonfinite_step|grad_norm",)),
        NotExamined("loss-scale-collapse", reason="too few rows"),
    )
    finding = replace(diagnosis.findings[0], causes=Differential(not_examined=lacking))
    first = to_record(replace(diagnosis, findings=(finding,)), broken())[0]
    assert (first.channel, first.causes) == ("grad_norm", ("nonfinite-gradient",))
    found = replace(finding, causes=Differential(found=("bad-batch",), not_examined=lacking))
    assert to_record(replace(diagnosis, findings=(found,)), broken()) == ()


def test_a_healthy_run_and_a_note_ask_for_nothing() -> None:
    healthy = replace(make_trace(loss=falling_loss()), reader="prints")
    steps = np.arange(10, 401, 10)
    alone = falling_loss(400, noise=0.004)[9::10] * np.exp(np.maximum(steps - 200, 0) / 400)
    note = replace(make_trace(eval_loss=alone, steps={"eval_loss": steps}), reader="prints")
    assert diagnose(note).findings, "overfitting, or a divergence"
    for trace in (healthy, note):
        assert names(trace) == []
        diagnosis = diagnose(trace)
        assert "record next" not in text.render(diagnosis, trace)
        assert "log next time" not in markdown.render([(diagnosis, trace)])
        assert "Log next time" not in page.render([(diagnosis, trace)])


def test_a_drift_asks_for_at_most_three() -> None:
    loss = falling_loss(400)
    loss[200:] *= np.exp(np.linspace(0, 0.6, 200))
    trace = replace(make_trace(loss=loss), reader="prints")
    assert sorted(names(trace)) == ["eval_loss", "grad_norm", "lr"]
    assert len(names(trace)) == MOST


def test_every_form_of_the_report_says_it_once() -> None:
    trace = broken()
    few = {"nan-pulse", "bad-batch", "nonfinite-gradient"}  # the causes leave room in the terminal
    diagnosis = diagnose(trace, [rule for rule in RULES if rule.name in few])
    shown = text.render(diagnosis, trace)
    assert shown.count("record next") == 1
    assert "grad_norm (what clip_grad_norm_ returns" in shown
    written = markdown.render([(diagnosis, trace)])
    assert written.count("To decide between the rest, log next time:") == 1
    assert "- `grad_norm`, what clip\\_grad\\_norm\\_ returns, with each loss: whether" in written
    html = page.render([(diagnosis, trace)])
    assert html.count("To decide between the rest:") == 1
    (run,) = json.loads(document.render([(diagnosis, trace)]))["runs"]
    assert [row["channel"] for row in run["record"]] == ["grad_norm", "lr", "loss_scale"]
    assert run["record"][0]["tells"] == "whether the gradient or the loss broke first"


def test_a_report_without_room_keeps_the_names() -> None:
    loss = falling_loss(400)
    loss[200:] *= np.exp(np.linspace(0, 0.6, 200))
    trace = replace(make_trace(loss=loss), reader="prints")
    shown = text.render(diagnose(trace), trace)
    (line,) = (line for line in shown.split("\n") if line.startswith("record next"))
    assert set(names(trace)) <= set(line.replace(",", " ").split())


def test_the_page_of_a_symptom_says_what_a_log_can_tell_of_it() -> None:
    (rule,) = (rule for rule in RULES if rule.name == "nan-pulse")
    assert "from a log  grad_norm tells whether the gradient or the loss broke" in explain.render(
        rule
    )
