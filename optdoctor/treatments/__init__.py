"""The registry of treatments that act on a training: each is one file that holds an
`INTERVENTION`; other files of this folder are what they share."""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from optdoctor.errors import did_you_mean
from optdoctor.treatments.intervention import Intervention, Refused

__all__ = ["Intervention", "Refused", "interventions", "make"]


@cache
def interventions() -> Mapping[str, type[Intervention]]:
    """{name: class}, by name."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    found = [m.INTERVENTION for m in modules if hasattr(m, "INTERVENTION")]
    return MappingProxyType({one.name: one for one in found})


def make(asked: "str | Intervention") -> Intervention:
    """The treatment of that name with its defaults; one that is made already is itself.

    Raises:
        ValueError: there is none of that name.
    """
    if isinstance(asked, Intervention):
        return asked
    known = interventions()
    if asked not in known:
        remedy = did_you_mean(str(asked), known, f"there are {', '.join(known)}")
        raise ValueError(f"no treatment is named {asked!r}: {remedy}")
    return known[asked]()
