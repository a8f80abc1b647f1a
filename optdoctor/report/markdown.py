"""The report as Markdown for an issue on GitHub: nothing in it links, pings or becomes HTML."""

import re
from collections.abc import Iterable, Sequence

from optdoctor import __version__
from optdoctor.findings import Diagnosis
from optdoctor.report import many, slots, text
from optdoctor.report.account import BASIS, SAFETY, WHEN, Account, Remedy, Told, account
from optdoctor.report.wording import counted, origin_name, plain
from optdoctor.trace import Trace

_SPLIT = "<!-- -->"
"""A comment: it breaks what GitHub would make of the text around it, and shows as nothing."""
_PUNCTUATION = re.compile(r"([\\`*_{}\[\]~|])")
_BREAKS = (
    (re.compile(r"@(?=\w)"), f"@{_SPLIT}"),  # a mention
    (re.compile(r"#(?=\d)"), f"#{_SPLIT}"),  # an issue
    (re.compile(r"\b(GH-)(?=\d)", re.I), rf"\1{_SPLIT}"),
    (re.compile(r":(?=//)"), f":{_SPLIT}"),  # an address
    (re.compile(r"\b(www)(?=\.)", re.I), rf"\1{_SPLIT}"),
    (re.compile(r":(?=[a-z0-9_+\\-]+:)"), f":{_SPLIT}"),  # an emoji
    (re.compile(r"\$"), "<span>$</span>"),  # a formula
)
_BLOCK = re.compile(r"^(?:([-+=>#])|(\d+)([.)])(?=\s|$))")


def render(
    runs: Sequence[tuple[Diagnosis, Trace]],
    errors: Sequence[tuple[str, str, str]] = (),
    *,
    cost: str | None = None,
) -> str:
    """The report of `runs`, worst first, and of `errors`: (path, reason, remedy) of the unreadable.

    `cost`, in words, is what only the caller of a single run knows.
    """
    ordered, names = many.worst_first(runs)
    if len(ordered) == 1:
        blocks = [*_run(*ordered[0], names[0], 2, cost), *_errors(errors)]
        return "\n\n".join(blocks) + "\n"
    head = many.verdict_counts(ordered, names) if ordered else "No run was read."
    blocks = [f"## {escaped(head)}", *_errors(errors)]
    if ordered:
        rows = []
        for run, name in zip(ordered, names, strict=True):
            _, severity, finding, since = many.row_of(*run)
            verdict = severity or str(run[0].verdict)
            shown = escaped(finding.removeprefix("unknown: "))
            end = many.loss_at_end(run[1])
            rows.append((code(name), verdict, shown if finding != "healthy" else "", since, end))
        blocks.append(_table(("Run", "Verdict", "First finding", "since", "loss"), rows))
    for run, name in zip(ordered, names, strict=True):
        blocks += ["---", *_run(*run, name, 3, None)]
    return "\n\n".join(blocks) + "\n"


def escaped(words: str) -> str:
    """`words` as they are, on one line, wherever they stand."""
    shown = _PUNCTUATION.sub(r"\\\1", plain(words).strip())
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for pattern, split in _BREAKS:
        shown = pattern.sub(split, shown)
    return _BLOCK.sub(_unblocked, shown)


def code(words: str) -> str:
    """`words` as code in a line."""
    shown = plain(words).strip()
    fence = "`" * (_longest(shown) + 1)
    pad = " " if len(fence) > 1 else ""
    return f"{fence}{pad}{shown}{pad}{fence}" if shown else ""


def block(lines: Iterable[str], language: str = "") -> str:
    """Lines as a fenced block."""
    shown = [plain(line) for line in lines]
    fence = "`" * max(max(map(_longest, shown), default=0) + 1, 3)
    return "\n".join((f"{fence}{language}", *shown, fence))


def _unblocked(match: re.Match[str]) -> str:
    return f"\\{match[1]}" if match[1] else f"{match[2]}\\{match[3]}"


def _longest(words: str) -> int:
    return max((len(run) for run in re.findall("`+", words)), default=0)


def _run(
    diagnosis: Diagnosis, trace: Trace, name: str, level: int, cost: str | None
) -> Iterable[str]:
    told = account(diagnosis, trace, cost)
    head, sub = "#" * level, "#" * (level + 1)
    yield f"{head} {told.word}: {escaped(told.headline)}"
    yield _about(trace, name)
    yield from (escaped(line) for line in told.lead)
    if drawn := text.loss_curve(diagnosis, trace):
        yield block(drawn)
    for finding in told.findings:
        yield from _finding(finding, sub)
    if told.possible:
        yield f"{sub} Could it be something else?"
        rows = (
            (code(p.rule), p.result, escaped(p.seen), ", ".join(map(str, p.explains)))
            for p in told.possible
        )
        yield _table(("Possible cause", "Result", "What was seen", "Of finding"), rows)
    if told.record:
        yield "To decide between the rest, log next time:"
        yield "\n".join(
            f"- {code(r.channel)}, {escaped(r.how)}: {escaped(r.decides)}" for r in told.record
        )
    if told.remedies:
        yield f"{sub} What to do"
    for number, remedy in enumerate(told.remedies, 1):
        yield from _remedy(number, remedy, sub)
    yield from _rest(told, sub)


def _about(trace: Trace, name: str) -> str:
    first, last = trace.steps
    optimizer = trace.facts.get("optimizer")
    parts = [f"optdoctor {__version__}"]
    parts += [f"run {code(name)}"] if name else []
    parts += [f"{slots.unit(trace)}s {first:,} to {last:,}"] if trace.series else []
    parts += [code(str(optimizer))] if optimizer else []
    parts += [counted(len(trace.tensors), "tensor")] if trace.tensors else []
    parts += [f"read as {code(trace.reader)}" if trace.reader else "recorded live"]
    if trace.lines_skipped:
        parts.append(f"{counted(trace.lines_skipped, 'line')} skipped")
    return ", ".join(parts)


def _finding(told: Told, sub: str) -> Iterable[str]:
    yield f"{sub} {told.number} {escaped(told.heading)}"
    about = [f"**{told.severity}**", code(told.rule), told.span]
    for label, numbers in (("explained by", told.explained_by), ("cause of", told.cause_of)):
        about += [f"{label} {', '.join(map(str, numbers))}"] if numbers else []
    yield ", ".join(about)
    yield escaped(told.what)
    rows = (
        (escaped(r.what), escaped(r.value), escaped(r.limit), code(r.channel))
        for r in told.evidence
    )
    yield _table(("Seen", "Value", "Limit", "Channel"), rows)
    slot_rows = (("where", told.where), ("since", told.since), ("how sure", told.sure))
    yield "\n".join(f"- {label}: {escaped(words)}" for label, words in slot_rows if words)


def _remedy(number: int, remedy: Remedy, sub: str) -> Iterable[str]:
    treatment = remedy.treatment
    yield f"{sub}# {number} {escaped(remedy.title)}"
    of = ", ".join(map(str, remedy.of))
    yield f"**{SAFETY[treatment.safety]}**, {WHEN[treatment.when]}, for finding {of}"
    for label, line in remedy.code:
        yield f"{escaped(label)}:"
        yield block(line.split("\n"), "python")
    changes = [f"{code(knob)} {code(old)} to {code(new)}" for knob, old, new in remedy.changes]
    basis = f"Basis: {BASIS[treatment.basis]}"
    basis += f": {escaped(treatment.source)}" if treatment.source else ""
    yield (f"Changes {', '.join(changes)}. " if changes else "") + basis


def _rest(told: Account, sub: str) -> Iterable[str]:
    if told.facts:
        yield f"{sub} The run"
        yield _table(("Fact", "Value"), ((code(k), code(v)) for k, v in told.facts))
    if told.unexamined:
        yield f"{sub} Not examined"
        rows = ((code(row.rule), escaped(row.seen)) for row in told.unexamined)
        yield _table(("Rule", "Reason"), rows)
    if told.ways:
        yield "A log cannot hold what happens inside the optimizer. To look inside:"
        yield from (block([line], "python") for _, line in told.ways)
    if told.silent:
        yield f"Looked and found nothing: {', '.join(map(code, told.silent))}."
    if told.notes:
        yield "\n".join(f"- {escaped(note)}" for note in told.notes)
    if told.cost:
        yield f"Cost of the doctor: {escaped(told.cost)}"


def _errors(errors: Sequence[tuple[str, str, str]]) -> Iterable[str]:
    if errors:
        yield "### Could not be read"
        rows = (
            (code(origin_name(path, with_folder=True)), escaped(reason), escaped(remedy))
            for path, reason, remedy in errors
        )
        yield _table(("Path", "Reason", "What to do"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    # In a table a pipe ends the cell even inside code, unless it is escaped.
    whole = ([re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells] for cells in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in whole)
