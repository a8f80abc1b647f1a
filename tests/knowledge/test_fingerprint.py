"""What a measured figure hangs on: the code that decides, and nothing else."""

import pytest

from optdoctor.knowledge.fingerprint import fingerprint, meaning
from optdoctor.knowledge.rates import rates_of
from optdoctor.rules import RULES

SOURCE = '''"""A page."""

LIMIT = 0.5  # a comment


def check(trace):
    """What it does."""
    return "# no comment" if trace > LIMIT else """no docstring"""
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("A page", "Another page"),
        ("a comment", "no comment"),
        ("\n\n\n", "\n\n"),
        ("What it", "It"),
    ],
)
def test_words_about_the_code_are_no_part_of_it(old: str, new: str) -> None:
    assert old in SOURCE
    assert meaning(SOURCE.replace(old, new)) == meaning(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("0.5", "0.6"), ("# no c", "# c"), ("no d", "d"), (">", "<")],
)
def test_what_decides_or_is_said_is_part_of_it(old: str, new: str) -> None:
    assert old in SOURCE
    assert meaning(SOURCE.replace(old, new)) != meaning(SOURCE)


def test_every_rule_has_a_fingerprint_of_its_own() -> None:
    assert len({fingerprint(rule.name) for rule in RULES}) == len(RULES)


def test_a_figure_of_another_state_of_the_rule_is_not_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "divergence"
    assert rates_of(name)
    rates_of.cache_clear()
    monkeypatch.setattr("optdoctor.knowledge.rates.fingerprint", lambda rule: "another")
    assert rates_of(name) == ()
    rates_of.cache_clear()
