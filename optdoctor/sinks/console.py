"""Tells root causes, and prints the report at the end, on standard error."""

import sys
import tempfile
import textwrap
from pathlib import Path
from shlex import quote

from optdoctor.findings import Diagnosis, Notice, Severity, Verdict
from optdoctor.report import text
from optdoctor.report.wording import listed
from optdoctor.rule import SYMPTOMS
from optdoctor.sinks import Place, Sink, report_page
from optdoctor.trace import Trace

WIDTH, INDENT = 80, " " * 11
NAMED = 3
"""Notes of a run without illness that are named."""


class Console(Sink):
    """Lines above a progress bar where one is alive."""

    def __init__(self, out: Path | None = None) -> None:
        self._out = out
        self._told: set[str] = set()

    def tell(self, notices: list[Notice]) -> None:
        """Prints what no other finding explains: a cause once, a symptom also when it worsens.

        A note can wait for the report.
        """
        for notice in notices:
            finding = notice.finding
            harmless = notice.what == "ended" or finding.severity is Severity.NOTE
            known = finding.rule in self._told and finding.rule not in SYMPTOMS
            if not harmless and not known and not finding.causes.found:
                self._told.add(finding.rule)
                self._told.discard(notice.was)
                say(_line(notice))

    def close(self, diagnosis: Diagnosis, trace: Trace, cost: str) -> None:
        """Prints the report of a sick run, a few lines of any other."""
        folder = self._out if self._out and self._out.is_dir() and _lasts(self._out) else None
        if diagnosis.verdict is Verdict.SICK:
            page = report_page.written(folder) if folder else None
            say(text.render(diagnosis, trace, cost=cost, page=_shown(page) if page else None))
        else:
            said = text.one_line(diagnosis, trace) + _notes(diagnosis, folder)
            say(_wrapped(said + self._withdrawn(diagnosis)))

    def _withdrawn(self, diagnosis: Diagnosis) -> str:
        """What was told while training and is true no longer."""
        gone = sorted(self._told - {finding.rule for finding in diagnosis.findings})
        return f" Told while training and found no longer: {', '.join(gone)}." if gone else ""


def _notes(diagnosis: Diagnosis, folder: Path | None) -> str:
    """Which notes were found, and where they are read."""
    names = list(dict.fromkeys(finding.rule for finding in diagnosis.findings))
    if not names:
        return ""
    command = f"optdoctor analyze {quote(_shown(folder))}" if folder else "doctor.diagnosis"
    more = len(names) - NAMED
    named = f"{', '.join(names[:NAMED])} and {more} more" if more > 0 else listed(names)
    return f" {command} shows {'it' if len(diagnosis.findings) == 1 else 'them'}: {named}."


def _shown(page: Path) -> str:
    """Its path from here, where it lies below."""
    here = Path.cwd()
    return str(page.relative_to(here) if page.is_relative_to(here) else page)


def _lasts(folder: Path) -> bool:
    """Whether a reader of the report still finds the folder: one of `tempfile` goes with its user.

    Only folders that `tempfile` named are meant, not all below its folder.
    """
    places = Path(tempfile.gettempdir()).resolve(), folder.resolve()
    if not places[1].is_relative_to(places[0]):
        return True
    first = places[1].relative_to(places[0]).parts[:1]
    return not any(name.startswith(tempfile.gettempprefix()) for name in first)


def _line(notice: Notice) -> str:
    finding = notice.finding
    when = f"step {notice.step}" if notice.step else "before step 1"
    said = f"{finding.severity.upper()} {finding.rule}: {finding.summary}"
    said = f"{notice.was} is now {finding.rule}: {said}" if notice.was else said
    lines = [f"optdoctor  {when}  {said}"]
    lines += [f"           do: {treatment.title}" for treatment in finding.treatments[:1]]
    return "\n".join(map(_wrapped, lines))


def _wrapped(line: str) -> str:
    """With its paths whole: they are there to be copied."""
    return textwrap.fill(
        line, WIDTH, subsequent_indent=INDENT, break_on_hyphens=False, break_long_words=False
    )


def say(message: str) -> None:
    """Prints on standard error without tearing a tqdm bar."""
    if "tqdm" in sys.modules:
        from tqdm import tqdm

        tqdm.write(message, file=sys.stderr)
    else:
        print(message, file=sys.stderr)


def SINK(place: Place) -> Sink:  # noqa: N802 - the registry's constant
    """A console."""
    return Console(place.out)
