"""The page that shows how a rule is added is tried as it stands."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import contract
import pytest

from optdoctor import rules
from optdoctor.rule import SECTIONS, Rule

TEXT = (Path(__file__).parent.parent / "docs" / "adding-a-rule.md").read_text("utf-8")
CODE, TESTS = re.findall(r"```python\n(.*?)```", TEXT, re.S)
NAME = "optdoctor.rules.loss_negative"


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rule]:
    """The rule of the page, as its folder would hold it."""
    (tmp_path / "loss_negative.py").write_text(CODE, "utf-8")
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    yield importlib.import_module(NAME).RULE
    sys.modules.pop(NAME)
    vars(rules).pop("loss_negative", None)


@pytest.fixture
def its_tests(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("test_loss_negative")
    exec(TESTS, vars(module))
    monkeypatch.setattr(contract, "own_tests", lambda rule: module)
    return module


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.usefixtures("its_tests")
def test_the_rule_on_the_page_keeps_the_contract(check: Callable[[Rule], None], rule: Rule) -> None:
    check(rule)


def test_its_tests_pass(its_tests: ModuleType) -> None:
    its_tests.test_a_loss_that_dips_below_0_at_times_is_silent()


def test_the_page_counts_the_promises_and_the_sections() -> None:
    assert f"the {len(contract.CHECKS)} promises" in TEXT
    assert [name for name in SECTIONS if f"## {name}" not in CODE] == []


def test_without_the_file_there_is_no_such_rule() -> None:
    assert "loss-negative" not in {rule.name for rule in rules.load()}
