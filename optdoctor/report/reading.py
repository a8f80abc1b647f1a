"""How a log was read: by which reader and why, what became of each name, what was skipped."""

import textwrap
from typing import Any

from optdoctor.report.own_steps import trace_as_logged
from optdoctor.report.wording import counted, origin_name, plain, shorten
from optdoctor.trace import Trace

FACTS = ("step_source", "loss_kind", "loss_form", "loss_base", "loss_window", "nan_filter")
"""Facts that say what the numbers of a log are."""
_WIDTH = 80
_LABEL = 11
_NAME = 34  # columns of a name at most


def render(trace: Trace) -> str:
    """A few lines; a name of the log stands before the channel that it became."""
    trace = trace_as_logged(trace)
    reading = trace.reading
    lines = [f"{origin_name(trace.origin)} read by {trace.reader or 'nobody'}"]
    if reading is None:
        return lines[0]
    if reading.why:
        lines += _lines("why", reading.why)
    if reading.guessed:
        lines += _lines("guess", "what these numbers mean is guessed, not known")
    taken = {name: channel for name, channel in reading.names.items() if channel}
    shown = [shorten(plain(name), _NAME) for name in taken]
    wide = max(map(len, shown), default=0)
    for i, (name, channel) in enumerate(zip(shown, taken.values(), strict=True)):
        said = f"{name:<{wide}} -> {_became(trace, channel)}"
        lines.append(f"{'' if i else 'names':<{_LABEL}}{said}")
    if dropped := [plain(name) for name, channel in reading.names.items() if not channel]:
        lines += _lines("dropped", ", ".join(dropped))
    facts = [f"{name} {trace.facts[name]}" for name in FACTS if trace.facts.get(name) is not None]
    lines += _lines("facts", ", ".join(facts)) if facts else []
    lines += _lines("skipped", counted(trace.lines_skipped, "line"))
    for at, text in reading.skipped:
        said = f"line {at:,}: {plain(text)}" if at else plain(text)
        lines.append(f"{'':<{_LABEL}}{shorten(said, _WIDTH - _LABEL)}")
    return "\n".join(lines)


def document(trace: Trace) -> dict[str, Any] | None:
    """The same for other programs."""
    reading = trace.reading
    if reading is None:
        return None
    return {
        "why": reading.why,
        "guessed": reading.guessed,
        "names": {name: channel or None for name, channel in reading.names.items()},
        "skipped": [{"line": at or None, "text": text} for at, text in reading.skipped],
    }


def _became(trace: Trace, channel: str) -> str:
    """What a name became, and how many rows of it there are."""
    said = "a metric" if channel.startswith("metric:") else channel
    series = trace.series.get(channel)
    if series is None or series.values.ndim != 1 or not series.steps.size:
        return said
    first, last = series.starts[0], series.steps[-1]
    at = f"step {first}" if first == last else f"steps {first}-{last}"
    return f"{said}, {counted(series.rows, 'row')}, {at}"


def _lines(label: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(plain(text), _WIDTH - _LABEL, break_on_hyphens=False) or [""]
    return [f"{'' if i else label:<{_LABEL}}{line}" for i, line in enumerate(wrapped)]
