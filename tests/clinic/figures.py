"""Counts of what the rules said of the clinic's runs, with intervals by configuration."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from judge import HARM, Judged

from optdoctor.knowledge.rates import Rate
from optdoctor.rule import SYMPTOMS
from optdoctor.rules import RULES

SANE = 0.75
"""Rate of the best fall of the held-out loss, of the family at that size, below which a drawn run
did not learn what others learnt: it is not counted as healthy."""


def share(runs: Sequence[Judged], holds: Callable[[Judged], bool]) -> Rate:
    """The runs of which it holds; those that differ in their seed only count as one case."""
    times = sum(holds(run) for run in runs)
    return Rate(times, len(runs), len({run.job.configuration for run in runs}))


def told(rate: Rate) -> str:
    """The counts, the share and its interval by configuration."""
    if not rate.of:
        return "no runs"
    low, high = rate.interval
    percent = f"{100 * rate.times / rate.of:.1f} % ({100 * low:.1f}-{100 * high:.1f} %)"
    return f"{rate.times} of {rate.of} = {percent}"


@dataclass(frozen=True)
class Figures:
    """What was counted."""

    healthy: Rate
    """Alarms of warn or above from any rule, on healthy configurations that were drawn."""
    mechanisms: Rate
    """The same of static rules and counters."""
    noted: Rate
    """Healthy runs of which anything was said, notes included."""
    twins: Rate
    """The same from any rule on healthy twins of the faults, which share their setups."""
    decoys: Rate
    told: Rate
    """Harmed runs of which anything was said, notes included."""
    found: Rate
    """Harmed runs that were called sick."""
    first: Rate
    """Harmed runs whose first answer was right."""
    first_three: Rate
    wrong: Rate
    """Harmed runs whose first answer was a cause, no symptom, and a wrong one."""
    static_at_start: Rate
    """Harmed runs of static faults that were called sick before step 1."""
    lead: float | None
    """Median steps by which slow faults were found before the loss showed them."""
    alarms: dict[str, Rate] = field(default_factory=dict)
    """{rule: healthy runs on which it gave a warning or worse}."""
    named: dict[str, Rate] = field(default_factory=dict)
    """{rule: harmed runs for which it is a right answer, in which it was found}."""
    by_fault: dict[str, str] = field(default_factory=dict)
    by_family: dict[str, tuple[Rate, Rate, Rate]] = field(default_factory=dict)
    """{family: alarms on healthy runs, harmed runs found, first answers right}."""
    crashed: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"false alarms on drawn healthy runs: {told(self.healthy)}",
            f"  of static rules and counters: {told(self.mechanisms)}",
            f"  notes counted too: {told(self.noted)}",
            f"false alarms on healthy twins: {told(self.twins)}",
            f"decoys called sick: {told(self.decoys)}",
            f"harmed runs with any finding: {told(self.told)}",
            f"harmed runs called sick: {told(self.found)}",
            f"  first answer right: {told(self.first)}",
            f"  among the first three: {told(self.first_three)}",
            f"  first answer a wrong cause: {told(self.wrong)}",
            f"static faults found before step 1: {told(self.static_at_start)}",
            f"median lead of slow faults: {self.lead}",
            *(f"ALARM {rule}: {told(s)}" for rule, s in self.alarms.items() if s.times),
            *(f"named {rule}: {told(s)}" for rule, s in self.named.items()),
            *(f"fault {name}: {said}" for name, said in self.by_fault.items()),
            *(
                f"family {n}: {' | '.join(map(told, several))}"
                for n, several in self.by_family.items()
            ),
            *(f"CRASHED {rule}: {n} times" for rule, n in self.crashed.items()),
        ]
        return "\n".join(lines)


def counted(runs: Sequence[Judged], families: Iterable[str]) -> Figures:
    """The figures of these runs, and those of each of the families."""
    healthy = sane([r for r in runs if r.job.drawn])
    twins = [r for r in runs if not r.job.fault and not r.job.drawn]
    of_faults = [r for r in runs if r.fault is not None and not r.fault.decoy]
    decoys = [r for r in runs if r.fault is not None and r.fault.decoy and not r.harmed]
    harmed = [r for r in of_faults if r.harmed]
    counters = {rule.name for rule in RULES if rule.mechanism or rule.static}
    at_start = [r for r in harmed if r.fault and r.fault.static]
    slow = [r for r in harmed if r.fault and r.fault.slow and None not in (r.detected, r.shown)]
    leads = [(r.shown or 0) - (r.detected or 0) for r in slow]
    return Figures(
        healthy=share(healthy, lambda r: bool(r.alarms)),
        mechanisms=share(healthy, lambda r: bool(counters & {*r.alarms})),
        noted=share(healthy, lambda r: bool(r.found)),
        twins=share(twins, lambda r: bool(r.alarms)),
        decoys=share(decoys, lambda r: bool(r.alarms)),
        told=share(harmed, lambda r: bool(r.found)),
        found=share(harmed, lambda r: r.sick),
        first=share(harmed, lambda r: r.named(1)),
        first_three=share(harmed, lambda r: r.named(3)),
        wrong=share(harmed, lambda r: not r.named(1) and bool({*r.ranked[:1]} - SYMPTOMS)),
        static_at_start=share(at_start, lambda r: any(first == 0 for _, _, first in r.found)),
        lead=float(np.median(leads)) if leads else None,
        alarms={rule.name: share(healthy, _alarms(rule.name)) for rule in RULES},
        named={n: s for n, s in ((r.name, _named(harmed, r.name)) for r in RULES) if s.of},
        by_fault=dict(_by_fault(of_faults + [r for r in runs if r.fault and r.fault.decoy])),
        by_family={name: _of_family(healthy, harmed, name) for name in families},
        crashed=dict(Counter(name for run in runs for name in run.crashed)),
    )


def sane(drawn: Sequence[Judged]) -> list[Judged]:
    """The drawn runs that learnt, and kept what they learnt to the end: a configuration that nobody
    made sick may overfit or diverge all the same, and whoever says so is right."""
    falls: dict[tuple[str, str], float] = defaultdict(float)
    for run in drawn:
        key = run.job.setup.family, run.job.setup.size
        falls[key] = max(falls[key], run.result.first - run.result.final)
    return [
        run
        for run in drawn
        if run.result.first - run.result.final
        >= SANE * falls[run.job.setup.family, run.job.setup.size]
        and not _lost(run)
    ]


def _lost(run: Judged) -> bool:
    """Whether it ended worse than it once was, by the measure that harm has."""
    worse = run.result.final - run.best
    return worse >= 0.01 * abs(run.result.first) and worse >= HARM * abs(run.best)


def _alarms(rule: str) -> Callable[[Judged], bool]:
    return lambda run: rule in run.alarms


def _named(harmed: Sequence[Judged], rule: str) -> Rate:
    own = [r for r in harmed if r.fault and rule in r.fault.rules[:1]]
    return share(own, lambda run: any(name == rule for name, _, _ in run.found))


def _by_fault(runs: Sequence[Judged]) -> Iterable[tuple[str, str]]:
    names = dict.fromkeys(run.job.fault for run in runs)
    for name in names:
        for dose in sorted({r.job.dose for r in runs if r.job.fault == name}):
            own = [r for r in runs if r.job.fault == name and r.job.dose == dose]
            harmed = [r for r in own if r.harmed]
            answers = Counter(r.ranked[0] if r.ranked else "nothing" for r in own)
            first = sum(r.named(1) for r in harmed)
            yield (
                f"{name} dose {dose}",
                f"{len(own)} runs, probe true in {sum(r.result.probe for r in own)}, harmed"
                f" {len(harmed)}, of these sick {sum(r.sick for r in harmed)}, first {first},"
                f" first three {sum(r.named(3) for r in harmed)}; first answers "
                + ", ".join(f"{rule} {n}" for rule, n in answers.most_common(4)),
            )


def _of_family(
    healthy: Sequence[Judged], harmed: Sequence[Judged], name: str
) -> tuple[Rate, Rate, Rate]:
    quiet = [r for r in healthy if r.job.setup.family == name]
    sick = [r for r in harmed if r.job.setup.family == name]
    return (
        share(quiet, lambda r: bool(r.alarms)),
        share(sick, lambda r: r.sick),
        share(sick, lambda r: r.named(1)),
    )
