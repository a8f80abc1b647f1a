"""The lines below the findings: what else was looked for, and what could not be seen."""

from collections.abc import Sequence

import numpy as np

from optdoctor.channels import Axis, channel
from optdoctor.findings import Diagnosis, NotExamined, Status
from optdoctor.knowledge.knobs import look_inside
from optdoctor.knowledge.losses import RESCALED, SUM
from optdoctor.report.recording import Record, to_record
from optdoctor.report.slots import Detail, is_log, lack, ordered, unit
from optdoctor.report.treated import treated
from optdoctor.report.wording import cut, fitting, listed, prose, shorten, wrap
from optdoctor.trace import Trace

LABEL = 15
"""Columns of the labels."""
_LONGEST = 3  # lines of an error's message
_SEPARATE = 3  # rules not examined up to which each has its own line


def rows(
    diagnosis: Diagnosis, trace: Trace, *, in_full: int, width: int, detail: Detail
) -> list[tuple[str, list[str]]]:
    """[(label, lines)]; `in_full` findings above have named their own possible causes."""
    room = width - LABEL
    said = _said_above(diagnosis, in_full)
    found = _rules(diagnosis, said, room, detail) if detail.foot else _counts(diagnosis)
    if records := to_record(diagnosis, trace):
        found += [("record next", lines) for lines in _recorded(records, room, detail)]
    inside = any(_is_inside(o.missing) for o in diagnosis.outcomes.values())
    if is_log(trace) and inside and detail.foot:
        framework = trace.facts.get("framework")
        ways = look_inside(str(framework) if framework else None)
        found.append(("look inside", [shorten(f"{label:<11}{code}", room) for label, code in ways]))
    for name, outcome in diagnosis.with_status(Status.CRASHED).items():
        error = (outcome.reason or "").strip().rpartition("\n")[2]
        found.append(("crashed", cut(wrap(f"{name}: {prose(error)}", room), detail.lines)))
    if diagnosis.findings and (treatments := treated(trace)):
        found.append(("treated", wrap(prose(treatments), room)))
    for event in trace.events:
        if event.kind == "doctor-failed":
            reason = prose(event.text.strip().partition("\n")[0])
            told = wrap(f"stepped back at step {event.step}: {reason}", room)
            found.append(("doctor", cut(told, min(detail.lines, _LONGEST))))
    for text in _happened(trace):
        found.append(("note", cut(wrap(prose(text), room), detail.lines)))
    if partly := _measured_in_part(trace):
        found.append(("note", cut(wrap(prose(partly), room), detail.lines)))
    if skipped := _skipped(trace):
        found.append(("note", [skipped]))
    if note := _scales(trace):
        found.append(("note", cut(wrap(note, room), detail.lines)))
    if unit(trace) == "row":
        found.append(("note", ["This log has no step numbers"]))
    if unit(trace) == "epoch":
        found.append(("note", ["This log numbers epochs, no steps"]))
    return found


def _rules(
    diagnosis: Diagnosis, said: set[str], room: int, detail: Detail
) -> list[tuple[str, list[str]]]:
    """The rules without a finding, by name."""
    found = []
    for label, names in _looked(diagnosis, said):
        if names and diagnosis.findings:
            found.append((label, fitting(names, ", ", room, detail.foot)))
    if unseen := _not_examined(diagnosis, said, room, detail):
        found.append(("not examined", unseen))
    return found


def _recorded(records: Sequence[Record], room: int, detail: Detail) -> list[list[str]]:
    """The lines of what to record next time, their names alone where there is no room."""
    if detail.foot < _SEPARATE:
        names = listed([record.channel for record in records])
        return [wrap(f"log {names} as well", room)] if detail.foot else []
    return [[line for record in records for line in wrap(str(record), room)]]


def _counts(diagnosis: Diagnosis) -> list[tuple[str, list[str]]]:
    """The rules without a finding, by what became of them."""
    unseen = [len(diagnosis.with_status(s)) for s in (Status.SKIPPED, Status.ABSTAINED)]
    counts = [(label, len(names)) for label, names in _looked(diagnosis, set())]
    told = [f"{n} {label}" for label, n in (*counts, ("not examined", sum(unseen))) if n]
    return [("other rules", [", ".join(told)])] if told else []


def _happened(trace: Trace) -> list[str]:
    """What a log shows of runs before this one, of resumes and of gaps; resumes in one sentence."""
    of_kind = {
        kind: [event.text for event in trace.events if event.kind == kind and event.text]
        for kind in ("start", "resume", "gap")
    }
    if not is_log(trace):  # a run that was watched tells of each of its processes
        of_kind["start"] = of_kind["resume"] = []
    found = of_kind["start"][-1:]
    if resumes := of_kind["resume"]:
        several = f"{len(resumes):,} resumes; at the last, " if len(resumes) > 1 else ""
        found.append(several + resumes[-1])
    found += of_kind["gap"]
    return [text[0].upper() + text[1:] for text in found]


def _measured_in_part(trace: Trace) -> str:
    """Which tensors are so large that their update is that of some elements; "" if none."""
    names = [tensor.name for tensor in trace.tensors if tensor.update_sampled]
    if not names:
        return ""
    more = f" and {len(names) - 1} more tensors" if len(names) > 2 else ""
    several = listed(names) if len(names) < 3 else names[0] + more
    return f"The update of {several} is measured in some of the elements"


def _skipped(trace: Trace) -> str:
    """`3 of 480 updates were skipped`, of where each was logged from the first on; "" if none."""
    series = trace.series.get("step_skipped")
    if series is None:
        return ""
    # Of a thinned row only the last value is known, unless all are equal.
    whole = np.where(series.low == 1, series.count - series.bad, series.values == 1)
    count, loss = int(whole.sum()), trace.series.get("loss")
    if not count:
        return ""
    of = ""
    if unit(trace) == "step" and loss is not None and loss.rows:
        first, last = int(loss.starts[0]), int(loss.steps[-1])
        # One behind the last loss may be of the update whose loss that was.
        if first == 1 and loss.rows == last >= int(series.steps[-1]):
            of = f" of {last:,}"
    noun = "update" if count == 1 and not of else "updates"
    return f"{count:,}{of} {noun} {'was' if count == 1 else 'were'} skipped"


def _scales(trace: Trace) -> str:
    """Why the levels of training and evaluation say nothing of a gap, "" where they may."""
    if "loss" not in trace.series or "eval_loss" not in trace.series:
        return ""
    form = trace.facts.get("loss_form")
    if form in RESCALED:
        how = "as sums" if form == SUM else "divided by the accumulation steps"
        return f"This log prints the training loss {how}: not on the scale of the evaluation"
    if trace.facts.get("losses_comparable") == "no":
        return "Training and evaluation use different losses: their levels are not compared"
    return ""


def _looked(diagnosis: Diagnosis, said: set[str]) -> list[tuple[str, list[str]]]:
    ruled_out = {rule for f in diagnosis.findings for rule in f.causes.ruled_out}
    clear = [rule for rule in diagnosis.with_status(Status.CLEAR) if rule not in said]
    return [
        ("ruled out", [rule for rule in clear if rule in ruled_out]),
        ("clear", [rule for rule in clear if rule not in ruled_out]),
    ]


def _said_above(diagnosis: Diagnosis, in_full: int) -> set[str]:
    """Rules that the findings themselves name as ruled out, clear or not examined."""
    unexplained = [f.causes for f in ordered(diagnosis)[:in_full] if not f.causes.found]
    return {
        name
        for causes in unexplained
        for name in (*causes.ruled_out, *causes.clear, *(e.rule for e in causes.not_examined))
    }


def _not_examined(diagnosis: Diagnosis, said: set[str], room: int, detail: Detail) -> list[str]:
    entries = [
        NotExamined(name, missing=outcome.missing, reason=outcome.reason)
        for name, outcome in diagnosis.outcomes.items()
        if outcome.status in (Status.SKIPPED, Status.ABSTAINED) and name not in said
    ]
    if not entries:
        return []
    if len(entries) <= _SEPARATE and detail.foot > 2:
        return [f"{e.rule}: {lack(e, max(room - len(e.rule) - 2, 12))}" for e in entries]
    texts = [e.rule if detail.foot < 2 else f"{e.rule}: {lack(e, 40)}" for e in entries]
    return fitting(texts, "; ", room, detail.foot)


def _is_inside(missing: Sequence[str]) -> bool:
    """Whether a log can never hold these channels and a look into the training can."""
    names = [name for need in missing for name in need.split("|")]
    return any(channel(name).axis is not Axis.STEP for name in names)
