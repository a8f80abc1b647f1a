"""What one finding answers: what, where, since, why, do, sure; a slot with nothing is absent."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from optdoctor.channels import channel
from optdoctor.findings import (
    Diagnosis,
    Differential,
    Finding,
    NotExamined,
    Severity,
    Treatment,
)
from optdoctor.knowledge.knobs import spell
from optdoctor.knowledge.rates import UNMEASURED, rates_of
from optdoctor.report.tensors import fold
from optdoctor.report.wording import (
    beginning,
    columns,
    counted,
    cut,
    fitting,
    in_units,
    number,
    percent,
    plain,
    prose,
    sentence,
    short_words,
    wrap,
)
from optdoctor.trace import Event, Trace

_INDENT = 9  # columns left of a slot's text
_TELLING = frozenset(
    {"resume", "fact-changed", "learning-rate-set", "tensors-changed", "treatment", "undo"}
)
"""Events that may have set off what begins within one step of them."""


@dataclass(frozen=True, slots=True)
class Detail:
    """How much room a report has; a later one says less."""

    explained: bool = True
    """Where and since and why of a symptom whose cause stands above it."""
    eased: bool = True
    """Advice for such a symptom."""
    lines: int = 1000
    """Most lines of one sentence."""
    treatments: int = 1000
    evidence: int = 1000
    """Most numbers of one finding beside the one that says what it is."""
    causes: int = 1000
    """Most possible causes of one finding that nobody could look at."""
    names: int = 1000
    """Most lines of names of causes that somebody looked for in vain; with 0 their number."""
    groups: int = 3
    """Most groups of tensors that are named."""
    sure: bool = True
    """How sure each finding is, where nothing else must go for it."""
    foot: int = 6
    """Most lines of one list below the findings; with 0 one of their lengths."""
    since: bool = True
    """Since when, also where the head line says all of it."""
    symptoms: bool = True
    """More than the head line of a symptom whose cause stands above it."""
    curve: bool = True
    """The loss."""


WHOLE = Detail()
_SHORTER: tuple[Mapping[str, int | bool], ...] = (
    {"foot": 3},
    {"foot": 2},
    {"explained": False},
    {"causes": 3, "evidence": 4},
    {"foot": 1},
    {"treatments": 3},
    {"names": 2},
    {"evidence": 2},
    {"sure": False},
    {"causes": 1},
    {"treatments": 2},
    {"groups": 2},
    {"names": 1},
    {"evidence": 1},
    {"foot": 0},
    {"treatments": 1},
    {"names": 0, "causes": 0},
    {"groups": 1, "evidence": 0},
    {"eased": False},
    {"since": False},
    {"symptoms": False},
    {"curve": False},
    # Whole items have gone by now; what is left is cut.
    {"lines": 8},
    {"lines": 4},
    {"lines": 3},
    {"lines": 2},
    {"lines": 1},
)
"""What goes, in this order, until the report fits."""


def details() -> Iterator[Detail]:
    """From the whole report to the shortest."""
    detail = WHOLE
    yield detail
    for change in _SHORTER:
        detail = replace(detail, **change)  # type: ignore[arg-type]
        yield detail


def ordered(diagnosis: Diagnosis) -> list[Finding]:
    """The findings, a cause above the symptoms that it explains."""
    ranks = [cause.rule for cause in diagnosis.causes if cause.explains]
    return sorted(
        diagnosis.findings,
        key=lambda f: ranks.index(f.rule) if f.rule in ranks else len(ranks),
    )


def unit(trace: Trace) -> str:
    """What a step of this trace is: `row` or `epoch` in a log without step numbers, else `step`."""
    source = str(trace.facts.get("step_source"))
    return {"counted rows": "row", "epochs": "epoch"}.get(source, "step")


def is_log(trace: Trace) -> bool:
    """Whether somebody else wrote it: our own record can hold every channel."""
    return trace.reader not in ("", "run-record")


def worded(text: str, trace: Trace) -> str:
    """A rule's words as this trace's report says them."""
    words = short_words(prose(text))
    return in_units(words, unit(trace))


def treatments(finding: Finding) -> tuple[Treatment, ...]:
    """What a report may advise: nobody stops a run for a note, which tells of no harm."""
    if finding.severity is not Severity.NOTE:
        return finding.treatments
    return tuple(t for t in finding.treatments if t.when != "now")


def span(finding: Finding, trace: Trace) -> str:
    """`step 361`, `steps 362-480`, `before step 1`."""
    first, last = finding.steps
    if (first, last) == (0, 0):
        return "before step 1"
    return f"{unit(trace)} {first}" if first == last else f"{unit(trace)}s {first}-{last}"


def event_near(finding: Finding, trace: Trace) -> Event | None:
    """The newest telling event at the finding's first step or one before it."""
    first = finding.steps[0]
    near = [e for e in trace.events if e.kind in _TELLING and first - 1 <= e.step <= first]
    return near[-1] if near and first > 0 else None


def render(
    finding: Finding,
    trace: Trace,
    *,
    quoted: bool,
    printed: dict[str, int],
    position: int,
    later: Mapping[str, str],
    detail: Detail,
    width: int,
) -> list[str]:
    """Lines of all slots.

    `quoted`: the verdict has said the summary already. `printed`: {code of a treatment: number of
    the finding that printed it}, extended by what this one prints. `later`: {possible cause: where
    it was found, though not as one}.
    """
    room = width - _INDENT
    if finding.causes.found and not detail.symptoms:
        return []
    evidence = [worded(sentence(row), trace) for row in finding.evidence]
    what = evidence[0] if quoted else worded(finding.summary, trace)
    brief = bool(finding.causes.found) and not detail.explained
    rows: list[tuple[str, list[str]]] = [("what", cut(wrap(what, room), detail.lines))]
    if not brief:
        place, began = where(finding, trace, detail.groups), since(finding, trace)
        is_new = detail.since or began not in (f"{unit(trace)} {finding.steps[0]}", "before step 1")
        rows += [
            ("where", cut(wrap(place, room), detail.lines) if place else []),
            ("since", cut(wrap(began, room), detail.lines) if is_new else []),
            ("why", _why(finding, evidence[1:], later, room, detail)),
        ]
    eased = detail.eased or not finding.causes.found
    chosen = treatments(finding)[: detail.treatments if eased else 0]
    label = "try" if finding.severity is Severity.NOTE else "do"
    rows.append((label, _do(chosen, trace, printed, position, room, detail)))
    if not brief and detail.sure:
        rows.append(("sure", cut(wrap(sure(finding), room), detail.lines)))
    return [
        f"  {'' if i else label:<{_INDENT - 2}}{line}"
        for label, lines in rows
        for i, line in enumerate(lines)
    ]


def where(finding: Finding, trace: Trace, groups: int = 3) -> str:
    """The tensors and what the cited channel was in them; "" for a finding without tensors."""
    if not finding.tensors:
        return ""
    total = sum(tensor.in_optimizer for tensor in trace.tensors)
    if len(finding.tensors) >= total:
        return f"all {total} tensors{_range(finding, trace)}"
    names = fold(finding.tensors, trace.tensors, groups)
    return f"{names}{_range(finding, trace)}. {len(finding.tensors)} of {total} tensors"


def _range(finding: Finding, trace: Trace) -> str:
    """What the first evidence's channel was in these tensors at first: `: 63-84 % at step 9`.

    Nothing where the evidence is another number than the channel's own, as a ratio of two.
    """
    first = finding.evidence[0]
    series = trace.series.get(first.channel)
    if series is None or series.values.ndim != 2 or channel(first.channel).unit == "step":
        return ""
    own = channel(first.channel).unit
    if first.unit != own and not (first.unit == "%" and own in ("share", "1")):
        return ""
    row = np.flatnonzero(series.steps == finding.steps[0])
    chosen = np.isin([tensor.name for tensor in trace.tensors], finding.tensors)
    values = series.values[row[0], chosen] if row.size else np.empty(0)
    values = values[np.isfinite(values)]
    if not values.size:
        return ""
    low, high = float(values.min()), float(values.max())
    if first.unit in ("%", "share"):
        low, high = low * 100, high * 100
        upper = percent(high)
    else:
        upper = number(high)
    lower = percent(low).removesuffix(" %") if upper.endswith("%") else number(low)
    said = upper if lower == upper.removesuffix(" %") else f"{lower}-{upper}"
    at = f" at {unit(trace)} {finding.steps[0]}" if len(series.steps) > 1 else ""
    return f": {said}{at}"


def since(finding: Finding, trace: Trace) -> str:
    """The first step, with its epoch and the event that it follows."""
    first = finding.steps[0]
    if finding.steps == (0, 0) and trace.steps[0] > 0:
        return "before step 1"
    text = f"{unit(trace)} {first}"
    epoch = trace.series.get("epoch") if unit(trace) != "epoch" else None
    if epoch is not None and (at := np.flatnonzero(epoch.steps == first)).size:
        text += f" (epoch {number(float(epoch.values[at[0]]))})"
    event = event_near(finding, trace)
    return f"{text}, {_event(event)}" if event else text


def sure(finding: Finding) -> str:
    """How often the rule finds and errs."""
    preview = "; rule in preview" if finding.stage == "preview" else ""
    measured = rates_of(finding.rule)
    return f"{measured[0] if measured else UNMEASURED}{preview}"


def _event(event: Event) -> str:
    change = "" if event.old is event.new is None else f"{event.old} -> {event.new}"
    said = event.text if change and str(event.new) in event.text else f"{event.text} {change}"
    said = short_words(prose(said)).strip()
    kind = {"resume": "first after the resume"}.get(event.kind, event.kind.replace("-", " "))
    return f"{kind}: {said}" if said else kind


def _why(
    finding: Finding, further: Sequence[str], later: Mapping[str, str], room: int, detail: Detail
) -> list[str]:
    lines = [
        line for text in further[: detail.evidence] for line in cut(wrap(text, room), detail.lines)
    ]
    if finding.causes.found:
        return lines
    return lines + _possible(finding.causes, later, room, detail)


def found_elsewhere(finding: Finding, findings: Sequence[Finding], trace: Trace) -> dict[str, str]:
    """{possible cause that is found, but not as a cause of this: where it stands}.

    The engine calls it clear at the steps in question; a reader would take that for never found.
    """
    told = {}
    for name in (*finding.causes.clear, *finding.causes.ruled_out):
        of = [(i, f) for i, f in enumerate(findings, 1) if f.rule == name]
        for number_, other in of[:1]:
            after = "later, " if other.steps[0] > finding.steps[0] else ""
            note = ", a note" if other.severity is Severity.NOTE else ""
            told[name] = f"finding {number_}{note}: {after}{span(other, trace)}"
    return told


def _possible(
    causes: Differential, later: Mapping[str, str], room: int, detail: Detail
) -> list[str]:
    """The causes that were looked for and the ones that were not, as a table."""
    lines = []
    for label, found in (("ruled out", causes.ruled_out), ("clear", causes.clear)):
        names = [name for name in found if name not in later]
        shown_names = fitting(names, ", ", room - 15, detail.names)
        shown_names = shown_names if detail.names else [counted(len(names), "cause")]
        for i, line in enumerate(shown_names if names else []):
            lines.append(f"{'' if i else label:<15}{line}")
    for i, (name, where_) in enumerate(later.items()):
        head, *tail = wrap(f"{name}: {where_}", room - 15)
        lines.append(f"{'' if i else 'not its cause':<15}{head}")
        lines += [f"{'':<15}{line}" for line in tail]
    shown = causes.not_examined[: detail.causes]
    wide = max((columns(entry.rule) for entry in shown), default=0)
    for i, entry in enumerate(shown):
        left = max(room - 15 - wide - 2, 12)
        # A list of channels says itself how many more there are; a sentence stays whole.
        told = lack(entry, left if entry.missing or detail.lines == 1 else 10_000)
        reason, *tail = wrap(told, left)
        lines.append(f"{'' if i else 'not examined':<15}{entry.rule:<{wide}}  {reason}")
        lines += [f"{'':<{15 + wide + 2}}{line}" for line in tail]
    if more := len(causes.not_examined) - len(shown):
        told = f"and {more} more" if shown else counted(more, "cause")
        lines.append(f"{'' if shown else 'not examined':<15}{told}")
    return lines


def lack(entry: NotExamined, room: int = 10_000) -> str:
    """Why nobody could look, in at most `room` columns."""
    if entry.unsampled:
        return beginning(_unmeasured(*entry.unsampled), room)
    if not entry.missing:
        return beginning(prose(entry.reason or ""), room)
    needs = [need.replace("|", " or ") for need in entry.missing]
    for kept in range(len(needs), 0, -1):
        more = f" and {len(needs) - kept} more" if kept < len(needs) else ""
        text = f"needs {', '.join(needs[:kept])}{more}"
        if columns(text) <= room:
            return text
    # One of several that would do is true as well, and a name is typed or of no use.
    first = f"needs {entry.missing[0].partition('|')[0]}"
    more = f" and {len(needs) - 1} more" if len(needs) > 1 else ""
    return f"{first}{more}" if columns(first + more) <= room else first


def _unmeasured(last: int, following: int) -> str:
    """That what a rule needs was not measured where it matters, and what measures it."""
    if following - last <= 1:
        return f"what it needs was not yet measured at step {last:,}"
    where_ = f"from step {last:,} to {following:,}"
    return f"what it needs was not measured {where_}: watch(..., interval=1) measures at each step"


def _do(
    treatments: Sequence[Treatment],
    trace: Trace,
    printed: dict[str, int],
    position: int,
    room: int,
    detail: Detail,
) -> list[str]:
    framework = trace.facts.get("framework")
    lines: list[str] = []
    for treatment in treatments:
        spelled = spell(
            str(framework) if framework else None, treatment.changes, treatment.intervention
        )
        # The same code is the same treatment, whatever each rule calls it.
        before = {printed.get(code, position) for _, code in spelled} - {position}
        if before:
            lines += [line for line in (f"as for {min(before)}",) if line not in lines]
            continue
        title = worded(treatment.title, trace)
        first, *rest = cut(wrap(title, room - len(treatment.safety) - 2), detail.lines)
        gap = room - columns(first) - len(treatment.safety)
        lines += [f"{first}{' ' * gap}{treatment.safety}", *rest]
        for label, code in spelled:
            printed[code] = position
            of_code = [line for row in code.split("\n") for line in _code_lines(row, room - 13)]
            lines += [f"  {'' if i else label:<11}{line}" for i, line in enumerate(of_code)]
    return lines


def _code_lines(code: str, room: int) -> list[str]:
    """One line of code; where it is too long, its remark stands on a line of its own."""
    code = plain(code)
    statement, hash_, remark = code.partition("  # ")
    if columns(code) <= room or not hash_:
        return wrap(code, room)
    return [*wrap(statement, room), *(f"# {line}" for line in wrap(remark, room - 2))]
