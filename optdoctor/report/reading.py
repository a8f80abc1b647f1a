"""How a log was read: by which reader and why, what became of each name, what was skipped."""

from optdoctor.report.wording import counted, origin_name, plain, shorten
from optdoctor.trace import Trace

_WIDTH = 80
_LABEL = 9


def render(trace: Trace) -> str:
    """A few lines; a name of the log stands before the channel that it became."""
    reading = trace.reading
    lines = [f"{origin_name(trace.origin)} read by {trace.reader or 'nobody'}"]
    if reading is None:
        return lines[0]
    if reading.why:
        lines.append(_line("why", reading.why))
    if reading.guessed:
        lines.append(_line("guess", "what these numbers mean is guessed, not known"))
    taken = {name: channel for name, channel in reading.names.items() if channel}
    wide = min(max(map(len, taken), default=0), 32)
    for i, (name, channel) in enumerate(taken.items()):
        said = f"{plain(name):<{wide}} -> {plain(channel)}{_extent(trace, channel)}"
        lines.append(_line("" if i else "names", said))
    if dropped := [plain(name) for name, channel in reading.names.items() if not channel]:
        lines.append(_line("dropped", ", ".join(dropped)))
    for fact in ("step_source", "loss_kind", "loss_form", "loss_base", "loss_window"):
        if (value := trace.facts.get(fact)) is not None:
            lines.append(_line(fact, str(value)))
    lines.append(_line("skipped", counted(trace.lines_skipped, "line")))
    for at, text in reading.skipped:
        lines.append(_line("", f"line {at:,}: {plain(text)}" if at else plain(text)))
    return "\n".join(lines)


def _line(label: str, text: str) -> str:
    return shorten(f"  {label:<{_LABEL}} {text}", _WIDTH)


def _extent(trace: Trace, channel: str) -> str:
    series = trace.series.get(channel)
    if series is None or series.values.ndim != 1 or not series.steps.size:
        return ""
    return f"   {counted(series.rows, 'row')}, steps {series.starts[0]}-{series.steps[-1]}"
