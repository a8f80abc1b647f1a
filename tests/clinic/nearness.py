"""How near healthy families come to each limit, and whether limits set on some hold on another.

A rule is asked about a healthy run with one of its limits tightened, by steps, until it warns. How
far a limit can be tightened before the first run of a family is called sick is that family's
distance. The prediction rule sets a limit `MARGIN` times as wide as the nearest family: here it
does so without one family, and that family's runs are judged by the limit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from judge import Judged, traces_of

from optdoctor.attribution import is_spared
from optdoctor.engine import examine
from optdoctor.findings import Severity, Status
from optdoctor.rule import Rule
from optdoctor.rules import RULES
from optdoctor.trace import Trace

MARGIN = 1.5
"""Of the prediction rule."""
IN_STEPS, STEPS = 2, 12
"""Of the margin, and in all; who warns at none is far."""
STEP = MARGIN ** (1 / IN_STEPS)
FAR = STEPS + 1
FEWEST = 10
"""Families that a limit is set on."""


@dataclass(frozen=True)
class Nearness:
    """Of one limit."""

    rule: str
    limit: str
    value: float
    families: Mapping[str, Mapping[int, int]]
    """{family: {number of a healthy run: its distance in steps}}, of runs on which the rule looked.
    """

    @property
    def distances(self) -> dict[str, int]:
        """{family: that of its nearest run}, nearest first."""
        least = {name: min(runs.values()) for name, runs in self.families.items()}
        return dict(sorted(least.items(), key=lambda pair: pair[1]))

    def beyond(self, family: str) -> set[int]:
        """The family's runs that a limit set on the other families calls sick."""
        others = [d for name, d in self.distances.items() if name != family]
        limit = min(min(others), STEPS) - IN_STEPS
        return {run for run, distance in self.families[family].items() if distance <= limit}


def distances(run: Judged) -> dict[tuple[str, str], int]:
    """{(rule, limit): steps of tightening after which the rule warns of this run}."""
    traces = traces_of(run.job)
    found = {}
    for rule in RULES:
        seen = [trace for trace in traces if _looks(rule, trace)]
        for name, _ in limits_of(rule) if seen else ():
            found[rule.name, name] = min(_distance(rule, name, trace) for trace in seen)
    return found


def limits_of(rule: Rule) -> Iterator[tuple[str, float]]:
    """Those that a measured number is compared with; counts of samples are none."""
    for field in fields(rule.limits):
        value = getattr(rule.limits, field.name)
        if isinstance(value, float) and value > 0:
            yield field.name, value


def collected(
    runs: Sequence[Judged], several: Sequence[Mapping[tuple[str, str], int]]
) -> list[Nearness]:
    """One for each limit of which enough families have runs on which its rule looked."""
    found = []
    for rule in RULES:
        for name, value in limits_of(rule):
            families: dict[str, dict[int, int]] = {}
            for i, (run, told) in enumerate(zip(runs, several, strict=True)):
                if (rule.name, name) in told:
                    families.setdefault(run.job.setup.family, {})[i] = told[rule.name, name]
            if len(families) >= FEWEST:
                found.append(Nearness(rule.name, name, value, families))
    return found


def _looks(rule: Rule, trace: Trace) -> bool:
    seen = Status.CLEAR, Status.FOUND
    return not is_spared(rule, trace) and examine(rule, trace).status in seen


def _distance(rule: Rule, name: str, trace: Trace) -> int:
    """The lesser one of both ways: which of them is tighter is the rule's own matter."""
    return min(_first(rule, name, trace, way) for way in (1, -1))


def _first(rule: Rule, name: str, trace: Trace, way: int) -> int:
    """By bisection: a rule that warns by a limit is taken to warn by every tighter one."""
    value = getattr(rule.limits, name)

    def warns(steps: int) -> bool:
        tightened = replace(rule.limits, **{name: value * STEP ** (way * steps)})
        found = examine(replace(rule, limits=tightened), trace).findings
        return any(finding.severity != Severity.NOTE for finding in found)

    if not warns(STEPS):
        return FAR
    low, high = 0, STEPS
    while low < high:
        middle = (low + high) // 2
        if warns(middle):
            high = middle
        else:
            low = middle + 1
    return low


def page(found: Sequence[Nearness], runs: int) -> str:
    """docs/validation-of-limits.md."""
    near = [one for one in found if min(one.distances.values()) < FAR]
    beyond = {run for one in near for family in one.families for run in one.beyond(family)}
    lines = [
        "# How near healthy runs come to each limit\n",
        "Made by `python -m tests.clinic nearness` from recorded trainings; not written by hand.\n",
        f"{runs} healthy runs of the open half. Each limit was tightened until its rule warned:"
        " `nearest` and `second` are the two families whose runs were called sick first, and by"
        f" what factor the limit was tighter then. {len(found) - len(near)} of {len(found)} limits"
        f" are not below: tightened {STEP**STEPS:.0f} times in either direction they alarm on"
        " no healthy run.\n",
        f"`beyond` leaves one family out at a time: how many of its runs a limit calls sick that is"
        f" {MARGIN:g} times as wide as the nearest of the other families. By all limits together"
        f" these are {len(beyond)} of {runs} runs. It is a bound: most limits here are wider than"
        " that, for their value comes from what is physically possible.\n",
        "| rule | limit | value | families | nearest | second | beyond |",
        "|---|---|---|---|---|---|---|",
        *map(_row, sorted(near, key=lambda one: min(one.distances.values()))),
    ]
    return "\n".join(lines) + "\n"


def _row(one: Nearness) -> str:
    nearest, second, *_ = (
        f"{name} {STEP**distance:.3g}" if distance < FAR else "none"
        for name, distance in one.distances.items()
    )
    beyond = [(name, one.beyond(name)) for name in one.distances]
    said = ", ".join(
        f"{name} {len(sick)} of {len(one.families[name])}" for name, sick in beyond if sick
    )
    cells = one.rule, one.limit, f"{one.value:g}", f"{len(one.families)}", nearest, second, said
    return f"| {' | '.join(cells)} |"
