"""The report as one HTML file: no script, nothing loaded, light and dark, to send and to keep."""

from collections.abc import Sequence
from importlib import resources

from optdoctor import __version__
from optdoctor.findings import Diagnosis, Verdict
from optdoctor.report import many
from optdoctor.report.markup import escaped, isolated, said, table
from optdoctor.report.page_run import MARKS, run_page
from optdoctor.report.wording import counted, origin_name
from optdoctor.trace import Trace

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render(
    runs: Sequence[tuple[Diagnosis, Trace]],
    errors: Sequence[tuple[str, str, str]] = (),
    *,
    cost: str | None = None,
) -> str:
    """The page of `runs`, worst first, and of `errors`: (path, reason, remedy) of the unreadable.

    `cost`, in words, is what only the caller of a single run knows.
    """
    ordered, names = many.worst_first(runs)
    if len(ordered) == 1:
        single = run_page(*ordered[0], name=names[0], prefix="", level=1, cost=cost)
        body = f'{single.top}<main id="main">{single.body}{_errors(errors)}</main>'
        return _document(single.title, body)
    headline = many.verdict_counts(ordered, names) if ordered else "No run was read"
    parts = []
    for number, (run, name) in enumerate(zip(ordered, names, strict=True), 1):
        one = run_page(*run, name=name, prefix=f"r{number}-", level=2)
        parts.append(f'<article id="r{number}">{one.top}{one.body}</article>')
    about = f"<span>{counted(len(ordered), 'run')}, worst first</span>" if ordered else ""
    contents = _contents(ordered, names) if ordered else ""
    body = (
        f'<header class="top"><p class="meta"><b>optdoctor {__version__}</b>{about}</p>'
        f'<h1 style="margin-top:22px">{said(headline)}</h1></header>'
        f'<main id="main">{_errors(errors)}{contents}{"".join(parts)}</main>'
    )
    return _document(headline, body)


def _document(title: str, body: str) -> str:
    css = (resources.files("optdoctor.report") / "page.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en" dir="ltr"><head><meta charset="utf-8">\n'
        f'<meta name="generator" content="optdoctor {__version__}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escaped(title)} \u00b7 optdoctor</title>\n<style>\n{css}</style></head>\n"
        f'<body><a class="skip" href="#main">Skip to the report</a>{body}\n'
        "<footer><div>One file: it holds no script and loads nothing. The page of a rule: "
        "<code>optdoctor explain RULE</code></div></footer></body></html>\n"
    )


def _errors(errors: Sequence[tuple[str, str, str]]) -> str:
    if not errors:
        return ""
    rows = (
        (isolated(origin_name(path, with_folder=True)), escaped(reason), escaped(remedy))
        for path, reason, remedy in errors
    )
    head = [("Path", ""), ("Reason", ""), ("What to do", "")]
    return (
        '<section id="errors"><h2>Could not be read</h2>'
        f"{table(head, rows, 'Paths that could not be read')}</section>"
    )


def _contents(runs: Sequence[tuple[Diagnosis, Trace]], names: Sequence[str]) -> str:
    """One row a run."""
    rows = []
    for number, ((diagnosis, trace), name) in enumerate(zip(runs, names, strict=True), 1):
        _, severity, finding, since = many.row_of(diagnosis, trace)
        unknown = diagnosis.verdict is Verdict.UNKNOWN
        kind = severity or ("unknown" if unknown else "healthy")
        rows.append(
            (
                f'<a href="#r{number}">{isolated(name)}</a>',
                f'<span class="tag {kind}">{MARKS[kind]}{kind.upper()}</span>',
                escaped(finding.removeprefix("unknown: ")) if finding != "healthy" else "",
                escaped(since),
                said(many.loss_at_end(trace)),
            )
        )
    head = [("Run", ""), ("Verdict", "r"), ("First finding", ""), ("since", "n"), ("loss", "n")]
    return (
        f'<section id="runs"><h2>Runs</h2>{table(head, rows, "Runs, worst first")}'
        "<p>Loss: the median of the last 15 rows.</p></section>"
    )
