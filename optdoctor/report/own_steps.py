"""Steps as the log itself numbers them: what a reader of the report looks for stands there.

A trace counts updates from 1. Of a log that counts from 0, text, Markdown and pages print its own
numbers; JSON keeps those of the trace, and says so in its events.
"""

import re
from dataclasses import replace

from optdoctor.findings import Diagnosis, Evidence, Finding
from optdoctor.trace import Trace

FROM_ZERO = "This log counts from 0: its step N stands here as N + 1"
"""The event by which a reader says that it moved all steps."""
_STEP = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_NUMBERS = re.compile(
    rf"(?<=\b[Ff]rom step ){_STEP} to (?:the end, )?{_STEP}(?!\.?\d)"
    rf"|(?<=\b[Ss]teps ){_STEP}(?:(?:, | and | or | to |-){_STEP})*"
    rf"|(?<=\b[Ss]tep ){_STEP}"
)


def counts_from_zero(trace: Trace) -> bool:
    """Whether the steps of the trace are not those that the log prints."""
    return any(event.kind == "gap" and event.text == FROM_ZERO for event in trace.events)


def as_logged(diagnosis: Diagnosis, trace: Trace) -> tuple[Diagnosis, Trace]:
    """The two with the log's own steps; themselves where it counts from 1."""
    if not counts_from_zero(trace):
        return diagnosis, trace
    outcomes = {
        name: replace(outcome, findings=tuple(map(_finding, outcome.findings)))
        for name, outcome in diagnosis.outcomes.items()
    }
    findings = tuple(map(_finding, diagnosis.findings))
    return replace(diagnosis, findings=findings, outcomes=outcomes), trace_as_logged(trace)


def trace_as_logged(trace: Trace) -> Trace:
    """The trace with the log's own steps; itself where it counts from 1."""
    if not counts_from_zero(trace):
        return trace
    events = [
        replace(event, step=event.step - 1, text=words_as_logged(event.text))
        for event in trace.events
        if event.text != FROM_ZERO
    ]
    series = {name: column.moved(-1) for name, column in trace.series.items()}
    return replace(trace, series=series, events=tuple(events))


def words_as_logged(text: str) -> str:
    """`text` with every number behind the word step, both of `from step 2 to 9`, and all of a list
    behind steps, one lower."""
    return _NUMBERS.sub(lambda found: re.sub(_STEP, _one_less, found[0]), text)


def _one_less(number: re.Match[str]) -> str:
    less = max(int(number[0].replace(",", "")) - 1, 0)
    return f"{less:,}" if "," in number[0] else str(less)


def _finding(finding: Finding) -> Finding:
    first, last = finding.steps
    steps = finding.steps if finding.steps == (0, 0) else (first - 1, last - 1)
    return replace(
        finding,
        summary=words_as_logged(finding.summary),
        steps=steps,
        evidence=tuple(map(_evidence, finding.evidence)),
        treatments=tuple(
            replace(one, title=words_as_logged(one.title), source=words_as_logged(one.source))
            for one in finding.treatments
        ),
    )


def _evidence(row: Evidence) -> Evidence:
    if row.unit == "step":
        row = replace(row, observed=row.observed - 1, limit=row.limit - 1)
    return replace(row, what=words_as_logged(row.what))
