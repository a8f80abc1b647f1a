"""Every rule keeps the contract: what a new rule file gets tested for free."""

from collections.abc import Callable
from pathlib import Path

import pytest
from contract import CHECKS, FIELD_WORDS

from optdoctor import rules
from optdoctor.rule import SYMPTOMS, Rule
from optdoctor.rules import RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_rule_keeps_the_contract(check: Callable[[Rule], None], rule: Rule) -> None:
    check(rule)


def test_the_registry_holds_one_rule_per_file() -> None:
    files = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__"}
    assert {rule.name.replace("-", "_") for rule in RULES} == files
    assert len(RULES) == len(files)


def test_every_symptom_has_a_practitioners_word() -> None:
    assert FIELD_WORDS.keys() == SYMPTOMS
