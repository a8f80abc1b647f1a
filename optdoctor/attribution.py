"""Tells which finding can be the cause of which, and in what order causes answer for a run.

Two things decide: what a rule says that it can bring about, and what began first. No score is made
up; a rule that looked and found nothing, and one that could not look, are told apart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from optdoctor.channels import channel
from optdoctor.findings import (
    SEVERITIES,
    Cause,
    Differential,
    Finding,
    NotExamined,
    Outcome,
    Severity,
    Status,
    Treatment,
)
from optdoctor.knowledge import settings
from optdoctor.rule import SYMPTOMS, Rule
from optdoctor.trace import Trace

BROKEN = frozenset({"nan-pulse", "nonfinite-gradient"})
"""Symptoms after which a sample shows what they left behind, not what led to them."""
MEMORIES = 5
"""Averages of the momentum, each of 1 / (1 - decay) updates, after which less than 1 % (e^-5) of a
gradient still moves the weights."""
USUAL_DECAY = 0.9
"""Of a momentum that is not known."""

ExplainedBy = Mapping[str, tuple[str, ...]]
"""{rule or symptom: the rules that can bring it about, directly or through others}."""


def explained_by(rules: Iterable[Rule]) -> ExplainedBy:
    """The graph of `Rule.explains`, turned round and closed."""
    direct = {rule.name: set(rule.explains) for rule in rules}

    def reached(name: str, seen: frozenset[str]) -> set[str]:
        below = direct.get(name, set()) - seen
        return below.union(*(reached(n, seen | below) for n in below)) if below else set()

    closure = {name: reached(name, frozenset({name})) for name in direct}
    named = {name for below in closure.values() for name in below}
    return {n: tuple(sorted(c for c, below in closure.items() if n in below)) for n in named}


def raised(
    findings: Iterable[Finding], rules: Mapping[str, Rule], possible: ExplainedBy
) -> list[Finding]:
    """The findings; a note that waited for a symptom of its own is a warning where one is there:
    of a curve or a gradient, or a counter that is a consequence as often as a cause."""
    findings = list(findings)
    shown = (f for f in findings if f.rule in SYMPTOMS or rules[f.rule].symptom_too)
    symptoms = [f for f in shown if _can_cause(f)]

    def seen(finding: Finding) -> Finding:
        if not finding.awaits_symptom or _can_cause(finding):
            return finding
        own = (s for s in symptoms if finding.rule in possible.get(s.rule, ()))
        beside = [s for s in own if finding.steps[0] <= _latest(rules[finding.rule], s, rules)]
        if not beside:
            return finding
        first = min(beside, key=lambda s: (s.steps, s.rule))
        summary = f"{finding.summary[:-1]}; {first.rule} is found from step {first.steps[0]:,} on."
        return replace(finding, severity=Severity.WARN, raised_by=first.rule, summary=summary)

    return [seen(finding) for finding in findings]


def differential(
    finding: Finding,
    possible: ExplainedBy,
    rules: Mapping[str, Rule],
    outcomes: Mapping[str, Outcome],
    trace: Trace,
) -> Differential:
    """What is known of each rule that can bring the finding about."""
    onset = finding.steps[0]
    found, clear, ruled_out, not_examined = [], [], [], []
    for name in possible.get(finding.rule, ()):
        rule, outcome = rules[name], outcomes[name]
        gap = None if rule.static else _unsampled(rule, trace, onset)
        causes = [f for f in outcome.findings if _can_cause(f)]
        before = [
            f
            for f in causes
            if f.steps[0] <= _latest(rule, finding, rules)
            and not (rule.transient and _is_forgotten(f, finding, rules, trace))
        ]
        same_step = bool(before) and all(f.steps[0] == onset for f in before)
        if same_step and {name, finding.rule} <= SYMPTOMS:
            continue  # two faces of one step: neither is known to be the cause of the other
        if before:
            found.append(name)
        elif causes:
            continue  # it began later, or was over long before: neither a cause nor clear
        elif outcome.status is Status.SKIPPED:
            not_examined.append(NotExamined(name, missing=outcome.missing))
        elif outcome.status in (Status.ABSTAINED, Status.CRASHED):
            reason = outcome.reason if outcome.status is Status.ABSTAINED else "the rule crashed"
            not_examined.append(NotExamined(name, reason=reason))
        elif rule.static or is_spared(rule, trace):
            ruled_out.append(name)
        elif gap:
            not_examined.append(NotExamined(name, unsampled=gap))
        else:
            clear.append(name)
    return Differential(tuple(found), tuple(clear), tuple(ruled_out), tuple(not_examined))


def is_spared(rule: Rule, trace: Trace) -> bool:
    """Whether the optimizer lacks what the illness happens in: no channel is needed to tell."""
    return trace.facts.get("optimizer_family") in rule.spares


def without_moot_treatments(finding: Finding, outcomes: Mapping[str, Outcome]) -> Finding:
    """A symptom whose cause is found keeps only what differs and needs no telling apart."""
    if not finding.causes.found:
        return finding
    taken = {
        _key(treatment)
        for name in finding.causes.found
        for cause in outcomes[name].findings
        for treatment in cause.treatments
    }
    kept = tuple(t for t in finding.treatments if t.when != "check" and _key(t) not in taken)
    return replace(finding, treatments=kept)


def causes(findings: Iterable[Finding], rules: Mapping[str, Rule]) -> tuple[Cause, ...]:
    """The found rules that answer for the run, the best answer first.

    What nothing found explains stands first, by its first step, and what a symptom brings about
    last. A counter of a fault stands before what is a consequence as often as a cause, statistics
    and `symptom_too`, and began no earlier, as far as is known.
    """
    findings = list(findings)
    first: dict[str, Finding] = {}
    for finding in sorted(filter(_can_cause, findings), key=lambda f: f.steps):
        if finding.rule not in SYMPTOMS or rules[finding.rule].explains:
            first.setdefault(finding.rule, finding)
    explains = {name: {f.rule for f in findings if name in f.causes.found} for name in first}
    counters = [(f.steps[0], rules[name]) for name, f in first.items() if _is_fault(rules[name])]

    def place(name: str) -> tuple[object, ...]:
        onset, is_counter = first[name].steps[0], _is_fault(rules[name])
        before = [step for step, rule in counters if step <= onset + _late(rule, onset)]
        gravity = max(SEVERITIES.index(f.severity) for f in findings if f.rule == name)
        return (
            name in SYMPTOMS,
            bool(first[name].causes.found),
            onset if is_counter else max([onset, *before]),
            not is_counter,
            onset,
            -gravity,
            not explains[name],
            name,
        )

    return tuple(Cause(name, tuple(sorted(explains[name]))) for name in sorted(first, key=place))


def _can_cause(finding: Finding) -> bool:
    """A note tells of no measured harm: nothing may be blamed on it."""
    return finding.severity is not Severity.NOTE


def _is_fault(rule: Rule) -> bool:
    """Whether what it counts is hardly ever the consequence of another illness."""
    return rule.mechanism and not rule.symptom_too


def _latest(cause: Rule, effect: Finding, rules: Mapping[str, Rule]) -> int:
    """The last step at which the cause may be seen and still have begun before its effect."""
    onset = effect.steps[0]
    late = 0 if effect.rule in BROKEN else _late(cause, onset)
    if rules[effect.rule].onset == "estimated":
        late = max(late, _reach(onset), effect.period)
    return onset + late


def _is_forgotten(cause: Finding, effect: Finding, rules: Mapping[str, Rule], trace: Trace) -> bool:
    """Whether the momentum had lost the cause's last update when the effect began."""
    told = trace.facts.get("momentum", trace.facts.get("beta1"))
    decay = 0.0 if told == 0 else settings.decay(told) or USUAL_DECAY
    memory = round(MEMORIES / (1 - decay))
    onset = effect.steps[0]
    early = max(_reach(onset), effect.period) if rules[effect.rule].onset == "estimated" else 0
    return onset - early > cause.steps[1] + memory


def _late(rule: Rule, onset: int) -> int:
    """Steps after its beginning at which a rule may first see its illness.

    What is measured at some steps only is judged over several samples; the rest is seen in time.
    """
    is_sampled = any(all(channel(n).at_samples for n in names) for names in rule.needed)
    if not is_sampled or rule.name in SYMPTOMS:
        return 0
    return _reach(onset) if _is_fault(rule) else _reach(onset) // 4


def _reach(onset: int) -> int:
    """Steps around `onset` within which two things began at the same time, as far as is known."""
    return max(64, onset // 32)


def _unsampled(rule: Rule, trace: Trace, onset: int) -> tuple[int, int] | None:
    """The gap around `onset` in which the rule had no row to look at, None if it had one."""
    for name in rule.needed_series(trace):
        steps = trace.series[name].steps
        before = steps[steps <= onset]
        if before.size and before[-1] >= onset - _reach(onset):
            continue
        after = steps[steps > onset]
        last = int(before[-1]) if before.size else trace.steps[0]
        return last, int(after[0]) if after.size else onset
    return None


def _key(treatment: Treatment) -> object:
    return tuple(sorted(treatment.changes.items())) or treatment.title
