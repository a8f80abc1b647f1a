"""The report in a terminal: plain text, at most 40 lines of 80 columns for up to 3 findings."""

from typing import TYPE_CHECKING

from optdoctor import __version__
from optdoctor.findings import Diagnosis, Finding, Status
from optdoctor.report import curve, footer, slots
from optdoctor.report.many import ASCII, render_many
from optdoctor.report.own_steps import as_logged
from optdoctor.report.slots import WHOLE, Detail, details, ordered, unit
from optdoctor.report.verdict import sentences
from optdoctor.report.wording import (
    beginning,
    columns,
    counted,
    cut,
    listed,
    origin_name,
    plain,
    prose,
    short_name,
    shorten,
    wrap,
)
from optdoctor.trace import Event, Trace

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["coloured", "one_line", "render", "render_many"]

LINES = 40
OPENING = 6
"""Lines that the verdict has in any case: its numbers are those that must be read."""
IN_FULL = 3
"""Findings beyond which the rest get a head line only."""
_EVENT_WORDS = {
    "resume": "resumed",
    "fact-changed": "changed",
    "learning-rate-set": "rate set",
    "tensors-changed": "tensors changed",
}
_STYLES = (
    (r"^optdoctor .*$", "dim"),
    (r"^SICK\b", "bold #d75f00"),
    (r"^HEALTHY\b", "bold"),
    (r"^UNKNOWN\b", "dim"),
    (r"^\d+ CRITICAL\b|^▲|\bcritical\b|\bNaN\b", "bold #d75f00"),
    (r"^\d+ WARN\b|^△", "bold #af8700"),
    (r"^\d+ NOTE\b|^·", "bold blue"),
    (r"^  (what|where|since|why|do|try|sure) ", "dim"),
    (r"^(ruled out|clear|not examined|other rules|look inside|crashed|doctor) .*$", "dim"),
    (r"^(note|more|cost|page) .*$", "dim"),
    (r"^ {15}.*$", "dim"),
)


def render(
    diagnosis: Diagnosis,
    trace: Trace,
    *,
    width: int = 80,
    ascii: bool = False,
    cost: str | None = None,
    page: str | None = None,
) -> str:
    """The report of one run; `cost` and `page` are lines that only the caller knows."""
    diagnosis, trace = as_logged(diagnosis, trace)
    told = {"cost": cost, "page": page}
    whole = _told(diagnosis, trace, WHOLE, width)
    lines: list[str] = []
    for detail in details():
        found = _told(diagnosis, trace, detail, width)
        more = _more(trace, page) if found != whole or len(diagnosis.findings) > IN_FULL else None
        lines = _lines(diagnosis, trace, found, {"more": more, **told}, detail, width, ascii)
        if len(lines) <= LINES:
            break
    text = "\n".join(line.rstrip() for line in lines)
    return text.translate(ASCII).encode("ascii", "replace").decode() if ascii else text


def one_line(diagnosis: Diagnosis, trace: Trace) -> str:
    """The verdict of a run that has nothing to report; what the doctor could not do is said too."""
    diagnosis, trace = as_logged(diagnosis, trace)
    _, said = sentences(diagnosis, trace, ordered(diagnosis))
    if crashed := list(diagnosis.with_status(Status.CRASHED)):
        said.append(f"{counted(len(crashed), 'rule')} crashed: {', '.join(crashed)}.")
    failed = [event for event in trace.events if event.kind == "doctor-failed"]
    said += [f"The doctor stepped back at step {event.step}: {_first(event)}" for event in failed]
    return f"optdoctor  {diagnosis.verdict.upper()}  {' '.join(plain(text) for text in said)}"


def _first(event: Event) -> str:
    return event.text.partition("\n")[0]


def coloured(text: str) -> "Text":
    """A report with its verdict, severities and secondary lines styled; the same characters."""
    from rich.text import Text

    styled = Text(text, no_wrap=True, overflow="ignore")
    for pattern, style in _STYLES:
        styled.highlight_regex(f"(?m){pattern}", style)
    return styled


def _told(diagnosis: Diagnosis, trace: Trace, detail: Detail, width: int) -> list[str]:
    """The lines of the findings."""
    findings = ordered(diagnosis)
    quoted, _ = sentences(diagnosis, trace, findings)
    lines: list[str] = []
    printed: dict[str, int] = {}
    for position, finding in enumerate(findings):
        lines += [""] if position <= IN_FULL else []
        lines += _finding_head(position, findings, trace, width)
        if position < IN_FULL:
            lines += slots.render(
                finding,
                trace,
                quoted=finding in quoted,
                printed=printed,
                position=position + 1,
                later=slots.found_elsewhere(finding, findings, trace),
                detail=detail,
                width=width,
            )
    return lines


def _more(trace: Trace, page: str | None) -> str:
    """Where stands what the report left out."""
    if page:
        return "what is left out here is on the page"
    if not trace.reader:
        return "what is left out here is in doctor.diagnosis"
    return "optdoctor analyze PATH --format html -o report.html"


def _lines(
    diagnosis: Diagnosis,
    trace: Trace,
    found: list[str],
    told: dict[str, str | None],
    detail: Detail,
    width: int,
    ascii: bool,
) -> list[str]:
    _, said = sentences(diagnosis, trace, ordered(diagnosis))
    opening = cut(_opening(diagnosis.verdict.upper(), said, width), max(detail.lines, OPENING))
    lines = [_head(trace, width), "", *opening]
    if detail.curve and (drawn := loss_curve(diagnosis, trace, ascii=ascii)):
        lines += ["", *drawn]
    lines += found
    foot = footer.rows(diagnosis, trace, in_full=IN_FULL, width=width, detail=detail)
    for label, text in told.items():
        if text:
            room = width - footer.LABEL
            shown = plain(text) if label == "page" else prose(text)  # a path stays as it is
            shown = beginning(shown, room) if label == "cost" and not detail.foot else shown
            foot.append((label, wrap(shown, room)))
    lines += [""] if foot else []
    for label, texts in foot:
        lines += [f"{'' if i else label:<{footer.LABEL}}{line}" for i, line in enumerate(texts)]
    return lines


def _head(trace: Trace, width: int) -> str:
    """Version, origin, length of the run, optimizer: what fits on one line."""
    rows = max((s.rows for s in trace.series.values() if s.values.ndim == 1), default=0)
    first, last = trace.steps
    name = unit(trace)
    length = counted(rows, "row") if name == "row" else f"{name}s {first}-{last}"
    length = length if trace.series else "before step 1"
    optimizer = trace.facts.get("optimizer")
    tensors = counted(len(trace.tensors), "tensor") if trace.tensors else ""
    name = origin_name(trace.origin) if trace.origin != "live" or trace.reader else ""
    title = f"optdoctor {__version__}"
    # The name of the run goes before the number of its tensors.
    for facts in ((optimizer, tensors), (optimizer,)):
        about = ", ".join(str(part) for part in facts if part)
        parts = [f"{plain(trace.reader)}, {length}" if trace.reader else length]
        parts += [shorten(plain(about), 28)] if about else []
        parts += [] if trace.reader else ["live"]
        parts += [f"{counted(trace.lines_skipped, 'line')} skipped"] if trace.lines_skipped else []
        tail = "   ".join(parts)
        room = width - columns(title) - columns(tail) - 6
        if columns(name) <= room:
            break
    title += f"   {short_name(name, max(room, 8))}" if name else ""
    return shorten(f"{title}   {tail}", width)


def _opening(word: str, sentences: list[str], width: int) -> list[str]:
    """The verdict's lines; a sentence begins its own line where that costs none."""
    room = width - len(word) - 2
    flowing = wrap(" ".join(sentences), room)
    apart = [line for text in sentences for line in wrap(text, room)]
    lines = apart if len(apart) <= len(flowing) else flowing
    return [f"{'' if i else word:<{len(word) + 2}}{line}" for i, line in enumerate(lines)]


def marked(diagnosis: Diagnosis, trace: Trace) -> curve.Mark | None:
    """Where the first finding that has a step begins, with the event that it follows."""
    finding = next((f for f in diagnosis.findings if f.steps[0] > 0), None)
    if finding is None:
        return None
    event = slots.event_near(finding, trace)
    return curve.Mark(finding.steps[0], _EVENT_WORDS.get(event.kind, "") if event else "")


def loss_curve(diagnosis: Diagnosis, trace: Trace, *, ascii: bool = False) -> list[str]:
    """The lines of the loss, marked where the first finding begins; [] without a loss."""
    loss = curve.loss_of(trace)
    if loss is None:
        return []
    mark = marked(diagnosis, trace)
    return curve.draw(loss, trace.steps, unit=unit(trace), mark=mark, ascii=ascii)


def _finding_head(position: int, findings: list[Finding], trace: Trace, width: int) -> list[str]:
    """`1 CRITICAL  rule          step 361, cause of 2 and 3`."""
    finding = findings[position]
    caused = [i for i, f in enumerate(findings, 1) if finding.rule in f.causes.found]
    causing = [i for i, f in enumerate(findings, 1) if f.rule in finding.causes.found]
    right = slots.span(finding, trace)
    right += f", explained by {listed(causing)}" if causing else ""
    right += f", cause of {listed(caused)}" if caused else ""
    left = f"{position + 1} {finding.severity.upper()}  {plain(finding.rule)}"
    if columns(left) + 2 + len(right) <= width:
        return [left + " " * (width - columns(left) - len(right)) + right]
    return [shorten(left, width), *(line.rjust(width) for line in wrap(right, width - 9))]
