"""The sections of one run on the page."""

from collections.abc import Iterable
from dataclasses import dataclass

from optdoctor import __version__
from optdoctor.findings import Diagnosis
from optdoctor.report import curve, heat, heat_figure, slots, svg, text
from optdoctor.report.account import BASIS, SAFETY, WHEN, Account, Possible, Remedy, Told, account
from optdoctor.report.curve import loss_of
from optdoctor.report.markup import code, escaped, isolated, said, table
from optdoctor.report.wording import counted, number, shorten
from optdoctor.store import Series
from optdoctor.trace import Trace

_NAME = 60  # characters of a name in the head
_DOT = " \u00b7 "
BELOW = (("lr", "Learning rate"), ("grad_norm", "Gradient norm"))
"""(channel, title) of the curves under the loss."""
EVENTS = 100
"""Events that are listed."""
CHANNELS = 100
"""Channels that are listed."""
_TRIANGLE = '<path d="M6 .8 11.6 11H.4z"'
_SHAPES = {
    "critical": f'{_TRIANGLE} style="fill:currentColor"/>',
    "warn": f'{_TRIANGLE} stroke="currentColor" stroke-width="1.4"/>',
    "note": '<circle cx="6" cy="6" r="3.2" fill="currentColor"/>',
    "healthy": '<circle cx="6" cy="6" r="5.2" fill="none" stroke="currentColor"/>'
    '<path d="M3.3 6.2 5.3 8.2 8.8 4.2" stroke="currentColor" stroke-width="1.4"/>',
    "unknown": '<text x="6" y="10.5" font-size="12" font-weight="700" text-anchor="middle"'
    ' fill="currentColor">?</text>',
}
MARKS = {
    name: f'<svg class="mark" viewBox="0 0 12 12" aria-hidden="true">{shape}</svg>'
    for name, shape in (_SHAPES | {"sick": _SHAPES["critical"]}).items()
}
"""{severity or verdict: its shape}: colour never stands alone."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """One run as HTML."""

    title: str
    top: str
    body: str


def run_page(
    diagnosis: Diagnosis,
    trace: Trace,
    *,
    name: str,
    prefix: str,
    level: int,
    cost: str | None = None,
) -> RunPage:
    """The run with its headline at heading `level`; ids begin with `prefix`."""
    told = account(diagnosis, trace, cost)
    verdict = str(diagnosis.verdict)
    shape = str(diagnosis.worst) if verdict == "sick" and diagnosis.worst else verdict
    kind = ' class="title"' if level > 1 else ""
    sections = [part for part in _sections(told, diagnosis, trace, prefix, level + 1) if part[2]]
    links = "".join(f'<a href="#{prefix}{name}">{said(short)}</a>' for name, short, _ in sections)
    lead = "".join(f"<p>{said(line)}</p>" for line in told.lead)
    head = (
        f'<p class="meta">{_meta(trace, name, level)}</p>'
        f'<p class="verdict {shape}">{MARKS[shape]} {told.word}</p>'
        f"<h{level}{kind}>{said(told.headline)}</h{level}>"
        f'<div class="lead">{lead}</div>'
        f'<nav aria-label="Contents">{links}</nav>'
    )
    top = f'<header class="top">{head}</header>' if level == 1 else head
    sections_html = (f'<section id="{prefix}{n}">{content}</section>' for n, _, content in sections)
    body = _loss(diagnosis, trace) + "".join(sections_html)
    return RunPage(f"{told.word}: {told.headline}", top, body)


def _sections(
    told: Account, diagnosis: Diagnosis, trace: Trace, prefix: str, level: int
) -> Iterable[tuple[str, str, str]]:
    """(id, its name in the contents, HTML or "")."""

    def headed(title: str, content: str) -> str:
        return f"<h{level}>{title}</h{level}>{content}" if content else ""

    found = heat.heat_map(slots.ordered(diagnosis), trace)
    for position, finding in enumerate(told.findings):
        html = _finding(finding, prefix, level)
        if found is not None and found[0] == position:
            html += _heat(found[1], diagnosis, trace, prefix)
        yield f"f{finding.number}", f"{finding.number} {finding.rule}", html
    yield (
        "diff",
        "Other causes",
        headed("Could it be something else?", _possible(told.possible) + _record(told)),
    )
    treatments = "".join(
        _remedy(i, remedy, len(told.findings), prefix, level + 1)
        for i, remedy in enumerate(told.remedies, 1)
    )
    yield "do", "What to do", headed("What to do", treatments)
    yield "run", "The run", headed("The run", _run(told))
    yield "not", "Not examined", headed("Not examined", _unexamined(told))
    yield "clear", "Silent rules", headed("Looked and found nothing", _silent(told))
    yield "notes", "Notes", headed("Notes", _list(said(note) for note in told.notes))
    cost = f"<p>{said(told.cost)}</p>" if told.cost else ""
    yield "cost", "Cost", headed("Cost of the doctor", cost)


def _meta(trace: Trace, name: str, level: int) -> str:
    unit = slots.unit(trace)
    first, last = trace.steps
    elements = sum(tensor.num_elements for tensor in trace.tensors if tensor.in_optimizer)
    optimizer = trace.facts.get("optimizer")
    parts = [f"<b>optdoctor {__version__}</b>"] if level == 1 else []
    parts += [f"<span>run {isolated(shorten(name, _NAME))}</span>"] if name else []
    parts += [f"<span>{unit}s {first:,} to {last:,}</span>"] if trace.series else []
    parts += [f"<span>{isolated(shorten(str(optimizer), _NAME))}</span>"] if optimizer else []
    if trace.tensors:
        size = f"{counted(len(trace.tensors), 'tensor')}, {counted(elements, 'parameter')}"
        parts.append(f"<span>{size}</span>")
    how = f"read as {isolated(shorten(trace.reader, _NAME))}" if trace.reader else "recorded live"
    parts.append(f"<span>{how}</span>")
    if trace.lines_skipped:
        parts.append(f"<span>{counted(trace.lines_skipped, 'line')} skipped</span>")
    return "".join(parts)


def _loss(diagnosis: Diagnosis, trace: Trace) -> str:
    loss = loss_of(trace)
    if loss is None or not loss.rows:
        return ""
    unit, evaluation = slots.unit(trace), trace.series.get("eval_loss")
    mark = text.marked(diagnosis, trace)
    until = next((f.steps[1] for f in diagnosis.findings if f.steps[0] > 0), None)
    drawn = svg.curve(
        loss, trace.steps, name="Loss", unit=unit, evaluation=evaluation, mark=mark, until=until
    )
    caption = svg.caption(loss, evaluation, unit)
    below = "".join(
        _curve_below(trace.series[name], trace, title, mark, until)
        for name, title in BELOW
        if name in trace.series and trace.series[name].num_finite > 1
    )
    return (
        '<section style="margin-top:26px"><figure><figcaption><b>Loss</b> '
        f'{said(caption)}</figcaption><div class="plot">{drawn}</div></figure>{below}</section>'
    )


def _curve_below(
    series: Series, trace: Trace, title: str, mark: curve.Mark | None, until: int | None
) -> str:
    """A low curve over the steps of the loss, so that the eye can go down at the marked one."""
    unit, smoothed = slots.unit(trace), title != BELOW[0][1]
    at = None if mark is None else curve.Mark(mark.step)
    drawn = svg.curve(
        series, trace.steps, name=title, unit=unit, mark=at, until=until, smoothed=smoothed
    )
    caption = svg.caption(series, None, unit, smoothed=smoothed)
    return (
        f"<figure><figcaption><b>{title}</b> {said(caption)}</figcaption>"
        f'<div class="plot low">{drawn}</div></figure>'
    )


def _finding(told: Told, prefix: str, level: int) -> str:
    tag = f'<span class="tag {told.severity}">{MARKS[told.severity]}{told.severity.upper()}</span>'
    parts = [tag, f'<span class="name">{isolated(told.rule)}</span>', f"<span>{told.span}</span>"]
    for label, numbers in (("explained by", told.explained_by), ("cause of", told.cause_of)):
        if numbers:
            parts.append(f"<span>{label} {_links(numbers, prefix)}</span>")
    slot_rows = [("where", told.where), ("since", told.since), ("how sure", told.sure)]
    slots_html = "".join(f"<dt>{k}</dt><dd>{said(v)}</dd>" for k, v in slot_rows if v)
    rows = (
        (said(row.what), said(row.value), said(row.limit), code(row.channel))
        for row in told.evidence
    )
    head = [("Seen", ""), ("Value", "n"), ("Limit", "n"), ("Channel", "")]
    return (
        f"<h{level}>{told.number}&ensp;{said(told.heading)}</h{level}>"
        f'<p class="where">{"".join(parts)}</p><p>{said(told.what)}</p>'
        f"{table(head, rows, f'Evidence of finding {told.number}')}"
        f'<dl class="kv">{slots_html}</dl>'
    )


def _links(numbers: Iterable[int], prefix: str) -> str:
    return ", ".join(f'<a href="#{prefix}f{n}">{n}</a>' for n in numbers)


def _heat(found: heat.Map, diagnosis: Diagnosis, trace: Trace, prefix: str) -> str:
    mark = text.marked(diagnosis, trace)
    drawn = heat_figure.render(found, trace, slots.unit(trace), mark, prefix)
    shown = counted(len(found.tensors), "tensor")
    sick = f", bold: {counted(len(found.sick), 'tensor')} of the finding" if found.sick else ""
    return (
        f"<figure><figcaption><b>Where:</b> {code(found.channel)} of {shown}"
        f" in order of depth{sick}.</figcaption>{drawn}</figure>"
    )


def _possible(rows: tuple[Possible, ...]) -> str:
    if not rows:
        return ""
    several = len({n for row in rows for n in row.explains}) > 1
    head = [("Possible cause", ""), ("Result", "r"), ("What was seen", "")]
    head += [("Of finding", "n")] if several else []
    body = []
    for row in rows:
        result = f'<b class="sick">{row.result}</b>' if row.result == "found" else row.result
        cells = [f'<span class="name">{isolated(row.rule)}</span>', result, said(row.seen)]
        body.append([*cells, ", ".join(map(str, row.explains))] if several else cells)
    return table(head, body, "Possible causes")


def _record(told: Account) -> str:
    if not told.record:
        return ""
    rows = ((code(r.channel), said(r.how), said(r.decides)) for r in told.record)
    head = [("Log next time", ""), ("How", ""), ("What it tells", "")]
    return f"<p>To decide between the rest:</p>{table(head, rows, 'What to log next time')}"


def _remedy(position: int, remedy: Remedy, num_findings: int, prefix: str, level: int) -> str:
    treatment = remedy.treatment
    facts = [f"<b>{SAFETY[treatment.safety]}</b>", WHEN[treatment.when]]
    facts += [f"for {_links(remedy.of, prefix)}"] if num_findings > 1 else []
    basis = BASIS[treatment.basis]
    source = f"{basis}: {said(treatment.source)}" if treatment.source else basis
    changes = ", ".join(
        f"{code(knob)} {isolated(old)} \u2192 {isolated(new)}" for knob, old, new in remedy.changes
    )
    spelled = "".join(
        f'<dt>{isolated(label)}</dt><dd><pre tabindex="0">{_code_lines(code_)}</pre></dd>'
        for label, code_ in remedy.code
    )
    return (
        f'<div class="treat"><h{level}>{position}&ensp;{said(remedy.title)}</h{level}>'
        f'<p class="facts">{_DOT.join(facts)}</p>'
        + (f'<dl class="code">{spelled}</dl>' if spelled else "")
        + (f'<p class="facts">Changes {changes}</p>' if changes else "")
        + f'<p class="facts">Basis: {source}</p></div>'
    )


def _code_lines(code_: str) -> str:
    return "\n".join(escaped(line) for line in code_.split("\n"))


def _run(told: Account) -> str:
    facts = "".join(f"<dt>{code(k)}</dt><dd>{isolated(v)}</dd>" for k, v in told.facts)
    html = f'<dl class="kv">{facts}</dl>' if facts else ""
    if told.channels:
        head = [("Channel", ""), ("Unit", ""), ("rows", "n"), ("not finite", "n")]
        shown = told.channels[:CHANNELS]
        rows = ((code(n), isolated(u), r, bad) for n, u, r, bad in shown)
        html += f"<details><summary>{counted(len(told.channels), 'channel')} measured</summary>"
        html += f"{table(head, rows, 'Channels')}{_more(told.channels, CHANNELS)}</details>"
    if told.events:
        head = [("Step", ""), ("Event", ""), ("What", "")]
        events = ((f"{s:,}", escaped(k), isolated(t)) for s, k, t in told.events[:EVENTS])
        html += f"<details><summary>{counted(len(told.events), 'event')}</summary>"
        html += f"{table(head, events, 'Events')}{_more(told.events, EVENTS)}</details>"
    return html


def _more(rows: tuple[object, ...], shown: int) -> str:
    return (
        f"<p>{number(len(rows) - shown)} more are in the record.</p>" if len(rows) > shown else ""
    )


def _unexamined(told: Account) -> str:
    html = ""
    if told.unexamined:
        rows = (
            (f'<span class="name">{isolated(r.rule)}</span>', said(r.seen)) for r in told.unexamined
        )
        html += table([("Rule", ""), ("Reason", "")], rows, "Rules that were not examined")
    if told.missing and (told.unexamined or told.possible):
        rows_missing = (
            (code(name), said(doc), f"<code>{escaped(how)}</code>" if how else "")
            for name, doc, how in told.missing
        )
        head = [("Missing channel", ""), ("What it is", ""), ("How to record it", "")]
        summary = f"{counted(len(told.missing), 'missing channel')}, and how to get them"
        html += f"<details><summary>{summary}</summary>"
        html += f"{table(head, rows_missing, 'Missing channels')}</details>"
    if told.ways:
        spelled = "".join(
            f'<dt>{isolated(label)}</dt><dd><pre tabindex="0">{escaped(line)}</pre></dd>'
            for label, line in told.ways
        )
        html += "<p>A log cannot hold what happens inside the optimizer. To look inside:</p>"
        html += f'<dl class="code">{spelled}</dl>'
    return html


def _silent(told: Account) -> str:
    names = ", ".join(f'<span class="name">{isolated(name)}</span>' for name in told.silent)
    return f"<p>{names}</p>" if names else ""


def _list(items: Iterable[str]) -> str:
    rows = "".join(f"<li>{item}</li>" for item in items)
    return f'<ul class="plain">{rows}</ul>' if rows else ""
