"""How often each rule was right, as counts: `rates.json`, which scripts write from measurements."""

import json
import math
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from optdoctor.knowledge.fingerprint import fingerprint

UNMEASURED = "not measured yet"
NEVER_SICK = "no sick run of this kind was tried"
Z = 1.96
"""Standard normal quantile of a 95 % interval."""


class Rate(NamedTuple):
    """How many of how many."""

    times: int
    of: int
    cases: int = 0
    """Independent ones among them, where several differ in their seed only; 0 where all are."""

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share that stands behind the counts, after Wilson (1927)."""
        cases = self.cases or self.of
        share, width = self.times / self.of, Z**2 / cases
        middle = (share + width / 2) / (1 + width)
        half = Z * math.sqrt((share * (1 - share) + width / 4) / cases) / (1 + width)
        low = 0.0 if self.times == 0 else middle - half
        return low, 1.0 if self.times == self.of else middle + half

    def told(self, what: str) -> str:
        """`6 of 6 sick runs of 2 configurations (95 % interval 34-100 %)`."""
        low, high = (f"{100 * bound:.0f}" for bound in self.interval)
        differ = self.cases and self.cases < self.of
        apart = f" of {self.cases} configuration{'s' * (self.cases != 1)}" if differ else ""
        return f"{self.times} of {self.of} {what}{apart} (95 % interval {low}-{high} %)"


class Measured(NamedTuple):
    """What a rule did on one collection of runs."""

    on: str
    """The collection, as it stands in a sentence: `real logs`."""
    named: Rate | None
    """Runs with the rule's illness that it named; None where the collection has none."""
    alarms: Rate
    """Healthy runs on which it gave a warning or worse."""
    of: str = ""
    """The fingerprint of the rule that was measured."""

    def __str__(self) -> str:
        alarms = f"alarm on {self.alarms.told('healthy runs')}"
        named = f"named in {self.named.told('sick runs')}" if self.named else NEVER_SICK
        return f"{self.on}: {alarms}; {named}"


@cache
def rates_of(rule: str) -> tuple[Measured, ...]:
    """What was measured of this rule as it is today, one entry a collection."""
    if not any(rule in collection["rules"] for collection in _collections()):
        return ()
    today = fingerprint(rule)
    found = []
    for collection in _collections():
        entry = collection["rules"].get(rule)
        if entry is not None and entry["of"] == today:
            named = Rate(*entry["named"]) if entry.get("named") else None
            found.append(Measured(collection["on"], named, Rate(*entry["alarms"]), today))
    return tuple(found)


@cache
def _collections() -> list[dict[str, Any]]:
    text = resources.files("optdoctor.knowledge").joinpath("rates.json").read_text("utf-8")
    collections: list[dict[str, Any]] = json.loads(text)["collections"]
    return collections
