"""The diagnosis as JSON for other programs: schema `optdoctor/diagnosis-1`."""

import json
import math
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any, TypeAlias

from optdoctor.findings import Diagnosis, Evidence, Finding, NotExamined, Status, Treatment
from optdoctor.report import reading
from optdoctor.report.recording import to_record
from optdoctor.trace import Trace

SCHEMA = "optdoctor/diagnosis-1"
EVENTS = ("start", "resume", "gap")
"""Kinds of events that a run lists."""
Json: TypeAlias = dict[str, Any]

_SURROGATES = re.compile("[\ud800-\udfff]")
# json escapes C0 controls only; these steer a terminal or turn text round as well.
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def render(
    runs: Sequence[tuple[Diagnosis, Trace]],
    errors: Sequence[tuple[str, str, str]] = (),
    *,
    with_reading: bool = False,
) -> str:
    """The document of `runs` and of `errors`: (path, reason, remedy) of what was not readable.

    `with_reading`: each run says too how its log was read.
    """
    document = {
        "schema": SCHEMA,
        "runs": [
            _run(diagnosis, trace) | ({"reading": reading.document(trace)} if with_reading else {})
            for diagnosis, trace in runs
        ],
        "errors": [{"path": p, "reason": why, "remedy": remedy} for p, why, remedy in errors],
    }
    return dumps(document)


def dumps(document: Json) -> str:
    """JSON text that is valid UTF-8, holds finite numbers only and steers no terminal."""
    text = json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False)
    text = _SURROGATES.sub("\ufffd", text)
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def schema() -> Json:
    """The JSON Schema of the document."""
    path = resources.files("optdoctor.report") / "diagnosis-1.schema.json"
    loaded: Json = json.loads(path.read_text("utf-8"))
    return loaded


def _run(diagnosis: Diagnosis, trace: Trace) -> Json:
    return {
        "origin": trace.origin,
        "reader": trace.reader or None,
        "steps": list(trace.steps),
        "channels": sorted(trace.series),
        "lines_skipped": trace.lines_skipped,
        "events": [
            {"step": event.step, "kind": event.kind, "text": event.text}
            for event in trace.events
            if event.kind in EVENTS
        ],
        "verdict": str(diagnosis.verdict),
        "reason": diagnosis.reason,
        "causes": [{"rule": c.rule, "explains": list(c.explains)} for c in diagnosis.causes],
        "findings": [_finding(finding) for finding in diagnosis.findings],
        "record": [
            {"channel": r.channel, "how": r.how, "tells": r.decides, "causes": list(r.causes)}
            for r in to_record(diagnosis, trace)
        ],
        "outcomes": _outcomes(diagnosis),
    }


def _outcomes(diagnosis: Diagnosis) -> Json:
    clear = diagnosis.with_status(Status.CLEAR)
    abstained = diagnosis.with_status(Status.ABSTAINED)
    skipped = diagnosis.with_status(Status.SKIPPED)
    crashed = diagnosis.with_status(Status.CRASHED)
    return {
        "found": sorted(diagnosis.with_status(Status.FOUND)),
        "clear": [{"rule": name, "without": list(o.without)} for name, o in clear.items()],
        "abstained": {name: outcome.reason for name, outcome in abstained.items()},
        "skipped": {name: list(outcome.missing) for name, outcome in skipped.items()},
        "crashed": {name: outcome.reason for name, outcome in crashed.items()},
    }


def _finding(finding: Finding) -> Json:
    causes = finding.causes
    return {
        "rule": finding.rule,
        "stage": finding.stage,
        "severity": str(finding.severity),
        "summary": finding.summary,
        "steps": list(finding.steps),
        "tensors": list(finding.tensors),
        "evidence": [_evidence(evidence) for evidence in finding.evidence],
        "causes": {
            "found": list(causes.found),
            "clear": list(causes.clear),
            "ruled_out": list(causes.ruled_out),
            "not_examined": [_not_examined(entry) for entry in causes.not_examined],
        },
        "treatments": [_treatment(treatment) for treatment in finding.treatments],
    }


def _evidence(evidence: Evidence) -> Json:
    return {
        "channel": evidence.channel,
        "what": evidence.what,
        "observed": evidence.observed,
        "limit": evidence.limit,
        "unit": evidence.unit,
    }


def _not_examined(entry: NotExamined) -> Json:
    found: Json = {"rule": entry.rule}
    if entry.missing:
        found["missing"] = list(entry.missing)
    if entry.unsampled:
        found["unsampled"] = list(entry.unsampled)
    if entry.reason is not None:
        found["reason"] = entry.reason
    return found


def _treatment(treatment: Treatment) -> Json:
    return {
        "title": treatment.title,
        "changes": {knob: list(change) for knob, change in treatment.changes.items()},
        "when": treatment.when,
        "safety": treatment.safety,
        "basis": treatment.basis,
        "source": treatment.source,
        "intervention": treatment.intervention or None,
    }


def _finite(value: Any) -> Any:
    """`value` with null for what is not finite, and an integer where a float is one."""
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else float(value)
