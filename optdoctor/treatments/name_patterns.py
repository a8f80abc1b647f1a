"""Parameters chosen by patterns of their names, and patterns that choose nothing refused."""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import nn

from optdoctor.errors import did_you_mean
from optdoctor.knowledge.layers import clean

Pattern = str | re.Pattern[str]
"""A str is a name or has wildcards, as `*.attn.*`, in which * stands for dots too; what is compiled
is searched for."""
SHOWN = 6
"""Modules that a refusal names where none is near."""


def names_of(model: nn.Module) -> dict[int, list[str]]:
    """{id of a parameter: its names}: several where it is tied; without the marks of wrappers."""
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        plain = clean(name)
        inner = plain.removeprefix("module.")  # of DistributedDataParallel, which users leave out
        found.setdefault(id(parameter), []).extend(dict.fromkeys((plain, inner)))
    return found


def matches(pattern: Pattern, names: Iterable[str]) -> bool:
    """Whether it is a name of this parameter or of a module that it is in."""
    if isinstance(pattern, re.Pattern):
        return any(pattern.search(name) for name in names)
    return any(fnmatchcase(path, pattern) for name in names for path in _paths(name))


def _paths(name: str) -> list[str]:
    """ "a", "a.b" and "a.b.weight" of "a.b.weight"."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts) + 1)]


def chosen(pattern: Pattern, names: Mapping[int, list[str]]) -> set[int]:
    """Ids of the parameters that it matches.

    Raises:
        ValueError: none; with the names that are near.
    """
    found = {key for key, several in names.items() if matches(pattern, several)}
    if found:
        return found
    shown = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    paths = dict.fromkeys(p for several in names.values() for name in several for p in _paths(name))
    modules = list(paths)[:SHOWN]
    otherwise = f"there are {', '.join(modules)}{' ..' if len(paths) > SHOWN else ''}"
    near = did_you_mean(str(shown).strip("*.^$"), paths, otherwise)
    raise ValueError(f"no parameter or module is named {shown!r}: {near}")
