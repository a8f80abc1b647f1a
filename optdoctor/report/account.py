"""What a report with room says of one run, in words; the page and the Markdown only lay it out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optdoctor.channels import CHANNELS, Axis, channel
from optdoctor.findings import (
    Basis,
    Diagnosis,
    Evidence,
    Finding,
    Knob,
    NotExamined,
    Safety,
    Severity,
    Status,
    Treatment,
    When,
)
from optdoctor.knowledge.knobs import look_inside, spell
from optdoctor.report import footer, slots
from optdoctor.report.recording import Record, to_record
from optdoctor.report.verdict import sentences
from optdoctor.report.wording import COUNTED, number, plain, prose, quantity, sentence
from optdoctor.rules import RULES
from optdoctor.trace import Trace

WHEN: Mapping[When, str] = {
    "now": "in this run",
    "next": "with a restart",
    "check": "an experiment that tells causes apart",
}
SAFETY: Mapping[Safety, str] = {
    "safe": "safe",
    "risky": "risky",
    "manual": "manual",
}
BASIS: Mapping[Basis, str] = {
    "measured": "measured",
    "literature": "from the literature",
    "heuristic": "heuristic, not measured",
}
_NOTES = frozenset({"crashed", "doctor", "note", "treated"})  # labels of the terminal's foot


@dataclass(frozen=True, slots=True)
class Measured:
    """A number beside its limit."""

    what: str
    value: str
    limit: str
    """`at most 3 %` where the number lies above it, `at least` where below: what would be well."""
    channel: str


@dataclass(frozen=True, slots=True)
class Told:
    """One finding: what, where, since, why, how sure; "" where a slot has nothing to say."""

    number: int
    rule: str
    severity: str
    heading: str
    span: str
    explained_by: tuple[int, ...]
    cause_of: tuple[int, ...]
    what: str
    where: str
    since: str
    evidence: tuple[Measured, ...]
    sure: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class Possible:
    """A rule that could explain findings, and what is known of it."""

    rule: str
    result: str
    seen: str
    explains: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Remedy:
    """A treatment, once, with the findings that ask for it."""

    title: str
    treatment: Treatment
    code: tuple[tuple[str, str], ...]
    changes: tuple[tuple[str, str, str], ...]
    """(knob, old value, new value)."""
    of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Account:
    """All sections of one run's report, best first."""

    word: str
    headline: str
    lead: tuple[str, ...]
    findings: tuple[Told, ...]
    possible: tuple[Possible, ...]
    remedies: tuple[Remedy, ...]
    silent: tuple[str, ...]
    """Rules that looked, found nothing, and are not in `possible`."""
    unexamined: tuple[Possible, ...]
    """Rules that could not look and are not in `possible`."""
    missing: tuple[tuple[str, str, str], ...]
    """(channel, what it is, code that records it or "") of what rules were not examined for."""
    record: tuple[Record, ...]
    """What to log next time, so that the causes that nobody could examine can be told apart."""
    ways: tuple[tuple[str, str], ...]
    """(label, code) of how to look inside the training; empty where that was done."""
    notes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    channels: tuple[tuple[str, str, str, str], ...]
    """(name, unit, recorded rows, rows not finite) of what was measured."""
    events: tuple[tuple[int, str, str], ...]
    cost: str


def account(diagnosis: Diagnosis, trace: Trace, cost: str | None = None) -> Account:
    """The report of one run; `cost` is what only the caller knows."""
    findings = slots.ordered(diagnosis)
    headline, lead = _opening(diagnosis, trace, findings)
    missing = _missing(diagnosis)
    framework = trace.facts.get("framework")
    inside = slots.is_log(trace) and any(_axis(n) is not Axis.STEP for n in missing)
    foot = footer.rows(diagnosis, trace, in_full=0, width=1000, detail=slots.WHOLE)
    possible = tuple(_possible(findings, trace))
    named = {row.rule for row in possible}
    return Account(
        word=diagnosis.verdict.upper(),
        headline=headline.rstrip("."),
        lead=tuple(lead),
        findings=tuple(_told(i, findings, trace) for i in range(len(findings))),
        possible=possible,
        remedies=tuple(_remedies(findings, trace)),
        silent=tuple(n for n in diagnosis.with_status(Status.CLEAR) if n not in named),
        unexamined=tuple(r for r in _unexamined(diagnosis) if r.rule not in named),
        missing=tuple((name, channel(name).doc, _recorded_by(name, trace)) for name in missing),
        record=to_record(diagnosis, trace),
        ways=tuple(look_inside(str(framework) if framework else None)) if inside else (),
        notes=tuple(
            "treated: " * (label == "treated") + " ".join(lines)
            for label, lines in foot
            if label in _NOTES
        ),
        facts=tuple(_facts(trace)),
        channels=tuple(_channels(trace)),
        events=tuple((e.step, e.kind, _event(e.text, e.old, e.new)) for e in trace.events),
        cost=prose(cost or ""),
    )


def _opening(diagnosis: Diagnosis, trace: Trace, findings: list[Finding]) -> tuple[str, list[str]]:
    """(the sentence of the verdict, up to three more: cause, why, what to do)."""
    quoted, said = sentences(diagnosis, trace, findings)
    if not quoted:
        first, stop, rest = said[0].partition(". ")
        return (f"{first}.", [rest]) if stop else (said[0], [])
    lead = said[1:]
    root = quoted[-1]
    if len(quoted) > 1 and len(root.evidence) > 1:
        why = slots.worded(sentence(root.evidence[1]), trace)
        lead.append(f"{why[0].upper()}{why[1:]}.")
    advised = [treatment for _, treatment in _advised(findings)]
    # One cure for each of the possible causes, where there are several; else the first advice.
    cures = max(sum(_is_root(f, findings) and bool(slots.treatments(f)) for f in findings), 1)
    titles = dict.fromkeys(slots.worded(t.title, trace) for t in advised[:cures])
    if titles:
        lead.append(f"What to do: {'. Or: '.join(titles)}.")
    return said[0], lead


def _is_root(finding: Finding, findings: Sequence[Finding]) -> bool:
    """Whether it explains another and nothing explains it."""
    explains = any(finding.rule in other.causes.found for other in findings)
    return explains and not finding.causes.found


def _advised(findings: Sequence[Finding]) -> list[tuple[int, Treatment]]:
    """[(number of a finding, treatment)] in the order to try them.

    First one cure for each cause that was found, then its others, then what stands for itself, and
    last what eases a symptom of them; a note, of no measured harm, comes after all.
    """
    ranked = []
    for number_, finding in enumerate(findings, 1):
        root = _is_root(finding, findings)
        for place, treatment in enumerate(slots.treatments(finding)):
            group = 0 if root else 2 if finding.causes.found else 1
            group = 3 if finding.severity is Severity.NOTE else group
            later = place > 0 if root else False
            ranked.append(((group, later, number_, place), number_, treatment))
    ranked.sort(key=lambda row: row[0])
    return [(number_, treatment) for _, number_, treatment in ranked]


def _told(position: int, findings: list[Finding], trace: Trace) -> Told:
    finding = findings[position]
    numbered = list(enumerate(findings, 1))
    titles = {rule.name: rule.title for rule in RULES}
    title = prose(titles.get(finding.rule) or finding.rule.replace("-", " ").capitalize())
    return Told(
        number=position + 1,
        rule=finding.rule,
        severity=str(finding.severity),
        heading=title.rstrip("."),
        span=slots.span(finding, trace),
        explained_by=tuple(i for i, f in numbered if f.rule in finding.causes.found),
        cause_of=tuple(i for i, f in numbered if finding.rule in f.causes.found),
        what=slots.worded(finding.summary, trace),
        where=slots.where(finding, trace),
        since=slots.since(finding, trace),
        evidence=tuple(_measured(row, trace) for row in finding.evidence),
        sure=slots.sure(finding),
        finding=finding,
    )


def _measured(row: Evidence, trace: Trace) -> Measured:
    unit = "1" if row.unit in COUNTED else row.unit
    what = row.what.rstrip(" .")
    if row.unit in COUNTED and what.startswith("of "):
        what = f"{number(row.observed)} {what}"
    in_percent = unit in ("%", "share")
    side = "at most " if row.observed > row.limit else "at least "
    side = side if row.observed != row.limit else ""
    return Measured(
        what=slots.worded(what, trace),
        value=quantity(row.observed, unit),
        limit=side + quantity(row.limit, unit if in_percent else "1"),
        channel=row.channel,
    )


def _possible(findings: list[Finding], trace: Trace) -> Iterable[Possible]:
    """What could explain the findings: found, ruled out, clear, not examined."""
    rows: dict[tuple[str, str, str], list[int]] = {}
    by_rule = {finding.rule: i for i, finding in reversed(list(enumerate(findings, 1)))}
    for position, finding in enumerate(findings, 1):
        causes = finding.causes
        later = slots.found_elsewhere(finding, findings, trace)
        found = [(name, "found", _seen(name, by_rule, findings, trace)) for name in causes.found]
        other = [(n, "not its cause", where) for n, where in later.items()]
        excluded = [(n, "ruled out", "the facts of the run exclude it") for n in causes.ruled_out]
        clear = [(n, "clear", "it looked and found nothing") for n in causes.clear]
        silent = [row for row in (*excluded, *clear) if row[0] not in later]
        unseen = [(e.rule, "not examined", slots.lack(e)) for e in causes.not_examined]
        for row in (*found, *other, *silent, *unseen):
            rows.setdefault(row, []).append(position)
    results = ("found", "not its cause", "ruled out", "clear", "not examined")
    for row in sorted(rows, key=lambda r: results.index(r[1])):
        yield Possible(*row, explains=tuple(rows[row]))


def _seen(rule: str, by_rule: Mapping[str, int], findings: list[Finding], trace: Trace) -> str:
    if rule not in by_rule:
        return ""
    number = by_rule[rule]
    return f"finding {number}: {slots.worded(findings[number - 1].summary, trace)}"


def _remedies(findings: list[Finding], trace: Trace) -> Iterable[Remedy]:
    """The treatments, those of the causes first; the same code is the same treatment."""
    framework = trace.facts.get("framework")
    chosen: dict[object, tuple[Treatment, tuple[tuple[str, str], ...], list[int]]] = {}
    for position, treatment in _advised(findings):
        code = tuple(
            spell(str(framework) if framework else None, treatment.changes, treatment.intervention)
        )
        _, _, of = chosen.setdefault(code or treatment.title, (treatment, code, []))
        if position not in of:
            of.append(position)
    for treatment, code, of in chosen.values():
        changes = tuple(
            (knob, value(old), value(new)) for knob, (old, new) in treatment.changes.items()
        )
        yield Remedy(slots.worded(treatment.title, trace), treatment, code, changes, tuple(of))


def _unexamined(diagnosis: Diagnosis) -> Iterable[Possible]:
    for name, outcome in diagnosis.outcomes.items():
        if outcome.status in (Status.SKIPPED, Status.ABSTAINED):
            entry = NotExamined(name, missing=outcome.missing, reason=outcome.reason)
            yield Possible(name, "not examined", slots.lack(entry))


def _missing(diagnosis: Diagnosis) -> list[str]:
    needs = [need for o in diagnosis.outcomes.values() for need in o.missing]
    return list(dict.fromkeys(name for need in needs for name in need.split("|")))


def _recorded_by(name: str, trace: Trace) -> str:
    own = not slots.is_log(trace) and _axis(name) is Axis.STEP
    return f"doctor.log({name}=...)" if own else ""


def _axis(name: str) -> Axis:
    return channel(name).axis


def _facts(trace: Trace) -> Iterable[tuple[str, str]]:
    """Known facts in the order of the vocabulary."""
    known = [name for name in CHANNELS if trace.facts.get(name) is not None]
    known += [name for name in trace.facts if name not in CHANNELS]
    return ((name, value(trace.facts[name])) for name in known if trace.facts[name] is not None)


def _channels(trace: Trace) -> Iterable[tuple[str, str, str, str]]:
    order = {name: i for i, name in enumerate(CHANNELS)}
    for name in sorted(trace.series, key=lambda n: (order.get(n, len(order)), n)):
        series = trace.series[name]
        bad = number(int(series.bad.sum())) if series.values.ndim == 1 else ""
        yield name, channel(name).unit, number(series.rows), bad


def _event(text: str, old: Knob, new: Knob) -> str:
    change = "" if old is new is None else f"{value(old)} -> {value(new)}"
    said = prose(text.strip().partition("\n")[0])
    return said if not change or str(new) in said else f"{said} {change}".strip()


def value(knob: Knob) -> str:
    """A fact or a knob as a reader writes it."""
    if knob is None:
        return "none"
    if isinstance(knob, bool):
        return str(knob)
    if isinstance(knob, int):
        return f"{knob:,}"
    # Six figures: 0.9999 is not 1.
    return number(knob, 6) if isinstance(knob, float) else plain(str(knob))
