"""`optdoctor analyze PATH...`: logs in, reports out."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from optdoctor.analysis import Analysis, analyze_runs, distinct, expanded
from optdoctor.cli.output import (
    CLEAR,
    FAILED,
    FOUND,
    UNREADABLE,
    Command,
    Failure,
    complain,
    is_coloured,
    save,
    say,
)
from optdoctor.cli.settings import reaches, settings_of
from optdoctor.findings import Diagnosis
from optdoctor.settings import FAIL_ON, Settings
from optdoctor.trace import Trace

_WORTH_A_PROCESS = 8
"""Runs from which on they are read in processes of their own, under a progress bar."""


@click.command("analyze", cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown", "html"]),
    default="text",
    help="markdown is for an issue, html is one file without scripts.",
)
@click.option("-o", "--output", metavar="FILE", help="Write here instead of standard output.")
@click.option(
    "--reader",
    metavar="NAME",
    help="Log format, where it is not recognised by itself; a wrong name lists them.",
)
@click.option(
    "--explain-reading",
    is_flag=True,
    help="Say first which reader read a file and why, what became of the names, what it skipped.",
)
@click.option("--jobs", type=click.IntRange(0), default=0, help="Processes; 0: one a core.")
@click.option("--fail-on", type=click.Choice(FAIL_ON), help="Least severity for exit code 1.")
@click.option("--select", multiple=True, metavar="RULES", help="Only these rules, by comma.")
@click.option("--ignore", multiple=True, metavar="RULES", help="All but these rules, by comma.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto")
@click.option("--ascii", "ascii_only", is_flag=True, help="No braille, no marks.")
def COMMAND(  # noqa: N802 - the registry's constant
    paths: tuple[str, ...],
    form: str,
    output: str | None,
    reader: str | None,
    explain_reading: bool,
    jobs: int,
    fail_on: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    color: str,
    ascii_only: bool,
) -> None:
    """Examine training logs or run folders ("-" is standard input) and report.

    A folder with run.json is one run; one with checkpoint-*/trainer_state.json or with event files
    is one run; else each file directly in it that is a log. A quoted pattern such as "runs/**" is
    every run that it matches. Exit code: 0 nothing at or above --fail-on, 1 something is, 2 a path
    could not be read, 3 optdoctor itself failed; the largest wins.
    """
    settings, failures = settings_of(select, ignore)
    runs: list[tuple[Diagnosis, Trace]] = []
    for found in () if failures else _analyses(paths, reader, settings, jobs):
        if found.diagnosis is None or found.trace is None:
            code = FAILED if found.is_ours else UNREADABLE
            failures.append(Failure(found.path, found.reason, found.remedy, code))
        else:
            runs.append((found.diagnosis, found.trace))
    told = [(f.path, f.reason, f.remedy) for f in failures]
    report = ""
    try:
        if form != "text":
            report = _document(form, runs, told, explain_reading)
        elif runs:
            report = _text(runs, ascii_only, is_coloured(color, output))
        if explain_reading and form == "text":
            report = "\n\n".join([*_readings(runs), report])
    except Exception as error:
        reason = f"failed inside optdoctor ({type(error).__name__}: {error})"
        remedy = "report it with the first lines of the log"
        failures.append(Failure(f"the {form} report", reason, remedy, FAILED))
    for failure in failures:
        complain(failure)
    limit = fail_on or settings.fail_on
    codes = [failure.code for failure in failures]
    codes += [FOUND for diagnosis, _ in runs if reaches(diagnosis, limit)]
    code = max(codes, default=CLEAR)
    if report and output is None:
        say(report, code)
    elif report and output is not None and (unwritable := save(report, output)):
        complain(unwritable)
        code = max(code, unwritable.code)
    sys.exit(code)


def _analyses(
    paths: tuple[str, ...], reader: str | None, settings: Settings, jobs: int
) -> list[Analysis]:
    """Every run that the paths name: many of them in processes of their own."""
    runs = list(distinct(one for path in paths for one in _expanded(path)))
    jobs = min(jobs or os.cpu_count() or 1, len(runs))
    with _progress(len(runs)) as progress:
        if jobs == 1 or len(runs) < _WORTH_A_PROCESS:
            return analyze_runs(runs, reader=reader, settings=settings, progress=progress)
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        # Not forked: libraries that are loaded by now may have threads.
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as executor:
            return analyze_runs(
                runs, reader=reader, settings=settings, executor=executor, progress=progress
            )


def _expanded(path: str) -> list[str | Analysis]:
    found = list(expanded(path))
    if os.path.isdir(path):
        _tell_of_the_rest(path, [Path(run) for run in found if isinstance(run, str)])
    return found


@contextmanager
def _progress(runs: int) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error where somebody watches and it is worth while."""
    if runs < _WORTH_A_PROCESS or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("optdoctor"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=runs)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _readings(runs: list[tuple[Diagnosis, Trace]]) -> list[str]:
    from optdoctor.report import reading

    return [reading.render(trace) for _, trace in runs]


def _tell_of_the_rest(path: str, runs: list[Path]) -> None:
    """Says on standard error what stands in a folder and is not read, because a record is."""
    from optdoctor import readers
    from optdoctor.report.wording import counted, plain

    if passed := readers.passed_over(Path(path), runs):
        first = passed[0].name + (", .." if len(passed) > 1 else "")
        read = counted(len(runs), "run record")
        said = f"optdoctor: {path}: {read} read; {counted(len(passed), 'log')} passed over, name"
        with suppress(OSError):
            click.echo(plain(f"{said} {'it' if len(passed) == 1 else 'them'}: {first}"), err=True)


def _text(runs: list[tuple[Diagnosis, Trace]], ascii_only: bool, coloured: bool) -> str:
    from optdoctor.report import many, text

    if len(runs) == 1:
        report = text.render(*runs[0], ascii=ascii_only)
    else:
        report = many.render_many(runs, ascii=ascii_only)
    if not coloured:
        return report
    from rich.console import Console

    # Not to standard output: rich would answer a closed pipe with an exit code of its own.
    console = Console(file=io.StringIO(), force_terminal=True, highlight=False, soft_wrap=True)
    with console.capture() as captured:
        console.print(text.coloured(report))
    return captured.get()


def _document(
    form: str,
    runs: list[tuple[Diagnosis, Trace]],
    errors: list[tuple[str, str, str]],
    with_reading: bool,
) -> str:
    if form == "html":
        from optdoctor.report import page

        return page.render(runs, errors)
    if form == "markdown":
        from optdoctor.report import markdown

        return markdown.render(runs, errors)
    from optdoctor.report import document

    return document.render(runs, errors, with_reading=with_reading)
