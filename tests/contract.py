"""What every rule owes, as plain functions of a rule: for the registry, and for sabotaged rules."""

import ast
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from graphlib import TopologicalSorter
from itertools import combinations_with_replacement, product

import numpy as np
from judging import doses, gravity, judgement, own_tests, tips
from tampered import (
    catalogue,
    filled,
    nonsense,
    numbers,
    shifted,
    texts,
    treated,
    until,
    with_facts,
)

from optdoctor.channels import Axis, channel, is_channel
from optdoctor.engine import diagnose, examine
from optdoctor.findings import Severity, Status
from optdoctor.rule import SECTIONS, SYMPTOMS, Rule
from optdoctor.rules import RULES
from optdoctor.trace import declares

NOTE = Severity.NOTE
REMEDIES = (
    "add avoid ban check disable enable fix increase lower no prefer raise reduce require set use"
)
FIELD_WORDS = {
    "staircase-oscillation": ("Staircase", "Oscillation"),
    "early-plateau": ("Plateau",),
    "upward-drift": ("Drift",),
    "nan-pulse": ("NaN",),
    "bimodal-gap": ("Overfitting",),
    "loss-spike": ("Spike",),
    "divergence": ("Divergence",),
    "loss-scale-collapse": ("Loss scale",),
    "gradient-outlier": ("Gradient",),
    "nonfinite-gradient": ("Gradient", "Non-finite"),
}
"""How a practitioner's sentence on each symptom begins."""
ADVISED_EPS = (1e-4,)
SENTENCE = re.compile(r"\S.{10,}\.", re.S)
NOT_A_NUMBER = re.compile(r"(?<!\w)-?(nan|inf)(?![\w-])|np\.\w+\(")


def check_name_is_its_files_and_names_the_illness(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", rule.name)
    assert rule.check.__module__.rpartition(".")[2] == rule.name.replace("-", "_")
    assert rule.name.partition("-")[0] not in REMEDIES.split(), "the name tells a remedy"


def check_docstring_has_every_section(rule: Rule) -> None:
    assert SENTENCE.fullmatch(rule.title)
    assert re.findall(r"^## (.*)$", rule.doc, re.M) == list(SECTIONS)
    assert [heading for heading in SECTIONS if not SENTENCE.search(rule.section(heading))] == []


def check_every_limit_has_a_sentence(rule: Rule) -> None:
    for cls in type(rule.limits).__mro__[:-1]:
        tree = ast.parse(inspect.getsource(sys.modules[cls.__module__]))
        body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls.__name__)
        for node, after in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign):
                assert isinstance(after, ast.Expr), f"{ast.unparse(node)} lacks its sentence"
                assert SENTENCE.fullmatch(ast.literal_eval(after.value))


def check_channels_are_in_the_vocabulary(rule: Rule) -> None:
    assert [name for name in rule.declared if not is_channel(name)] == []


def check_explains_known_rules_without_a_circle(rule: Rule) -> None:
    registry = {r.name: r for r in RULES} | {rule.name: rule}
    assert set(rule.explains) <= registry.keys() | SYMPTOMS
    TopologicalSorter({name: r.explains for name, r in registry.items()}).prepare()


def check_waits_only_for_symptoms_that_it_brings_about(rule: Rule) -> None:
    below = {r.name: set(r.explains) for r in RULES} | {rule.name: set(rule.explains)}
    reached = set(rule.explains)
    while more := set().union(*(below.get(name, set()) for name in reached)) - reached:
        reached |= more
    for finding in examine(rule, rule.sick()).findings:
        assert not finding.raised_by
        assert not finding.awaits_symptom or (finding.severity is NOTE and reached & SYMPTOMS)


def check_finds_its_own_illness_and_says_what_to_do(rule: Rule) -> None:
    outcome = examine(rule, rule.sick())
    assert outcome.status is Status.FOUND, outcome.reason or outcome.missing
    assert any(finding.treatments for finding in outcome.findings)
    for finding in outcome.findings:
        assert finding.evidence
        assert all(evidence.what and evidence.unit for evidence in finding.evidence)
        assert all(declares(rule.declared, evidence.channel) for evidence in finding.evidence)
        assert all(t.title and t.source for t in finding.treatments)


def check_summary_is_one_sentence_with_a_number(rule: Rule) -> None:
    for finding in examine(rule, rule.sick()).findings:
        assert SENTENCE.fullmatch(finding.summary)
        assert re.search(r"\d", finding.summary)
        assert not re.search(r"[.!?]\s+[A-Z]|\n", finding.summary)
        assert finding.summary.startswith(FIELD_WORDS.get(rule.name, ""))


def check_healthy_example_is_clear_to_every_rule(rule: Rule) -> None:
    assert examine(rule, rule.healthy()).status is Status.CLEAR
    diagnosis = diagnose(rule.healthy(), [*(r for r in RULES if r.name != rule.name), rule])
    assert diagnosis.findings == ()
    assert diagnosis.with_status(Status.CRASHED) == {}


def check_every_needed_channel_decides(rule: Rule) -> None:
    sick = rule.sick()
    said = judgement(examine(rule, sick))
    for name in (name for names in rule.needed for name in names if sick.has(name)):
        if channel(name).axis is Axis.RUN:
            decided = [value for value in catalogue(name) if value not in rule.spares]
            others = [with_facts(sick, **{name: value}) for value in decided]
        else:
            others = [filled(sick, value, 1.0, only=name) for value in (0.0, 1e9, -1.0, np.nan)]
        outcomes = [examine(rule, other) for other in others]
        ran = [outcome for outcome in outcomes if outcome.status is not Status.CRASHED]
        assert any(judgement(outcome) != said for outcome in ran), f"{name} changes nothing"


def check_spares_only_families_that_are_known(rule: Rule) -> None:
    assert set(rule.spares) <= set(catalogue("optimizer_family")) - {"other"}
    for family in rule.spares:
        assert examine(rule, with_facts(rule.sick(), optimizer_family=family)).findings == ()


def check_broken_traces_neither_crash_it_nor_print_nonsense(rule: Rule) -> None:
    sick = rule.sick()
    broken = [
        filled(sick, filling, share)
        for filling in (np.nan, np.inf, 0.0, -1.0)
        for share in (0.5, 1.0)
    ]
    facts = [name for name in sorted(rule.declared) if channel(name).axis is Axis.RUN]
    broken += [with_facts(sick, **{name: value}) for name in facts for value in nonsense(name)]
    broken += [
        with_facts(sick, **{one: here, other: there})
        for one, other in combinations_with_replacement(facts, 2)
        for here, there in product(catalogue(one), catalogue(other))
    ]
    for trace in (sick, rule.healthy(), *broken):
        outcome = examine(rule, trace)
        assert outcome.status is not Status.CRASHED, outcome.reason
        for finding in outcome.findings:
            assert all(np.isfinite(number) for number in numbers(finding))
            assert not any(NOT_A_NUMBER.search(text) for text in texts(finding))


def check_steps_are_those_of_the_illness(rule: Rule) -> None:
    sick = rule.sick()
    steps = [finding.steps for finding in examine(rule, sick).findings]
    if rule.static:
        assert set(steps) == {(0, 0)}
        return
    later = [finding.steps for finding in examine(rule, shifted(sick, 1000)).findings]
    assert later == [(first + 1000, last + 1000) for first, last in steps]
    onset = min(first for first, _ in steps)
    assert gravity(rule, until(sick, onset - 1)) == 0, "ill before its first step"
    end = max(last for _, last in steps)
    assert [f.steps for f in examine(rule, until(sick, end)).findings] == steps
    if rule.limits.rows <= 1:
        assert gravity(rule, until(sick, onset)) > 0, "not yet ill at its first step"


def check_treatments_change_something_and_cure(rule: Rule) -> None:
    sick = rule.sick()
    for finding in examine(rule, sick).findings:
        for treatment in finding.treatments:
            for knob, (old, new) in treatment.changes.items():
                assert old != new, knob
                assert knob != "eps" or (new in ADVISED_EPS and np.float16(new) > 0)
            if rule.static and treatment.changes:
                assert gravity(rule, treated(sick, treatment.changes)) == 0, treatment.title


def check_limits_hold_exactly(rule: Rule) -> None:
    pairs = own_tests(rule).AT_LIMIT
    judging = {field.name for field in fields(rule.limits)} - {"rows"} - doses(rule)
    assert pairs, "no boundary is tested"
    assert judging <= pairs.keys(), f"no boundary test of {judging - pairs.keys()}"
    for name, (within, beyond) in pairs.items():
        assert gravity(rule, within()) < gravity(rule, beyond()), f"{name} is not judged exactly"
        if name in judging:
            nearest = any(tips(rule, name, trace) for trace in (within(), beyond()))
            assert nearest, f"the example of {name} is not at its limit"


CHECKS: tuple[Callable[[Rule], None], ...] = tuple(
    value for name, value in list(globals().items()) if name.startswith("check_")
)
