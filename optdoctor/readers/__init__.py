"""The registry of log formats, and how a path becomes a trace. Adding a format is adding a file."""

import stat
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from optdoctor.errors import did_you_mean
from optdoctor.readers.registry import candidates, readers
from optdoctor.reading import dispatch, epoch_files, folders
from optdoctor.reading.dispatch import Claim
from optdoctor.reading.event_folder import event_files
from optdoctor.reading.folders import RECORD, newest_state, run_of
from optdoctor.reading.log import Log
from optdoctor.reading.reader import Head, Rank, Reader, Source, Unreadable
from optdoctor.reading.source import Piped
from optdoctor.trace import Reading, Trace

__all__ = [
    "RECORD",
    "claim",
    "claiming",
    "claims",
    "named",
    "newest_state",
    "passed_over",
    "read",
    "read_claimed",
    "read_run",
    "read_source",
    "readers",
    "run_of",
    "runs_in",
]


def read(path: str | Path, reader: str | None = None) -> Trace:
    """The trace of one log or run folder; "-" is standard input, "s3://.." a remote file.

    Raises:
        Unreadable: the path is missing, is no log, or holds no row or several runs.
    """
    from optdoctor.reading.remote import is_remote, open_remote

    try:
        if str(path) == "-":
            return read_source(_standard_input(), reader)
        if is_remote(name := str(path)):
            source = Source(lambda: open_remote(name), name, name=name.rpartition("/")[2])
            return read_source(source, reader)
        runs = runs_in(path)
        own = Path(path)
        if len(runs) > 1 and own in runs:  # the folder is one itself, beside others
            with suppress(Unreadable):
                return read_run(own, reader)
            runs.remove(own)
        if len(runs) > 1:
            some = ", ".join(str(run) for run in runs[:3])
            raise Unreadable(f"{len(runs)} runs in this folder", f"name one of them: {some}, ..")
        return read_run(runs[0], reader)
    except Unreadable as error:
        raise Unreadable(error.reason, error.remedy, str(path)) from error


def _standard_input() -> Source:
    if sys.stdin is None or sys.stdin.closed:
        raise Unreadable("standard input is closed", "pipe a log into it or name a file")
    return Piped(sys.stdin.buffer, "-")


def runs_in(path: str | Path) -> list[Path]:
    """The runs that a path names: itself, or those in a folder and directly below it.

    Raises:
        Unreadable: it does not exist, or no reader claims anything in it.
    """
    if path == "":  # which Path would take for the working folder
        raise Unreadable("the path is empty", "name a log or a run folder")
    path = Path(path)
    try:
        if not path.exists():
            raise Unreadable("no such file or folder", "check the path")
        if not path.is_dir():
            return [path]
        found = folders.runs_in(path, claims)
    except OSError as error:
        raise Unreadable(error.strerror or str(error), "check path and permissions") from error
    if not found:
        remedy = f"name a file in it, or '{path / '**'}' for what lies deeper"
        raise Unreadable("nothing in this folder is a log that is known", remedy)
    return found


def passed_over(folder: Path, runs: list[Path]) -> list[Path]:
    """Logs and runs in `folder` that `runs`, those that it names, leave out: a record goes first.

    The folder of a record holds nothing else; what a Trainer wrote beside it is of the same run.
    """
    return folders.passed_over(folder, runs, claims)


def read_run(path: Path, reader: str | None = None) -> Trace:
    """The trace of one file or one run folder.

    Raises:
        Unreadable: as `read`.
    """
    # Both are loaded only where they are needed.
    if path.is_dir() and not (path / RECORD).is_file() and event_files(path):
        from optdoctor.readers import tensorboard

        return tensorboard.read_folder(path)
    if path.is_dir() and not (path / RECORD).is_file() and epoch_files.epoch_files(path):
        return read_source(epoch_files.source_of(path), reader or epoch_files.FORMAT)
    if path.is_dir() or path.name == RECORD:
        from optdoctor.readers import run_record

        return run_record.read_folder(path if path.is_dir() else path.parent)
    try:
        kind = path.stat().st_mode
        if stat.S_ISREG(kind):
            return read_source(Source.of_file(path), reader)
        if stat.S_ISFIFO(kind):
            with path.open("rb") as pipe:
                return read_source(Piped(pipe, str(path), path), reader)
    except OSError as error:
        raise Unreadable(error.strerror or str(error), "check the file's permissions") from error
    raise Unreadable("a device or a socket", "name a log or a run folder")


def read_source(source: Source, name: str | None = None) -> Trace:
    """The trace of these bytes, in the format `name` or the one that claims them.

    Raises:
        Unreadable: as `read`.
    """
    try:
        found = claim(source, name)
        return read_claimed(found, Log(aliases=found.reader.aliases))
    except OSError as error:
        remedy = "check the file and your access to it"
        raise Unreadable(error.strerror or str(error), remedy) from error


def claim(source: Source, name: str | None = None) -> Claim:
    """The reader of these bytes: the one named `name`, or the one whose format they show.

    Raises:
        Unreadable: as `read`.
    """
    head = source.head
    if not head.data.strip() and not source.has_more:
        what = "standard input" if source.origin == "-" else "the file"
        raise Unreadable(f"{what} is empty", "give it what the training writes")
    if head.data[257:262] == b"ustar":
        raise Unreadable("a tar archive", "unpack it and name the log")
    if name:
        return Claim(named(name), f"the reader {name} was asked for", source)
    found = dispatch.claim_of(source, candidates)
    if found is None:
        raise dispatch.unknown(head, readers())
    return found


def read_claimed(claim: Claim, log: Log) -> Trace:
    """The trace of what a reader claimed; `log` is filled meanwhile.

    Raises:
        Unreadable: as `read`.
    """
    reader, source = claim.reader, claim.source
    reader.read(source, log)
    if source.damage and log.has_rows:
        log.event(log.last_step, "gap", source.damage)
    if not log.has_rows:
        reason = f"no row of a {reader.name} log in it"
        raise Unreadable(reason, dispatch.known(readers()))
    trace = log.trace(source.origin, reader.name)
    reading = trace.reading or Reading()
    is_guess = reader.rank is Rank.GUESS or trace.facts.get("loss_kind") == "unknown"
    guessed = reading.guessed or is_guess
    return replace(trace, reading=replace(reading, why=claim.why, guessed=guessed))


def named(name: str) -> Reader:
    """The reader of that name.

    Raises:
        Unreadable: there is none.
    """
    for reader in readers():
        if reader.name == name:
            return reader
    remedy = did_you_mean(name, (reader.name for reader in readers()), "")
    listed = "`optdoctor formats` lists them"
    raise Unreadable(f"no reader is named {name!r}", f"{remedy} {listed}".strip())


def claiming(head: Head) -> Reader | None:
    """The reader whose format the beginning shows: of the lowest rank, then with the most rows."""
    return dispatch.claiming(head, candidates)


def claims(path: Path) -> bool:
    """Whether any reader claims a file; only its beginning is read."""
    try:
        return path.is_file() and claiming(Source.of_file(path).head) is not None
    except (OSError, Unreadable):
        return False
