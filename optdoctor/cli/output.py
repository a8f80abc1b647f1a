"""What every command says and how it ends: texts, complaints, exit codes."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

CLEAR, FOUND, UNREADABLE, FAILED = 0, 1, 2, 3
"""Exit codes: nothing grave, a finding, unreadable, our own fault; the largest wins."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A path without a diagnosis."""

    path: str
    reason: str
    remedy: str
    code: int


@contextmanager
def standard_output(code: int = CLEAR) -> Iterator[None]:
    """Ends with `code` where whoever read the output has left, with 3 where it takes no text."""
    try:
        yield
        return
    except BrokenPipeError:
        pass
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error})"
        complain(Failure("standard output", reason, "give it a place that takes text", FAILED))
        code = max(code, FAILED)
    # What is still buffered would fail once more, and loudly, when the interpreter ends.
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


class Command(click.Command):
    """A command whose help too may be written to a full disk or a pipe that was closed."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with standard_output():
            return super().make_context(*args, **more)


def complain(failure: Failure) -> None:
    """Says on standard error, in one line, what went wrong."""
    from optdoctor.report.wording import plain

    said = f"optdoctor: {failure.path or repr('')}: {failure.reason}; {failure.remedy}"
    with suppress(OSError):  # the exit code tells it too
        click.echo(plain(" ".join(said.split())), err=True)


def is_coloured(color: str, output: str | None) -> bool:
    """Whether the report is printed in colours."""
    if output is not None or color == "never":
        return False
    return color == "always" or (sys.stdout is not None and sys.stdout.isatty())


def say(text: str | bytes, code: int = CLEAR) -> None:
    """Writes to standard output; ends the program, with `code` at least, where that fails."""
    with standard_output(code):
        if sys.stdout is None:
            raise OSError(errno.EBADF, "it is closed")
        if isinstance(text, str):
            text = text.rstrip("\n").encode("utf-8", "replace") + b"\n"
        click.echo(text, nl=False)


def save(report: str | bytes, output: str) -> Failure | None:
    """Writes a file; what hindered it, None if nothing did."""
    if isinstance(report, str):
        report = (report.rstrip("\n") + "\n").encode("utf-8", "replace")
    try:
        Path(output).write_bytes(report)
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error})"
        return Failure(output, reason, "name another file", UNREADABLE)
    return None
