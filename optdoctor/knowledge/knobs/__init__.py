"""How each framework spells the change of a knob: one file of data per framework.

A file holds `LABEL`, `LOOK_INSIDE`, `TREAT` (a treatment that optdoctor applies, for `{new}`),
`PACKAGES` (names under which it is installed) and `KNOBS`:
{knob: code, or {new value: code}}, in which `{new}` stands for the new value, and `{groups[model]}`
for two groups of parameters: those of one layer, and all others at the rate `lr` as before. Where
the framework spelled it otherwise before some release, `BEFORE` holds {(4, 56): the knobs as they
were}. `..` and `...` stand for what the training already has; code may have several lines.
"""

import importlib
import pkgutil
import re
from collections.abc import Mapping
from functools import cache
from types import ModuleType

from optdoctor.findings import Knob

ANY = "any other value"
"""The key of the code for values that have none of their own."""
PATTERN = "tensor_lr:"
"""A knob that begins so turns the rate of the tensors under the name behind it."""

_GROUPS = (
    '[{{"params": [p for n, p in {model}.named_parameters() if ({layer} in f".{{n}}.") == inside],'
    ' "lr": rate}} for inside, rate in ((True, {new}), (False, lr))]'
)


def spell(
    framework: str | None, changes: Mapping[str, tuple[Knob, Knob]], intervention: str = ""
) -> list[tuple[str, str]]:
    """[(label, code)] for each distinct spelling; in every framework where it is not known. Then
    that of the `intervention` that does it while the run trains, where there is one.

    A knob for which no spelling is known is left out. The spelling is that of the installed
    version; of the newest one known where none is installed.
    """
    lines = [
        (module.LABEL, code)
        for module in _spoken(framework)
        for knob, (_, new) in changes.items()
        if (code := _code(module, knob, new))
    ]
    if intervention:
        own = (module.TREAT.format(new=intervention) for module in _spoken(framework))
        lines += [("optdoctor", code) for code in own]
    return list(dict.fromkeys(lines))


def look_inside(framework: str | None) -> list[tuple[str, str]]:
    """[(label, code)]: the line that adds optdoctor to a training."""
    return [(module.LABEL, module.LOOK_INSIDE) for module in _spoken(framework)]


def _spoken(framework: str | None) -> list[ModuleType]:
    known = frameworks()
    return [known[framework]] if framework in known else list(known.values())


@cache
def frameworks() -> dict[str, ModuleType]:
    """{framework: its module}, plain torch first."""
    names = sorted(
        (m.name for m in pkgutil.iter_modules(__path__)), key=lambda n: (n != "torch", n)
    )
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}


def _code(module: ModuleType, knob: str, new: Knob) -> str | None:
    layer = knob.removeprefix(PATTERN)  # the dots around it keep h.1 apart from h.10
    spelling = _knobs(module).get(PATTERN if layer != knob else knob)
    if isinstance(spelling, Mapping):
        spelling = spelling.get(_key(new), spelling.get(ANY))
    if spelling is None:
        return None
    told = {"new": _literal(new), "layer": _literal(f".{layer}.")}
    groups = {model: _GROUPS.format(model=model, **told) for model in ("model", "self")}
    return str(spelling.format(groups=groups, **told))


def _knobs(module: ModuleType) -> dict[str, str | Mapping[str, str]]:
    """{knob: spelling} for the version that is installed."""
    knobs = dict(module.KNOBS)
    version = next(filter(None, map(installed, module.PACKAGES)), None)
    for end, older in sorted(module.BEFORE.items(), reverse=True) if version else ():
        if version < end:
            knobs |= older
    return knobs


@cache
def installed(package: str) -> tuple[int, ...] | None:
    """(major, minor) of a package, read from its metadata; None where it is not installed."""
    from importlib import metadata  # not before a treatment is spelled: it takes its time

    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _key(new: Knob) -> str:
    return f"{new:g}" if isinstance(new, float) else str(new)


def _literal(value: Knob) -> str:
    """`value` as Python source, 1e-8 rather than 1e-08."""
    return re.sub(r"e([+-])0+(?=\d)", r"e\1", repr(value))
