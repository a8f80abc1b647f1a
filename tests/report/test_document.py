import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest

from optdoctor.engine import diagnose
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.report.document import render, schema
from optdoctor.rule import Limits, Rule
from optdoctor.rules import RULES
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Event, EventKind, Trace

BY_NAME = {rule.name: rule for rule in RULES}


def crash(*_: object) -> list[Finding]:
    raise RuntimeError("\ud800 bad \x1b[0m")


def odd(*_: object) -> list[Finding]:
    evidence = Evidence("loss", "\u202e\x9b", 23.0, 0.5, "rows")
    change: Any = {"eps": (math.nan, 1e-4), "beta2": (None, 0.95)}
    treatment = Treatment("Do it", change)
    return [Finding(Severity.NOTE, "s", (1, 2), (evidence,), (treatment,))]


def document(trace: Trace, rules: tuple[Rule, ...] = RULES) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(render([(diagnose(trace, rules), trace)]))
    jsonschema.Draft202012Validator(schema()).validate(loaded)
    return loaded


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def unexplained_nan() -> Trace:
    loss = falling_loss()
    loss[300:] = np.nan
    return make_trace(loss=loss)


def test_the_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_sick_and_healthy_runs_validate(rule: Rule) -> None:
    assert document(rule.sick())["runs"][0]["verdict"] in ("sick", "unknown", "healthy")
    assert document(rule.healthy())


def test_every_number_is_finite() -> None:
    for trace in (unexplained_nan(), *(rule.sick() for rule in RULES)):
        numbers = [x for x in leaves(document(trace)) if isinstance(x, float)]
        assert all(math.isfinite(x) for x in numbers)


def test_unknown_abstained_and_crashed_runs_validate() -> None:
    short = document(make_trace(loss=falling_loss(7)))["runs"][0]
    assert (short["verdict"], short["reason"]) == (
        "unknown",
        "7 finite losses are too few to call a run healthy: 30 are needed",
    )
    picky = replace(BY_NAME["nan-pulse"], name="picky", limits=Limits(rows=1000))
    broken = replace(picky, name="broken", check=crash, limits=Limits(rows=1))
    outcomes = document(unexplained_nan(), (picky, broken))["runs"][0]["outcomes"]
    assert list(outcomes["abstained"]) == ["picky"]
    assert "RuntimeError" in outcomes["crashed"]["broken"]


def test_the_keys_are_those_of_the_contract() -> None:
    run = document(unexplained_nan())["runs"][0]
    assert list(run) == [
        "origin",
        "reader",
        "steps",
        "channels",
        "lines_skipped",
        "events",
        "verdict",
        "reason",
        "causes",
        "findings",
        "record",
        "outcomes",
    ]
    assert run["reader"] is None
    assert run["steps"] == [1, 400]
    assert run["channels"] == ["loss"]
    finding = run["findings"][0]
    assert finding["rule"] == "nan-pulse"
    assert finding["evidence"][0]["observed"] == 100
    assert isinstance(finding["evidence"][0]["observed"], int)
    missing = {entry["rule"]: entry["missing"] for entry in finding["causes"]["not_examined"]}
    assert "moment2_zero" in missing["second-moment-underflow"]
    assert run["outcomes"]["skipped"]["second-moment-underflow"]


def test_earlier_runs_resumes_and_gaps_are_listed_and_other_events_are_not() -> None:
    kinds: list[EventKind] = ["start", "alarm", "resume", "gap"]
    events = [Event(step, kind, f"about {step}") for step, kind in enumerate(kinds, 1)]
    run = document(make_trace(loss=falling_loss(), events=events))["runs"][0]
    assert run["events"] == [
        {"step": 1, "kind": "start", "text": "about 1"},
        {"step": 3, "kind": "resume", "text": "about 3"},
        {"step": 4, "kind": "gap", "text": "about 4"},
    ]


def test_an_unsampled_cause_names_its_gap() -> None:
    trace = unexplained_nan()
    tensors = small_gpt("float16", math_dtype="float32")
    sampled = make_trace(
        loss=np.asarray(trace.series["loss"].values),
        moment2_zero=np.zeros((3, len(tensors)), np.float32),
        steps={"moment2_zero": [1, 2, 400]},
        state_dtype="float16",
        eps=1e-8,
        beta2=0.999,
        tensors=tensors,
    )
    entries = document(sampled)["runs"][0]["findings"][0]["causes"]["not_examined"]
    assert {"rule": "second-moment-underflow", "unsampled": [2, 400]} in entries


def test_what_is_not_finite_becomes_null() -> None:
    rule = replace(BY_NAME["nan-pulse"], name="odd", check=odd)
    trace = make_trace(loss=falling_loss())
    diagnosis = diagnose(trace, [replace(rule, check=lambda *_: [])])
    finding = replace(odd()[0], rule="odd")
    loaded = json.loads(render([(replace(diagnosis, findings=(finding,)), trace)]))
    jsonschema.validate(loaded, schema())
    changes = loaded["runs"][0]["findings"][0]["treatments"][0]["changes"]
    assert changes == {"eps": [None, 1e-4], "beta2": [None, 0.95]}


def test_strings_of_a_log_stay_valid_utf8_and_steer_no_terminal() -> None:
    trace = replace(unexplained_nan(), origin="größe \ud800\x1b[2J\x9b\u202e\u2028", reader="csv")
    text = render([(diagnose(trace), trace)], [("\x07", "no such file", "check")])
    text.encode("utf-8")
    assert "größe" in text
    assert not set(text) & set("\x1b\x9b\u202e\u2028\x07")
    origin = json.loads(text)["runs"][0]["origin"]
    assert origin == "größe \ufffd\x1b[2J\x9b\u202e\u2028"


def test_errors_alone_are_a_valid_document() -> None:
    loaded = json.loads(render([], [("picture.png", "no log", "name a log")]))
    jsonschema.validate(loaded, schema())
    assert loaded == {
        "schema": "optdoctor/diagnosis-1",
        "runs": [],
        "errors": [{"path": "picture.png", "reason": "no log", "remedy": "name a log"}],
    }
