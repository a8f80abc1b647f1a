"""What is told while training: statistics only when they last, faults at once, nothing twice."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest

from optdoctor import rule
from optdoctor.findings import Diagnosis, Evidence, Finding, Notice, Severity, Verdict
from optdoctor.live.announce import EXAMS, ROWS, announced_in, carried, notices, ripe
from optdoctor.rules import RULES
from optdoctor.trace import Trace

NOTE, WARN, CRITICAL = Severity.NOTE, Severity.WARN, Severity.CRITICAL


def found(name: str, severity: Severity = WARN, first: int = 1) -> Finding:
    return Finding(
        severity,
        f"{name} at {first}.",
        (first, first),
        (Evidence("loss", "", 1, 0, "1"),),
        rule=name,
    )


def diagnosis(*findings: Finding) -> Diagnosis:
    order = sorted(findings, key=lambda f: (-list(Severity).index(f.severity), f.steps, f.rule))
    return Diagnosis(Verdict.SICK, {}, tuple(order), ())


def told(
    announced: Mapping[str, Finding], *findings: Finding, ripe: bool = True
) -> list[tuple[str, str]]:
    given = notices(announced, diagnosis(*findings), 7, {f.rule: ripe for f in findings})
    assert all(notice.step == 7 for notice in given)
    return [(notice.what, notice.finding.rule) for notice in given]


def a_rule(rows: int, mechanism: bool = False) -> rule.Rule:
    return rule.Rule(
        "a",
        ("loss",),
        lambda t, limits: [],
        rule.Limits(rows),
        Trace,
        Trace,
        "",
        mechanism=mechanism,
    )


@pytest.mark.parametrize(
    ("exams", "rows", "announced"),
    [
        (EXAMS - 1, 10**6, False),
        (10**6, ROWS - 1, False),
        (EXAMS, ROWS, True),
        (EXAMS + 1, ROWS + 1, True),
    ],
)
def test_a_statistic_is_told_after_three_exams_and_500_rows(
    exams: int, rows: int, announced: bool
) -> None:
    assert ripe({"a": a_rule(30)}, {"a": exams}, rows) == {"a": announced}
    assert (EXAMS, ROWS) == (3, 500)


@pytest.mark.parametrize(
    "speaks_at_once",
    [a_rule(30, mechanism=True), a_rule(1), a_rule(0)],
    ids=["a counter of the fault", "one row is enough", "decided before step 1"],
)
def test_a_fault_itself_is_told_at_once(speaks_at_once: rule.Rule) -> None:
    assert ripe({"a": speaks_at_once}, {"a": 1}, 0) == {"a": True}


def test_every_mechanism_rule_of_the_registry_speaks_at_once() -> None:
    rules = {r.name: r for r in RULES}
    said = ripe(rules, dict.fromkeys(rules, 1), 0)
    assert all(said[name] for name, r in rules.items() if r.mechanism)
    assert any(r.mechanism for r in RULES)


def test_what_is_new_appears() -> None:
    assert told({}, found("a")) == [("appeared", "a")]


def test_what_is_not_ripe_waits() -> None:
    assert told({}, found("a"), ripe=False) == []
    assert notices({}, diagnosis(found("a")), 7, {}) == []


def test_nothing_is_told_twice() -> None:
    assert told({"a": found("a")}, found("a", first=5)) == []


def test_a_graver_finding_is_told_again_and_a_milder_one_is_not() -> None:
    assert told({"a": found("a", WARN)}, found("a", CRITICAL)) == [("worsened", "a")]
    assert told({"a": found("a", NOTE)}, found("a", WARN), ripe=False) == [("worsened", "a")]
    assert told({"a": found("a", CRITICAL)}, found("a", WARN)) == []


def test_what_is_gone_has_ended() -> None:
    before = found("a", first=3)
    (notice,) = notices({"a": before}, diagnosis(), 9, {})
    assert notice == Notice(9, "ended", before)


def test_a_rise_that_gets_another_name_is_told_as_one_illness() -> None:
    drift, fast = found("upward-drift", CRITICAL, 921), found("divergence", CRITICAL, 930)
    (notice,) = notices({"upward-drift": drift}, diagnosis(fast), 1200, {})
    assert notice == Notice(1200, "renamed", fast, was="upward-drift")
    assert told({"upward-drift": drift, "divergence": fast}, fast) == [("renamed", "divergence")]
    other = {"loss-spike": found("loss-spike")}
    assert told(other, fast) == [("ended", "loss-spike"), ("appeared", "divergence")]
    assert told({"upward-drift": drift}, drift, fast) == [("appeared", "divergence")]


def test_a_new_name_takes_over_what_was_counted_of_the_old_one() -> None:
    assert carried({"upward-drift": 2, "loss-spike": 5}, ["divergence"]) == {"divergence": 2}
    assert carried({"upward-drift": 2, "divergence": 1}, ["divergence"]) == {"divergence": 1}
    both = ["divergence", "upward-drift"]
    assert carried({"upward-drift": 2}, both) == {"upward-drift": 2}
    assert carried({"loss-spike": 5}, ["divergence"]) == {}


def test_of_several_findings_of_one_rule_the_gravest_is_told() -> None:
    given = notices({}, diagnosis(found("a", NOTE, 1), found("a", CRITICAL, 9)), 9, {"a": True})
    assert [n.finding.severity for n in given] == [CRITICAL]


def test_the_earliest_comes_first() -> None:
    assert told({}, found("a", CRITICAL, 9), found("b", NOTE, 2), found("c", WARN, 2)) == [
        ("appeared", "b"),
        ("appeared", "c"),
        ("appeared", "a"),
    ]


def test_the_arguments_stay_as_they_are() -> None:
    announced = {"a": found("a")}
    notices(announced, diagnosis(found("b")), 7, {"b": True})
    assert announced == {"a": found("a")}


def as_rows(*given: Notice) -> list[dict[str, Any]]:
    """Rows as they come back from findings.jsonl."""
    rows = [
        {
            "announced": n.step,
            "what": n.what,
            "rule": n.finding.rule,
            "was": n.was,
            "severity": n.finding.severity,
            "finding": asdict(n.finding),
        }
        for n in given
    ]
    return [json.loads(json.dumps(row)) for row in rows]


def test_a_new_process_knows_what_the_old_one_told() -> None:
    a, b, worse = found("a", NOTE), found("b", first=4), found("a", CRITICAL, 8)
    written = as_rows(
        Notice(1, "appeared", a),
        Notice(4, "appeared", b),
        Notice(8, "worsened", worse),
        Notice(9, "ended", b),
    )
    known = announced_in(written)
    assert known.keys() == {"a"}
    assert known["a"].severity is CRITICAL
    assert told(known, found("a", CRITICAL, 8)) == []
    assert told(known, found("a", CRITICAL, 8), found("b")) == [("appeared", "b")]
    ended = notices(known, diagnosis(), 9, {})
    assert ended == [Notice(9, "ended", replace(worse, evidence=()))]


def test_a_new_process_knows_the_newest_name_only() -> None:
    drift, fast = found("upward-drift", first=9), found("divergence", CRITICAL, 9)
    rows = as_rows(Notice(20, "appeared", drift), Notice(30, "renamed", fast, was="upward-drift"))
    assert announced_in(rows).keys() == {"divergence"}


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"rule": "a", "what": "appeared", "severity": "awful", "finding": {"steps": [1, 2]}},
        {"rule": "a", "what": "appeared", "severity": "warn", "finding": None},
        {"rule": "a", "what": "appeared", "severity": "warn", "finding": {"steps": [1]}},
        {"rule": "a", "what": "appeared", "severity": "warn", "finding": {"steps": 3}},
    ],
)
def test_a_garbled_row_of_an_old_record_is_left_out(row: dict[str, Any]) -> None:
    (good,) = as_rows(Notice(1, "appeared", found("b")))
    assert announced_in([row, good]).keys() == {"b"}
