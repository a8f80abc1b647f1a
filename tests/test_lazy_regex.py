"""Expressions that are compiled when they are first used."""

import re

import pytest

from optdoctor.reading.lazy_regex import lazy


def test_an_expression_is_not_compiled_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(re, "compile", lambda pattern: compiled.append(pattern) or re.Pattern)
    found = lazy(r"a(b)")
    assert compiled == []
    found.search  # noqa: B018
    found.search  # noqa: B018
    assert compiled == [r"a(b)"]


def test_it_does_what_a_compiled_one_does() -> None:
    found, known = lazy(r"(?P<at>\d)(x)?"), re.compile(r"(?P<at>\d)(x)?")
    assert [m.groups() for m in found.finditer("1x2")] == [("1", "x"), ("2", None)]
    assert found.sub("-", "1x2") == known.sub("-", "1x2") == "--"
    assert (found.groups, found.pattern, found.groupindex) == (
        *(known.groups, known.pattern, known.groupindex),
    )
    assert found.match("y") is None
    with pytest.raises(AttributeError):
        found.nothing  # noqa: B018


def test_a_wrong_expression_says_so() -> None:
    with pytest.raises(re.error):
        lazy("(").search("")
