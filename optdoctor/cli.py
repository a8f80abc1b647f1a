"""The command line. Exit codes: 0 nothing grave, 1 a finding, 2 unreadable, 3 our own fault."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from optdoctor import __version__
from optdoctor.findings import SEVERITIES, Diagnosis
from optdoctor.reader import Unreadable
from optdoctor.settings import FAIL_ON, Settings, SettingsError
from optdoctor.trace import Trace

CLEAR, FOUND, UNREADABLE, FAILED = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Failure:
    """A path without a diagnosis."""

    path: str
    reason: str
    remedy: str
    code: int


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="optdoctor", message="%(prog)s %(version)s")
def main() -> None:
    """A doctor for neural-network training: what is wrong, where, since when, what to change."""


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@click.option("-o", "--output", metavar="FILE", help="Write here instead of standard output.")
@click.option("--reader", metavar="NAME", help="Log format, where it is not recognised by itself.")
@click.option("--fail-on", type=click.Choice(FAIL_ON), help="Least severity for exit code 1.")
@click.option("--select", multiple=True, metavar="RULES", help="Only these rules, by comma.")
@click.option("--ignore", multiple=True, metavar="RULES", help="All but these rules, by comma.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto")
@click.option("--ascii", "ascii_only", is_flag=True, help="No braille, no marks.")
def analyze(
    paths: tuple[str, ...],
    form: str,
    output: str | None,
    reader: str | None,
    fail_on: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    color: str,
    ascii_only: bool,
) -> None:
    """Examine training logs or run folders ("-" is standard input) and report.

    A folder with run.json is one run; one with checkpoint-*/trainer_state.json is one run; else
    each file directly in it that is a log. Exit code: 0 nothing at or above --fail-on, 1 something
    is, 2 a path could not be read, 3 optdoctor itself failed; the largest wins.
    """
    settings = _settings(select, ignore)
    runs: list[tuple[Diagnosis, Trace]] = []
    failures: list[Failure] = []
    for path in paths:
        for result in _examine(path, reader, settings):
            if isinstance(result, Failure):
                failures.append(result)
                _complain(result)
            else:
                runs.append(result)
    limit = fail_on or settings.fail_on
    codes = [failure.code for failure in failures]
    codes += [FOUND for diagnosis, _ in runs if _reaches(diagnosis, limit)]
    if form == "json":
        from optdoctor.report import document

        _write(document.render(runs, [(f.path, f.reason, f.remedy) for f in failures]), output)
    elif runs:
        _write_text(runs, output, color, ascii_only)
    sys.exit(max(codes, default=CLEAR))


@main.command()
@click.argument("rule")
def explain(rule: str) -> None:
    """Print the page of one rule: what it finds, why it matters, what to do."""
    from optdoctor.report import explain as page
    from optdoctor.rules import RULES

    for known in RULES:
        if known.name == rule:
            click.echo(page.render(known))
            return
    names = ", ".join(known.name for known in RULES)
    raise click.UsageError(f"no rule is named {rule!r}; known: {names}")


@main.command()
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def rules(form: str) -> None:
    """List the rules."""
    from optdoctor.report import explain as page
    from optdoctor.rules import RULES

    click.echo(page.as_json(RULES) if form == "json" else page.render_list(RULES))


@main.command()
def demo() -> None:
    """Train a tiny GPT-2 in float16 until it breaks, name the cause, treat it, train again."""
    try:
        from optdoctor.demo import run
    except ImportError as error:
        raise click.ClickException(
            f"the demo needs {error.name}: pip install 'optdoctor[huggingface]'"
        ) from error
    sys.exit(run())


def _settings(select: tuple[str, ...], ignore: tuple[str, ...]) -> Settings:
    from dataclasses import replace

    from optdoctor import settings
    from optdoctor.rules import RULES

    try:
        loaded = settings.load()
        if chosen := _names(select):
            loaded = replace(loaded, select=chosen)
        loaded = replace(loaded, ignore=(*loaded.ignore, *_names(ignore)))
        loaded.chosen(RULES)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    return loaded


def _names(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def _examine(
    path: str, reader: str | None, settings: Settings
) -> Iterator[tuple[Diagnosis, Trace] | Failure]:
    from optdoctor import readers
    from optdoctor.engine import diagnose

    try:
        found = [None] if path == "-" else readers.runs_in(Path(path))
    except Unreadable as error:
        yield Failure(path, error.reason, error.remedy, UNREADABLE)
        return
    for one in found:
        name = path if one is None else str(one)
        try:
            trace = readers.read(path, reader) if one is None else readers.read_run(one, reader)
        except Unreadable as error:
            yield Failure(name, error.reason, error.remedy, UNREADABLE)
        except Exception as error:
            reason = f"reading it failed inside optdoctor ({type(error).__name__}: {error})"
            yield Failure(name, reason, "report it with the first lines of the log", FAILED)
        else:
            yield diagnose(trace, settings=settings), trace


def _reaches(diagnosis: Diagnosis, limit: str) -> bool:
    worst = diagnosis.worst
    if worst is None or limit == "never":
        return False
    names = [str(severity) for severity in SEVERITIES]
    return names.index(worst) >= names.index(limit)


def _complain(failure: Failure) -> None:
    from optdoctor.report.wording import plain

    said = f"optdoctor: {failure.path}: {failure.reason}; {failure.remedy}"
    click.echo(plain(" ".join(said.split())), err=True)


def _write_text(
    runs: list[tuple[Diagnosis, Trace]], output: str | None, color: str, ascii_only: bool
) -> None:
    from optdoctor.report import many, text

    if len(runs) == 1:
        report = text.render(*runs[0], ascii=ascii_only)
    else:
        report = many.render_many(runs, ascii=ascii_only)
    if output is not None or color == "never" or (color == "auto" and not sys.stdout.isatty()):
        _write(report, output)
        return
    from rich.console import Console

    forced = True if color == "always" else None
    console = Console(force_terminal=forced, highlight=False, soft_wrap=True)
    console.print(text.coloured(report))


def _write(report: str, output: str | None) -> None:
    if output is None:
        click.echo(report.rstrip("\n").encode("utf-8", "replace"))
        return
    try:
        Path(output).write_text(report.rstrip("\n") + "\n", "utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.UsageError(
            f"{output} cannot be written: {reason}; name another file"
        ) from error
