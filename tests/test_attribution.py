"""In what order the found rules answer for a run, and when a symptom makes a warning of a note."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from made_up import RUN, causes_of, finding, rule, static

from optdoctor.engine import diagnose, examine, ranked
from optdoctor.findings import Evidence, Finding, Severity, Verdict
from optdoctor.live.announce import notices
from optdoctor.rule import Rule
from optdoctor.synthetic import make_trace, small_gpt

NOTE, WARN, CRITICAL = Severity.NOTE, Severity.WARN, Severity.CRITICAL
TRACE = make_trace(
    {"loss": np.linspace(3, 2, 400), "update_ratio": np.ones((400, 9)), "eps": 1e-8},
    tensors=small_gpt(),
)
SPIKE = rule("loss-spike", finding(300))


def seen(name: str, at: int, severity: Severity = WARN, **more: Any) -> Rule:
    """A rule that reads sampled tensors and finds something from this step on."""
    evidence = (Evidence("update_ratio", "x", 2.0, 1.0, "1"),)
    found = finding(at, severity=severity, evidence=evidence)
    return rule(name, found, needs=("update_ratio",), **more)


def counter(name: str, at: int, **more: Any) -> Rule:
    return seen(name, at, mechanism=True, **more)


def fact(name: str, severity: Severity = WARN, **more: Any) -> Rule:
    found = finding(0, severity=severity, evidence=(Evidence("eps", "x", 0.0, 1.0, "1"),))
    return static(name, found, needs=("eps",), mechanism=True, **more)


def answers(*rules: Rule) -> list[str]:
    """The causes, best first, whatever the order of the rules."""
    orders = {tuple(c.rule for c in diagnose(TRACE, o).causes) for o in permutations(rules)}
    assert len(orders) == 1
    return list(orders.pop())


# Order


def test_a_cause_is_told_with_all_that_it_brings_about() -> None:
    middle = rule("middle", finding(200), explains=("loss-spike",))
    root = rule("root", finding(100), explains=("middle",))
    assert [(c.rule, c.explains) for c in diagnose(RUN, [SPIKE, middle, root]).causes] == [
        ("root", ("loss-spike", "middle")),
        ("middle", ("loss-spike",)),
    ]


@pytest.mark.parametrize(
    ("decay", "last", "transient", "explains"),
    [
        ({"beta1": 0.9}, 100, True, False),
        ({"beta1": 0.9}, 249, True, False),
        ({"beta1": 0.9}, 250, True, True),
        ({}, 249, True, False),
        ({}, 250, True, True),
        ({"momentum": 0.98}, 49, True, False),
        ({"momentum": 0.98}, 50, True, True),
        ({"momentum": 0.0}, 294, True, False),
        ({"momentum": 0.0}, 295, True, True),
        ({"momentum": 1.0}, 249, True, False),
        ({"beta1": 0.9}, 100, False, True),
    ],
)
def test_single_updates_explain_what_begins_before_the_momentum_forgets_them(
    decay: dict[str, float], last: int, transient: bool, explains: bool
) -> None:
    trace = make_trace({"loss": np.linspace(3, 2, 400), **decay})
    batch = rule("batch", finding(40, last), explains=("nan-pulse",), transient=transient)
    diagnosis = diagnose(trace, [batch, rule("nan-pulse", finding(300))])
    assert causes_of(diagnosis, "nan-pulse").found == (("batch",) if explains else ())
    assert "batch" not in causes_of(diagnosis, "nan-pulse").clear


def test_a_start_that_is_estimated_may_have_been_before_the_momentum_forgot() -> None:
    batch = rule("batch", finding(100), explains=("divergence",), transient=True)
    for onset, found in ((214, ("batch",)), (215, ())):
        late = rule("divergence", finding(onset), onset="estimated")
        assert causes_of(diagnose(TRACE, [batch, late]), "divergence").found == found


def test_of_one_severity_the_findings_of_a_cause_stand_before_what_it_explains() -> None:
    spike = rule("loss-spike", finding(40), onset="estimated")
    root = rule("root", finding(60), explains=("loss-spike",))
    other = rule("other", finding(50))
    for rules in permutations([spike, root, other]):
        found = [one.rule for one in diagnose(TRACE, rules).findings]
        assert found == ["other", "root", "loss-spike"]


def test_what_nothing_explains_stands_before_what_something_does() -> None:
    assert answers(
        counter("effect", 10), counter("later-root", 40), counter("root", 60, explains=("effect",))
    ) == ["later-root", "root", "effect"]


def test_roots_stand_by_their_first_step() -> None:
    assert answers(counter("b", 9), counter("a", 10), counter("c", 8)) == ["c", "b", "a"]
    assert answers(seen("b", 9), seen("a", 10), seen("c", 8)) == ["c", "b", "a"]


def test_what_is_explained_stands_by_its_first_step_too() -> None:
    root = fact("root", explains=("one", "other"))
    assert answers(root, counter("one", 20), counter("other", 10)) == ["root", "other", "one"]


def test_of_one_step_the_graver_stands_first_then_what_explains_then_the_name() -> None:
    assert answers(fact("a"), fact("b", CRITICAL)) == ["b", "a"]
    assert answers(fact("a"), fact("b", explains=("loss-spike",)), SPIKE) == ["b", "a"]
    assert answers(fact("b"), fact("a")) == ["a", "b"]


def test_a_statistic_never_stands_before_a_counter_that_began_no_later() -> None:
    """Dead units are seen in one sample, a gradient that nobody zeroes only after many."""
    assert answers(seen("a-statistic", 5), counter("counter", 5)) == ["counter", "a-statistic"]
    assert answers(seen("a-statistic", 5), counter("counter", 69)) == ["counter", "a-statistic"]
    assert answers(seen("a-statistic", 5), counter("counter", 70)) == ["a-statistic", "counter"]
    exact = rule("exact", finding(6), mechanism=True)
    assert answers(seen("a-statistic", 5), exact) == ["a-statistic", "exact"]
    assert answers(seen("a-statistic", 6), exact) == ["exact", "a-statistic"]


def test_a_counter_that_is_a_symptom_too_stands_as_a_statistic_does() -> None:
    dead = counter("a-counter", 5, symptom_too=True)
    assert answers(dead, counter("counter", 69)) == ["counter", "a-counter"]
    assert answers(dead, counter("counter", 70)) == ["a-counter", "counter"]
    assert answers(dead, seen("a-statistic", 6)) == ["a-counter", "a-statistic"]
    assert answers(counter("b", 60), dead, seen("a", 6)) == ["b", "a-counter", "a"]


def test_statistics_behind_one_counter_keep_their_order() -> None:
    rules = seen("b", 5), seen("a", 9), counter("counter", 22), counter("early", 1)
    assert answers(*rules) == ["early", "counter", "b", "a"]


def test_a_symptom_answers_last_and_only_if_it_brings_about_others() -> None:
    outlier = rule("gradient-outlier", finding(3), explains=("loss-spike",))
    assert answers(SPIKE) == []
    assert answers(SPIKE, outlier) == ["gradient-outlier"]
    assert answers(SPIKE, outlier, counter("late", 390)) == ["late", "gradient-outlier"]
    root = counter("root", 3, explains=("effect",))
    assert answers(outlier, root, counter("effect", 9))[-1] == "gradient-outlier"


def test_a_rule_that_brings_about_nothing_is_an_answer() -> None:
    assert answers(seen("alone", 9)) == ["alone"]


def test_a_note_is_no_answer() -> None:
    assert answers(seen("alone", 9, NOTE, explains=("loss-spike",)), SPIKE) == []


def test_the_earliest_finding_of_a_rule_decides_its_place() -> None:
    several = rule(
        "several", finding(250, severity=CRITICAL), finding(20), finding(5, severity=NOTE)
    )
    root = rule("root", finding(30), explains=("several",))
    assert answers(several, root) == ["several", "root"]
    assert causes_of(diagnose(TRACE, [several, root]), "several").found == ("root",)


def test_answers_are_ranked_causes_then_open_symptoms_then_explained_ones_then_notes() -> None:
    rules = [
        rule("divergence", finding(2)),
        rule("nan-pulse", finding(200, severity=CRITICAL)),
        rule("upward-drift", finding(1, severity=NOTE)),
        seen("root", 100, explains=("nan-pulse", "effect")),
        seen("effect", 150),
        seen("worth-knowing", 1, NOTE),
        rule("waiting-note", replace(finding(3, severity=NOTE), awaits_symptom=True)),
    ]
    for order in permutations(rules):
        assert ranked(diagnose(TRACE, order)) == (
            "root",
            "effect",
            "divergence",
            "nan-pulse",
            "waiting-note",
            "upward-drift",
            "worth-knowing",
        )
    assert ranked(diagnose(TRACE, [])) == ()


# Notes that wait for a symptom


def waiting(at: int, severity: Severity = NOTE, **more: Any) -> Finding:
    evidence = (Evidence("update_ratio", "x", 2.0, 1.0, "1"),)
    return finding(at, severity=severity, awaits_symptom=True, evidence=evidence, **more)


def frozen(*found: Finding, explains: tuple[str, ...] = ("loss-spike",), **more: Any) -> Rule:
    return rule("frozen", *found, needs=("update_ratio",), explains=explains, **more)


def gravity(illness: Rule, *others: Rule) -> Severity:
    (outcome,) = {diagnose(TRACE, o).outcomes["frozen"] for o in permutations([illness, *others])}
    return outcome.findings[0].severity


def test_a_note_stands_behind_one_that_can_bring_it_about() -> None:
    early = rule("early", finding(100, severity=NOTE))
    root = rule("root", finding(200, severity=NOTE), explains=("early",))
    other = rule("other", finding(300, severity=NOTE))
    for rules in permutations([early, root, other]):
        assert ranked(diagnose(RUN, rules)) == ("root", "other", "early")
    graver = rule("early", finding(100))
    assert ranked(diagnose(RUN, [root, graver])) == ("early", "root"), "of notes alone"


def test_a_note_that_waits_is_a_warning_beside_its_symptom() -> None:
    diagnosis = diagnose(TRACE, [frozen(waiting(100)), SPIKE])
    (raised,) = diagnosis.outcomes["frozen"].findings
    assert raised in diagnosis.findings
    assert (raised.severity, raised.raised_by) == (WARN, "loss-spike")
    assert raised.summary == "A number, 2; loss-spike is found from step 300 on."
    assert causes_of(diagnosis, "loss-spike").found == ("frozen",)
    assert [(c.rule, c.explains) for c in diagnosis.causes] == [("frozen", ("loss-spike",))]


def test_a_note_that_waits_stays_a_note_alone() -> None:
    diagnosis = diagnose(TRACE, [frozen(waiting(100))])
    (found,) = diagnosis.findings
    assert (found.severity, found.raised_by, found.summary) == (NOTE, "", "A number, 2.")
    assert diagnosis.verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("symptom", "raises"),
    [
        (rule("loss-spike", finding(300)), True),
        (rule("loss-spike", finding(300, severity=CRITICAL)), True),
        (rule("loss-spike", finding(300, severity=NOTE)), False),
        (rule("early-plateau", finding(300)), False),
        (rule("loss-spike", finding(84)), True),
        (rule("loss-spike", finding(83)), False),
        (rule("loss-spike", finding(36), onset="estimated"), True),
        (rule("loss-spike", finding(35), onset="estimated"), False),
    ],
)
def test_only_a_grave_symptom_of_its_own_that_began_no_earlier_raises_it(
    symptom: Rule, raises: bool
) -> None:
    assert gravity(frozen(waiting(100)), symptom) is (WARN if raises else NOTE)


def test_a_symptom_that_it_brings_about_through_others_raises_it() -> None:
    middle = rule("middle", explains=("loss-spike",))
    assert gravity(frozen(waiting(100), explains=("middle",)), middle, SPIKE) is WARN
    assert gravity(frozen(waiting(100), explains=("middle",)), SPIKE) is NOTE


def test_a_counter_that_is_a_symptom_too_raises_it() -> None:
    counter = rule("units", finding(300), symptom_too=True)
    assert gravity(frozen(waiting(100), explains=("units",)), counter) is WARN


def test_what_is_no_symptom_raises_nothing() -> None:
    cause = rule("other", finding(300))
    assert gravity(frozen(waiting(100), explains=("other",)), cause) is NOTE


def test_the_earliest_symptom_is_named() -> None:
    both = frozen(waiting(1), explains=("loss-spike", "divergence"))
    for order in permutations([SPIKE, rule("divergence", finding(200)), both]):
        (raised,) = diagnose(TRACE, order).outcomes["frozen"].findings
        assert raised.raised_by == "divergence"


def test_other_notes_and_graver_findings_stay_as_they_are() -> None:
    plain = seen("frozen", 100, NOTE, explains=("loss-spike",))
    assert gravity(plain, SPIKE) is NOTE
    grave = frozen(waiting(100, severity=CRITICAL))
    (found,) = diagnose(TRACE, [grave, SPIKE]).outcomes["frozen"].findings
    assert (found.severity, found.raised_by, found.summary) == (CRITICAL, "", "A number, 2.")


def test_one_rule_alone_raises_nothing() -> None:
    (found,) = examine(frozen(waiting(100)), TRACE).findings
    assert found.severity is NOTE


def test_a_raised_note_is_not_announced_before_its_symptom_may_be() -> None:
    diagnosis = diagnose(TRACE, [frozen(waiting(100)), SPIKE])
    early = notices({}, diagnosis, 320, {"frozen": True, "loss-spike": False})
    assert early == []
    note = {"frozen": waiting(100)}
    assert notices(note, diagnosis, 320, {"frozen": True, "loss-spike": False}) == []
    worsened, appeared = notices(note, diagnosis, 320, {"frozen": True, "loss-spike": True})
    assert (worsened.what, worsened.finding.rule) == ("worsened", "frozen")
    assert (appeared.what, appeared.finding.rule) == ("appeared", "loss-spike")
