"""What is new between two diagnoses: a pure function, so that nothing is told twice."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from optdoctor.findings import SEVERITIES, Diagnosis, Finding, Notice, Severity
from optdoctor.rule import Rule

T = TypeVar("T")

EXAMS = 3
"""Examinations in a row that must find a statistical rule before it is announced."""
ROWS = 500
"""Loss rows below which a statistical rule is not announced."""
LASTS = 1.2
"""What the step must have grown to since the first of these examinations: on the way up or down a
healthy curve shows shapes that pass."""
SAME_ILLNESS = (frozenset({"divergence", "upward-drift"}),)
"""Rules that give one illness its name by what it did so far: a rise by how fast it was."""


def kin(rule: str) -> frozenset[str]:
    """The other names of its illness."""
    return frozenset().union(*(names for names in SAME_ILLNESS if rule in names)) - {rule}


def carried(before: Mapping[str, T], found: Iterable[str]) -> dict[str, T]:
    """{found rule: what was kept of it, or of another name that its illness goes by no longer}."""
    found = set(found)
    kept = {}
    for rule in found:
        for name in (rule, *sorted(kin(rule) - found)):
            if name in before:
                kept[rule] = before[name]
                break
    return kept


def notices(
    announced: Mapping[str, Finding], diagnosis: Diagnosis, step: int, ripe: Mapping[str, bool]
) -> list[Notice]:
    """What appeared, worsened, ended or has another name by now.

    `announced` holds the finding last told of, by rule; `ripe` says for each found rule whether it
    may be announced yet.
    """
    now = {f.rule: f for f in reversed(diagnosis.findings)}
    told, renamed = [], set()
    for was in announced.keys() - now.keys():
        names = sorted(kin(was) & now.keys())
        renamed.update(names)
        told += [Notice(step, "renamed", now[name], was) for name in names[:1]]
        told += [Notice(step, "ended", announced[was])] * (not names)
    for rule, finding in now.items():
        if rule in renamed:
            continue
        if finding.raised_by and not ripe.get(finding.raised_by, False):
            continue  # what its symptom adds may pass
        before = announced.get(rule)
        if before is None:
            if ripe.get(rule, False):
                told.append(Notice(step, "appeared", finding))
        elif SEVERITIES.index(finding.severity) > SEVERITIES.index(before.severity):
            told.append(Notice(step, "worsened", finding))
    return sorted(told, key=lambda notice: (notice.finding.steps, notice.finding.rule))


def ripe(
    rules: Mapping[str, Rule],
    exams: Mapping[str, int],
    rows: int,
    growth: Mapping[str, float] | None = None,
) -> dict[str, bool]:
    """{found rule: whether it may be announced}, from how many exams in a row have found it.

    `growth` is the step over that of the first of these exams.

    A rule that counts the fault itself, or decides from one row, speaks at once; a statistic that
    is asked again and again would alarm on healthy runs.
    """
    return {
        name: rules[name].mechanism
        or rules[name].limits.rows <= 1
        or (count >= EXAMS and rows >= ROWS and (growth or {}).get(name, LASTS) >= LASTS)
        for name, count in exams.items()
    }


def announced_in(rows: Iterable[Mapping[str, Any]]) -> dict[str, Finding]:
    """{rule: the finding last told of}, from the rows of findings.jsonl of an earlier process."""
    told: dict[str, Finding] = {}
    for row in rows:
        try:
            rule, finding = str(row["rule"]), row["finding"]
            told.pop(str(row.get("was", "")), None)
            if row["what"] == "ended":
                told.pop(rule, None)
                continue
            first, last = finding["steps"]
            told[rule] = Finding(
                Severity(row["severity"]), str(finding["summary"]), (first, last), (), rule=rule
            )
        except (KeyError, TypeError, ValueError):
            continue
    return told
