import json
import re
from dataclasses import dataclass, replace

import pytest
from rich.cells import cell_len

from optdoctor import rule as rules_module
from optdoctor.knowledge.rates import rates_of
from optdoctor.report.explain import as_json, limit_docs, render, render_list
from optdoctor.rule import SECTIONS, SYMPTOMS, Rule
from optdoctor.rules import RULES
from optdoctor.synthetic import make_trace


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_page_fits_the_terminal_and_has_every_section(rule: Rule, width: int) -> None:
    lines = render(rule, width=width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert [line for line in lines if line in SECTIONS] == list(SECTIONS)
    assert lines[0].startswith(f"{rule.name} ")
    assert (lines[lines.index("Measured") + 1] == "  not measured yet") == (not rates_of(rule.name))
    assert not re.search(r"`[a-z0-9]+-[^`]*`", "\n".join(lines))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_word_of_the_docstring_is_lost(rule: Rule) -> None:
    page = render(rule).split()
    for heading in SECTIONS:
        words = rule.section(heading).replace("`", "").split()
        assert all(word in [said.replace("`", "") for said in page] for word in words)


def test_a_limit_that_reads_like_a_word_keeps_its_quotes() -> None:
    doc = "Title.\n\n## What it finds\nMore than `share` of it, as `nan-pulse` does."
    rule = replace(RULES[0], doc=doc)
    assert "More than `share` of it, as nan-pulse does." in render(rule)


def test_every_symptom_has_a_rule() -> None:
    assert {rule.name for rule in RULES} >= SYMPTOMS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_limit_is_explained_with_its_sentence(rule: Rule) -> None:
    docs = limit_docs(rule.limits)
    page = " ".join(render(rule).split())
    assert all(docs.values())
    for name in docs:
        assert f" {name} = " in page


def test_a_rule_typed_in_without_source_has_a_page_all_the_same() -> None:
    namespace: dict[str, type] = {"Base": rules_module.Limits}
    exec("class Limits(Base):\n    pass", namespace)
    rule = Rule("x", ("loss",), lambda *_: [], namespace["Limits"](), make_trace, make_trace, "T.")
    assert "rows = 30" in render(rule)


def test_a_limit_without_a_sentence_inherits_that_of_its_parent() -> None:
    @dataclass(frozen=True)
    class Limits(rules_module.Limits):
        rows: int = 5

    assert limit_docs(Limits())["rows"].startswith("Least rows")


def test_told_apart_items_begin_their_own_lines() -> None:
    (rule,) = (r for r in RULES if r.name == "nan-pulse")
    assert "\n  second-moment-underflow: " in render(rule)
    assert "\n  epsilon-below-precision: " in render(rule)


def test_the_list_names_every_rule_once() -> None:
    text = render_list(RULES)
    for rule in RULES:
        assert sum(line.startswith(f"{rule.name} ") for line in text.splitlines()) == 1
    assert max(map(cell_len, text.splitlines())) <= 80
    assert render_list([])


def test_the_json_list_holds_limits_with_values_and_sentences() -> None:
    loaded = json.loads(as_json(RULES))
    assert [entry["name"] for entry in loaded["rules"]] == [rule.name for rule in RULES]
    for entry in loaded["rules"]:
        assert entry["limits"]["rows"]["doc"]
        assert entry["kind"] in ("cause", "symptom")


def test_the_list_says_which_rules_are_not_measured_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("optdoctor.report.explain.rates_of", lambda name: True)
    assert "all measured." in " ".join(render_list(RULES).split())
    monkeypatch.setattr("optdoctor.report.explain.rates_of", lambda name: name == "nan-pulse")
    told = " ".join(render_list(RULES[:3]).split())
    assert f"not measured yet: {', '.join(rule.name for rule in RULES[:3])}." in told
