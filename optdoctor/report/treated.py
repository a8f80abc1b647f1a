"""That a run was treated: whatever is found is found of what treatments left of it."""

from optdoctor.report.wording import listed
from optdoctor.trace import Trace


def treated(trace: Trace) -> str:
    """`float32-state from step 1 and step-guard from step 9 to 40`; "" where none acted."""
    spans: list[tuple[str, int, int | None]] = []
    for event in trace.events:
        if event.kind == "treatment" and isinstance(event.new, str):
            spans.append((event.new, event.step + 1, None))
        if event.kind == "undo" and isinstance(event.old, str):
            spans = [
                (name, first, event.step if name == event.old and last is None else last)
                for name, first, last in spans
            ]
    told = [
        f"{name} from step {first:,}" + ("" if last is None else f" to {last:,}")
        for name, first, last in spans
    ]
    return listed(told) if told else ""
