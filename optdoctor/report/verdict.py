"""The sentences beside the verdict: symptom, step, and the cause if it was found."""

from optdoctor.findings import Diagnosis, Finding, Status, Verdict
from optdoctor.report.slots import is_log, unit, worded
from optdoctor.report.treated import treated
from optdoctor.report.wording import counted, listed
from optdoctor.rule import SYMPTOMS
from optdoctor.trace import Trace

_NAMED = 3
"""Silent rules up to which they are named, so that nobody thinks more was looked at."""
_UNSEEN = 0.1
"""Part of a run, at its end, without a sample of its tensors that is worth telling."""


def sentences(
    diagnosis: Diagnosis, trace: Trace, findings: list[Finding]
) -> tuple[list[Finding], list[str]]:
    """(the findings whose summaries are quoted, the sentences beside the verdict)."""
    if not findings or diagnosis.verdict is not Verdict.SICK:
        return [], [_without_illness(diagnosis, trace)]
    worst = [f for f in diagnosis.findings if f.severity is diagnosis.worst]
    shown = [f for f in worst if f.rule in SYMPTOMS] or [f for f in worst if f.causes.found]
    symptom = (shown or worst)[0]
    summary = worded(symptom.summary, trace)
    causes = symptom.causes
    roots = [f for f in findings if f.rule in causes.found and not f.causes.found]
    if len({f.rule for f in roots}) == 1:
        return [symptom, roots[0]], [summary, f"Cause found: {_lowered(roots[0], trace)}"]
    if causes.found:
        numbers = [i for i, f in enumerate(findings, 1) if f in roots or not roots]
        return [symptom], [summary, f"Possible causes found: {listed(numbers)} below."]
    if causes.not_examined and symptom.rule in SYMPTOMS:
        possible = len(causes.not_examined) + len(causes.clear) + len(causes.ruled_out)
        verb = "cannot be seen in this log" if is_log(trace) else "were not examined"
        if possible == 1:
            verb = verb.replace("were", "was")
            only = causes.not_examined[0].rule
            return [symptom], [summary, f"No cause found; the only possible one, {only}, {verb}."]
        share = f"{len(causes.not_examined)} of {possible} possible causes"
        return [symptom], [summary, f"No cause found; {share} {verb}."]
    return [symptom], [summary]


def _lowered(finding: Finding, trace: Trace) -> str:
    text = worded(finding.summary, trace)
    return (
        text[0].lower() + text[1:]
        if text.startswith(("The ", "A ", "About ", "At ", "In "))
        else text
    )


def _length(trace: Trace) -> int:
    """Steps that the trace tells of: what passed before the first row belongs to it."""
    first, last = trace.steps
    interval = trace.facts.get("log_interval")
    is_from_start = isinstance(interval, int) and 1 <= first <= interval
    return last if is_from_start else last - first + 1


def _without_illness(diagnosis: Diagnosis, trace: Trace) -> str:
    if diagnosis.verdict is Verdict.UNKNOWN:
        return f"{worded(diagnosis.reason or 'no reason given', trace).rstrip('.')}."
    treatments = "" if diagnosis.findings else treated(trace)  # else they stand below
    return (
        _said(diagnosis, trace)
        + f" Treated: {treatments}." * bool(treatments)
        + _last_looked(trace)
    )


def _said(diagnosis: Diagnosis, trace: Trace) -> str:
    """What was found, and how many rules looked."""
    found = counted(len(diagnosis.findings), "note") if diagnosis.findings else "Nothing"
    silent = list(diagnosis.with_status(Status.CLEAR))
    unseen = sum(
        o.status in (Status.SKIPPED, Status.ABSTAINED) for o in diagnosis.outcomes.values()
    )
    length = counted(_length(trace), unit(trace))
    num_looked = len(silent) + len(diagnosis.with_status(Status.FOUND))
    if num_looked == len(diagnosis.outcomes) > 1:
        return f"{found} found in {length}; all {num_looked} rules looked."
    if len(silent) > _NAMED:
        return f"{found} found in {length}; {num_looked} of {len(diagnosis.outcomes)} rules looked."
    by = f" by {listed(silent)}" if silent else ""
    if diagnosis.findings and silent:
        by = f"; nothing else{by}"
    blind = f"; {counted(unseen, 'rule')} not examined" if unseen else ""
    return f"{found} found in {length}{by}{blind}."


def _last_looked(trace: Trace) -> str:
    """Until when tensors were looked at, where a tenth of the run or more has passed since."""
    last, (first, end) = trace.last_sample, trace.steps
    if not last or end - last < (end - first + 1) * _UNSEEN:
        return ""
    return f" Tensors were last looked at in step {last:,}."
