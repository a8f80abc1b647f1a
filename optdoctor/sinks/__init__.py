"""The registry of sinks: where vitals and findings go while training. Adding one is adding a file.

A sink module defines `SINK`, a function that makes one from a `Place`.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from optdoctor.findings import Diagnosis, Notice
from optdoctor.trace import Trace


class Sink(Protocol):
    """One destination. After an exception from `tell` it is told nothing more until `close`."""

    def tell(self, notices: list[Notice]) -> None:
        """Takes what appeared, worsened or ended."""

    def close(self, diagnosis: Diagnosis, trace: Trace, cost: str) -> None:
        """Takes the last diagnosis, also after a `tell` that raised."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sink may write."""

    out: Path | None


@cache
def sinks() -> dict[str, Callable[[Place], Sink]]:
    """{name: maker} of all sinks of this folder."""
    modules = {
        m.name: importlib.import_module(f"{__name__}.{m.name}")
        for m in pkgutil.iter_modules(__path__)
    }
    return {name: module.SINK for name, module in modules.items() if hasattr(module, "SINK")}


def make(name: str, place: Place) -> Sink:
    """The sink of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in sinks():
        raise ValueError(f"no sink is named {name!r}; known: {', '.join(sinks())}")
    return sinks()[name](place)
