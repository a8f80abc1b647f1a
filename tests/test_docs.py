"""The pages under docs/ that a script writes say what the source says."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from optdoctor.channels import CHANNELS
from optdoctor.rule import SYMPTOMS
from optdoctor.rules import RULES

ROOT = Path(__file__).parent.parent


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_docs", ROOT / "scripts/write_docs.py")
    assert spec and spec.loader  # noqa: PT018 (for the type checker)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES: dict[str, str] = script().pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_its_source_says(name: str) -> None:
    assert (ROOT / "docs" / name).read_text("utf-8") == PAGES[name], "run `make docs`"


def test_no_page_is_left_of_a_rule_that_is_gone() -> None:
    there = {f"rules/{path.name}" for path in (ROOT / "docs" / "rules").glob("*.md")}
    assert there == {name for name in PAGES if name.startswith("rules/")}


def test_every_rule_and_channel_has_its_place() -> None:
    index, channels = PAGES["rules/README.md"], PAGES["channels.md"]
    assert re.findall(r"^\| \[(\S+)\]", index, re.M) == [rule.name for rule in RULES]
    assert sorted(re.findall(r"^\| `(\S+)` \|", channels, re.M)) == sorted(CHANNELS)


def test_the_readme_has_one_row_for_each_rule() -> None:
    tables = (ROOT / "README.md").read_text("utf-8").split("|---|---|")[1:4]
    curves, before, running = (re.findall(r"^\| `([a-z0-9-]+)` \|", t, re.M) for t in tables)
    assert sorted(curves + before + running) == [rule.name for rule in RULES]
    assert set(curves) == SYMPTOMS
    assert set(before) == {rule.name for rule in RULES if rule.static}
