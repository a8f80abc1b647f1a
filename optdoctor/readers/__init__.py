"""The registry of log formats, and how a path becomes a trace. Adding a format is adding a file."""

import importlib
import pkgutil
import sys
from functools import cache
from pathlib import Path

from optdoctor.log import Log
from optdoctor.reader import HEAD_BYTES, Reader, Source, Unreadable
from optdoctor.trace import Trace

RECORD = "run.json"
"""The file that makes a folder a run record."""
MAX_BYTES = 1 << 30
"""Size of a log beyond which it is not read into memory."""
FORMATS = (
    "trainer_state.json, Hugging Face console output, CSV with a header, JSON lines, a run folder"
)


@cache
def readers() -> tuple[Reader, ...]:
    """All readers of this folder, by name."""
    modules = (
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    )
    found = [module.READER for module in modules if hasattr(module, "READER")]
    return tuple(sorted(found, key=lambda reader: reader.name))


def read(path: str | Path, reader: str | None = None) -> Trace:
    """The trace of one log or run folder; "-" is standard input.

    Raises:
        Unreadable: the path is missing, is no log, or holds no row or several runs.
    """
    try:
        if str(path) == "-":
            return read_source(Source(_standard_input(), "-"), reader)
        runs = runs_in(path)
        if len(runs) > 1:
            some = ", ".join(str(run) for run in runs[:3])
            raise Unreadable(f"{len(runs)} runs in this folder", f"name one of them: {some}, ..")
        return read_run(runs[0], reader)
    except Unreadable as error:
        raise Unreadable(error.reason, error.remedy, str(path)) from error


def _standard_input() -> bytes:
    remedy = "pipe a log into it or name a file"
    if sys.stdin is None:
        raise Unreadable("standard input is closed", remedy)
    try:
        return sys.stdin.buffer.read()
    except OSError as error:
        raise Unreadable(f"standard input: {error.strerror or error}", remedy) from error


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
        if found := _run_of(path):
            return found
        inside = sorted(path.iterdir())
        found = [p for p in inside if p.is_file() and _claims(p)]
        for folder in inside:
            if folder.is_dir() and not folder.name.startswith((".", "earlier-")):
                found += _run_of(folder)
    except OSError as error:
        raise Unreadable(error.strerror or str(error), "check path and permissions") from error
    if not found:
        raise Unreadable("nothing in this folder is a log that is known", f"known: {FORMATS}")
    return found


def passed_over(folder: Path, runs: list[Path]) -> list[Path]:
    """Logs and runs in `folder` that `runs`, those that it names, leave out: a record goes first.

    The folder of a record holds nothing else; what a Trainer wrote beside it is of the same run.
    """
    if not (folder / "optdoctor-run").is_dir() or (folder / RECORD).is_file():
        return []
    if not all(run.is_relative_to(folder / "optdoctor-run") for run in runs):
        return []
    own = (".", "earlier-", "checkpoint-", "optdoctor-run")
    inside = sorted(folder.iterdir())
    found = [path for path in inside if path.is_file() and _claims(path)]
    folders = [path for path in inside if path.is_dir() and not path.name.startswith(own)]
    return found + [path for path in folders if _run_of(path)]


def _run_of(folder: Path) -> list[Path]:
    """The run that a folder is: a record, one record an optimizer, a Trainer's output."""
    if (folder / RECORD).is_file():
        return [folder]
    if several := sorted(folder.glob(f"[0-9]*/{RECORD}")):
        return [record.parent for record in several]
    if (folder / "optdoctor-run").is_dir() and (inside := _run_of(folder / "optdoctor-run")):
        return inside
    states = list(folder.glob("checkpoint-*/trainer_state.json"))
    return [newest_state(states)] if states else []


def newest_state(states: list[Path]) -> Path:
    """The trainer state of the highest checkpoint."""

    def step(path: Path) -> int:
        tail = path.parent.name.rpartition("-")[2]
        return int(tail) if tail.isdigit() else -1

    return max(states, key=step)


def read_run(path: Path, reader: str | None = None) -> Trace:
    """The trace of one file or one run folder.

    Raises:
        Unreadable: as `read`.
    """
    if path.is_dir() or path.name == RECORD:
        from optdoctor.readers.run_record import read_folder

        return read_folder(path if path.is_dir() else path.parent)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Unreadable(f"larger than {MAX_BYTES >> 30} GiB", "cut the log and read its parts")
        data = path.read_bytes()
    except OSError as error:
        raise Unreadable(error.strerror or str(error), "check the file's permissions") from error
    return read_source(Source(data, str(path), path), reader)


def read_source(source: Source, name: str | None = None) -> Trace:
    """The trace of these bytes, in the format `name` or the one that claims them.

    Raises:
        Unreadable: as `read`.
    """
    if not source.data.strip():
        what = "standard input" if source.origin == "-" else "the file"
        raise Unreadable(f"{what} is empty", "give it what the training writes")
    reader = _named(name) if name else _claiming(source)
    log = Log(aliases=reader.aliases)
    reader.read(source, log)
    if not log.has_rows:
        raise Unreadable(f"no row of a {reader.name} log in it", f"known formats: {FORMATS}")
    return log.trace(source.origin, reader.name)


def _named(name: str) -> Reader:
    for reader in readers():
        if reader.name == name:
            return reader
    known = ", ".join(reader.name for reader in readers())
    raise Unreadable(f"no reader is named {name!r}", f"known: {known}")


def _claiming(source: Source) -> Reader:
    head = source.head
    for reader in readers():
        if reader.sniff(head):
            return reader
    raise Unreadable(
        "not a training log in a known format", f"known: {FORMATS}; or name one with --reader"
    )


def _claims(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            source = Source(file.read(HEAD_BYTES), str(path))
        return any(reader.sniff(source.head) for reader in readers())
    except OSError:
        return False
