"""Tells rows of a log from prose: rows repeat their words, and something in them changes."""

from collections.abc import Iterable

from optdoctor.reading.lazy_regex import lazy

_MEMBER = lazy(r'\s*"[^"]*"\s*:|\s*\[\s*(?:\{|$)')
_WORD = lazy(r"[^\W\d_]{2,}")
_SHOWN = 200
"""Characters before a value that are compared."""
_FEW = 3
"""Words with which a row may be the same again and again, as `loss: nan`."""


def is_json(line: str) -> bool:
    """Whether it is a line of a JSON document: a member of an object, or where a list begins."""
    return _MEMBER.match(line) is not None


def alike(rows: Iterable[tuple[str, str]]) -> int:
    """How many rows, (line, its text before the value), are like most others are.

    0 where a sentence is the same each time.
    """
    shapes: dict[tuple[str, ...], list[str]] = {}
    for line, before in rows:
        shapes.setdefault(tuple(_WORD.findall(before[-_SHOWN:].lower())), []).append(line)
    telling = {s: found for s, found in shapes.items() if len(s) <= _FEW or len(set(found)) > 1}
    return max(map(len, telling.values()), default=0)
