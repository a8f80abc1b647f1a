"""The command line. Exit codes: 0 nothing grave, 1 a finding, 2 unreadable, 3 our own fault."""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@contextmanager
def _standard_output(code: int = CLEAR) -> Iterator[None]:
    """Ends with `code` where whoever read the output has left, with 3 where it takes no text."""
    try:
        yield
        return
    except BrokenPipeError:
        pass
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error})"
        _complain(Failure("standard output", reason, "give it a place that takes text", FAILED))
        code = max(code, FAILED)
    # What is still buffered would fail once more, and loudly, when the interpreter ends.
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


class _Command(click.Command):
    """A command whose help too may be written to a full disk or a pipe that was closed."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with _standard_output():
            return super().make_context(*args, **more)


class _Group(_Command, click.Group):
    command_class = _Command


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="optdoctor", message="%(prog)s %(version)s")
def main() -> None:
    """A doctor for neural-network training: what is wrong, where, since when, what to change."""


@main.command()
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
    settings, failures = _settings(select, ignore)
    runs: list[tuple[Diagnosis, Trace]] = []
    for path in () if failures else paths:
        for result in _examine(path, reader, settings):
            if isinstance(result, Failure):
                failures.append(result)
            else:
                runs.append(result)
    told = [(f.path, f.reason, f.remedy) for f in failures]
    report = ""
    try:
        if form != "text":
            report = _document(form, runs, told)
        elif runs:
            report = _text(runs, ascii_only, _is_coloured(color, output))
    except Exception as error:
        reason = f"failed inside optdoctor ({type(error).__name__}: {error})"
        remedy = "report it with the first lines of the log"
        failures.append(Failure(f"the {form} report", reason, remedy, FAILED))
    for failure in failures:
        _complain(failure)
    limit = fail_on or settings.fail_on
    codes = [failure.code for failure in failures]
    codes += [FOUND for diagnosis, _ in runs if _reaches(diagnosis, limit)]
    code = max(codes, default=CLEAR)
    if report and output is None:
        _print(report, code)
    elif report and output is not None and (unwritable := _save(report, output)):
        _complain(unwritable)
        code = max(code, unwritable.code)
    sys.exit(code)


@main.command()
@click.argument("rule")
def explain(rule: str) -> None:
    """Print the page of one rule: what it finds, why it matters, what to do."""
    from optdoctor.report import explain as page
    from optdoctor.rule import SYMPTOMS
    from optdoctor.rules import RULES

    for known in RULES:
        if known.name == rule:
            _print(page.render(known))
            return
    if rule in SYMPTOMS:
        _print(page.render_reserved(rule, RULES))
        return
    names = ", ".join(known.name for known in RULES)
    raise click.UsageError(f"no rule is named {rule!r}; known: {names}")


@main.command()
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def rules(form: str) -> None:
    """List the rules."""
    from optdoctor.report import explain as page
    from optdoctor.rules import RULES

    _print(page.as_json(RULES) if form == "json" else page.render_list(RULES))


@main.command()
@click.option(
    "--framework", type=click.Choice(["huggingface", "lightning", "torch"]), default="huggingface"
)
@click.option(
    "--fault",
    type=click.Choice(["underflow", "rounding"]),
    default="underflow",
    help="underflow: float16, breaks at once. rounding: bfloat16, the loss shows it late.",
)
def demo(framework: str, fault: str) -> None:
    """Train a small model until it is sick, name the cause, treat it, train again."""
    try:
        from optdoctor.demo.story import run

        code = run(framework, fault)
    except ImportError as error:
        reason = f"needs {error.name or framework}"
        remedy = f"pip install 'optdoctor[{framework}]', or in a clone pip install '.[{framework}]'"
        _complain(Failure("the demo", reason, remedy, UNREADABLE))
        sys.exit(UNREADABLE)
    sys.exit(code)


def _settings(select: tuple[str, ...], ignore: tuple[str, ...]) -> tuple[Settings, list[Failure]]:
    """The settings; where they are wrong, the defaults and what is wrong."""
    from dataclasses import replace

    from optdoctor import settings
    from optdoctor.rules import RULES

    where = "pyproject.toml"
    try:
        if path := settings.nearest():
            where = os.path.relpath(path)
        loaded = settings.load()
        loaded.chosen(RULES)
        if chosen := _names(select):
            where = "--select"
            loaded = replace(loaded, select=chosen)
            loaded.chosen(RULES)
        where = "--ignore"
        loaded = replace(loaded, ignore=(*loaded.ignore, *_names(ignore)))
        loaded.chosen(RULES)
    except SettingsError as error:
        return Settings(), [Failure(where, error.reason, error.remedy, UNREADABLE)]
    return loaded, []


def _names(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def _examine(
    path: str, reader: str | None, settings: Settings
) -> Iterator[tuple[Diagnosis, Trace] | Failure]:
    from optdoctor import readers
    from optdoctor.engine import diagnose

    try:
        found = [None] if path == "-" else readers.runs_in(path)
        if path != "-":
            _tell_of_the_rest(path, [run for run in found if run is not None])
    except Exception as error:
        yield _failure(path, error)
        return
    for one in found:
        name = path if one is None else str(one)
        try:
            trace = readers.read(path, reader) if one is None else readers.read_run(one, reader)
            diagnosis = diagnose(trace, settings=settings)
        except Exception as error:
            yield _failure(name, error)
        else:
            yield diagnosis, trace


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


def _failure(path: str, error: Exception) -> Failure:
    if isinstance(error, Unreadable):
        return Failure(path, error.reason, error.remedy, UNREADABLE)
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    package = missing.partition(".")[0]
    if package not in ("", "optdoctor"):
        return Failure(path, f"needs {package}", f"pip install {package}", UNREADABLE)
    reason = f"reading it failed inside optdoctor ({type(error).__name__}: {error})"
    return Failure(path, reason, "report it with the first lines of the log", FAILED)


def _reaches(diagnosis: Diagnosis, limit: str) -> bool:
    worst = diagnosis.worst
    if worst is None or limit == "never":
        return False
    names = [str(severity) for severity in SEVERITIES]
    return names.index(worst) >= names.index(limit)


def _complain(failure: Failure) -> None:
    from optdoctor.report.wording import plain

    said = f"optdoctor: {failure.path or repr('')}: {failure.reason}; {failure.remedy}"
    with suppress(OSError):  # the exit code tells it too
        click.echo(plain(" ".join(said.split())), err=True)


def _is_coloured(color: str, output: str | None) -> bool:
    if output is not None or color == "never":
        return False
    return color == "always" or (sys.stdout is not None and sys.stdout.isatty())


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
    form: str, runs: list[tuple[Diagnosis, Trace]], errors: list[tuple[str, str, str]]
) -> str:
    if form == "html":
        from optdoctor.report import page

        return page.render(runs, errors)
    if form == "markdown":
        from optdoctor.report import markdown

        return markdown.render(runs, errors)
    from optdoctor.report import document

    return document.render(runs, errors)


def _print(text: str, code: int = CLEAR) -> None:
    """Writes to standard output; ends the program, with `code` at least, where that fails."""
    with _standard_output(code):
        if sys.stdout is None:
            raise OSError(errno.EBADF, "it is closed")
        click.echo(text.rstrip("\n").encode("utf-8", "replace"))


def _save(report: str, output: str) -> Failure | None:
    try:
        Path(output).write_text(report.rstrip("\n") + "\n", "utf-8")
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error})"
        return Failure(output, reason, "name another file", UNREADABLE)
    return None
