"""How each framework spells the change of a knob: one file of data per framework."""

import importlib
import pkgutil
import re
from collections.abc import Mapping
from functools import cache
from types import ModuleType

from optdoctor.findings import Knob

FALLBACK = {"lightning": "torch"}
"""Frameworks without a file of their own whose users write plain optimizers."""


def spell(framework: str | None, changes: Mapping[str, tuple[Knob, Knob]]) -> list[tuple[str, str]]:
    """[(label, code)] for each distinct spelling; in every framework where it is not known.

    A knob for which no spelling is known is left out.
    """
    lines = [
        (module.LABEL, code)
        for module in _spoken(framework)
        for knob, (_, new) in changes.items()
        if (code := _code(module.KNOBS.get(knob), new))
    ]
    return list(dict.fromkeys(lines))


def look_inside(framework: str | None) -> list[tuple[str, str]]:
    """[(label, code)]: the line that adds optdoctor to a training."""
    return [(module.LABEL, module.LOOK_INSIDE) for module in _spoken(framework)]


def _spoken(framework: str | None) -> list[ModuleType]:
    known = frameworks()
    name = FALLBACK.get(framework or "", framework or "")
    return [known[name]] if name in known else list(known.values())


@cache
def frameworks() -> dict[str, ModuleType]:
    """{framework: its module}, plain torch first."""
    names = sorted(
        (m.name for m in pkgutil.iter_modules(__path__)), key=lambda n: (n != "torch", n)
    )
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}


def _code(spelling: str | Mapping[str, str] | None, new: Knob) -> str | None:
    if spelling is None:
        return None
    if isinstance(spelling, str):
        return spelling.format(new=_literal(new))
    return spelling.get(str(new))


def _literal(value: Knob) -> str:
    """`value` as Python source, 1e-8 rather than 1e-08."""
    return re.sub(r"e([+-])0+(?=\d)", r"e\1", repr(value))
