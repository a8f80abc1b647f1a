"""How often each rule was right, as counts: `rates.json`, which scripts write from measurements."""

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import NamedTuple

UNMEASURED = "not measured yet"
Z = 1.96
"""Standard normal quantile of a 95 % interval."""


class Rate(NamedTuple):
    """How many of how many."""

    times: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share that stands behind the counts, after Wilson (1927)."""
        share, width = self.times / self.of, Z**2 / self.of
        middle = (share + width / 2) / (1 + width)
        half = Z * math.sqrt((share * (1 - share) + width / 4) / self.of) / (1 + width)
        low = 0.0 if self.times == 0 else middle - half
        return low, 1.0 if self.times == self.of else middle + half

    def __str__(self) -> str:
        low, high = (f"{100 * bound:.0f}" for bound in self.interval)
        return f"{self.times} of {self.of} (95 % interval {low}-{high} %)"


class Measured(NamedTuple):
    """What a rule did on one collection of runs that none of its limits was set on."""

    on: str
    """The collection, as it stands in a sentence: `real logs`."""
    named: Rate | None
    """Runs with the rule's illness that it named; None where the collection has none."""
    alarms: Rate
    """Healthy runs on which it gave a warning or worse."""

    def __str__(self) -> str:
        alarms = f"alarm on {self.alarms} healthy ones"
        named = f"named in {self.named} sick ones" if self.named else "none of them is sick so"
        return f"{self.on}: {alarms}; {named}"


@cache
def rates() -> Mapping[str, tuple[Measured, ...]]:
    """{rule: what was measured, one entry a collection}; no entry where nothing was."""
    text = resources.files("optdoctor.knowledge").joinpath("rates.json").read_text("utf-8")
    found: dict[str, tuple[Measured, ...]] = {}
    for collection in json.loads(text)["collections"]:
        for name, entry in collection["rules"].items():
            named = Rate(*entry["named"]) if entry.get("named") else None
            measured = Measured(collection["on"], named, Rate(*entry["alarms"]))
            found[name] = (*found.get(name, ()), measured)
    return MappingProxyType(found)
