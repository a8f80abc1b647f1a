"""Logs in, diagnoses out: one path, or many at once in other processes."""

import fnmatch
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from optdoctor import engine, readers
from optdoctor.findings import Diagnosis
from optdoctor.reading.folders import real_paths
from optdoctor.reading.reader import Unreadable
from optdoctor.settings import Settings
from optdoctor.trace import Trace

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

KEPT_ROWS = 4096
"""Rows of a channel that come back from another process: more than any report draws."""


@dataclass(frozen=True, slots=True, repr=False)
class Analysis:
    """What became of one run: a diagnosis and its trace, or the reason why there is none."""

    path: str
    diagnosis: Diagnosis | None = None
    trace: Trace | None = None
    reason: str = ""
    remedy: str = ""
    is_ours: bool = False
    """Whether optdoctor failed, and not the file."""

    def __repr__(self) -> str:
        if self.diagnosis is None:
            return f"<Analysis of {self.path!r}: {self.reason}>"
        found = ", ".join(finding.rule for finding in self.diagnosis.findings)
        return f"<Analysis of {self.path!r}: {self.diagnosis.verdict}{found and f' ({found})'}>"


def analyze(
    path: str | Path, *, reader: str | None = None, settings: Settings | None = None
) -> Analysis:
    """Reads and examines one run: a file, the folder of a run, or "-". Raises nothing."""
    name = str(path)
    try:
        trace = readers.read(path, reader)
        return Analysis(name, engine.diagnose(trace, settings=settings), trace)
    except Exception as error:
        return failed(name, error)


def analyze_many(
    paths: str | Path | Iterable[str | Path],
    *,
    reader: str | None = None,
    settings: Settings | None = None,
    executor: "Executor | None" = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Analysis]:
    """Reads and examines every run that the paths name, in their order. Raises nothing.

    A path may be a file, a folder of runs or a pattern such as `runs/**`. `executor` is any of
    `concurrent.futures` or one with its interface, such as `dask.distributed`'s
    `Client.get_executor()`; without it the runs are read one after another. What comes back from
    it keeps at most `KEPT_ROWS` rows a channel. `progress` is told how many of how many are done.
    """
    named = [paths] if isinstance(paths, str | Path) else paths
    runs = distinct(one for path in named for one in expanded(path))
    return analyze_runs(
        list(runs), reader=reader, settings=settings, executor=executor, progress=progress
    )


def analyze_runs(
    runs: Sequence[str | Analysis],
    *,
    reader: str | None = None,
    settings: Settings | None = None,
    executor: "Executor | None" = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Analysis]:
    """`analyze_many` of paths that were expanded before; what already failed stays as it is."""
    done = {place: one for place, one in enumerate(runs) if isinstance(one, Analysis)}
    waiting: dict[Future[Analysis], int] = {}
    for place, run in enumerate(runs):
        if isinstance(run, Analysis):
            continue
        if executor is None or run == "-":  # whose standard input is ours
            done[place] = analyze(run, reader=reader, settings=settings)
            _tell(progress, len(done), len(runs))
            continue
        try:
            waiting[executor.submit(_analyze_slim, run, reader, settings)] = place
        except RuntimeError as error:  # it is broken, or was shut down
            done[place] = failed(run, error)
    for future in _completed(waiting):
        place = waiting[future]
        try:
            done[place] = future.result()
        except Exception as error:  # the process died, or what it returned cannot travel
            done[place] = failed(str(runs[place]), error)
        _tell(progress, len(done), len(runs))
    return [done[place] for place in range(len(runs))]


def _completed(waiting: "dict[Future[Analysis], int]") -> "Iterator[Future[Analysis]]":
    """The futures, as they come to an end."""
    if waiting:
        from concurrent.futures import as_completed  # not loaded where one log is read

        yield from as_completed(waiting)


def distinct(runs: Iterable[str | Analysis]) -> Iterator[str | Analysis]:
    """Each run once, however many paths name it."""
    seen: set[str] = set()
    for run in runs:
        key = run if isinstance(run, str) else run.path
        if key not in seen:
            seen.add(key)
            yield run


def _tell(progress: Callable[[int, int], None] | None, done: int, of: int) -> None:
    if progress is not None:
        progress(done, of)


def expanded(path: str | Path) -> Iterator[str | Analysis]:
    """The runs that a path names, each as the path of one run; or why there is none."""
    name = str(path)
    try:
        if name == "-" or "://" in name:
            yield name
        elif glob.has_magic(name) and not os.path.lexists(name):
            yield from _matching(name)
        else:
            yield from map(str, readers.runs_in(path))
    except Exception as error:
        yield failed(name, error)


def _matching(pattern: str) -> Iterator[str]:
    """Every run that the pattern names; what is no log among them is passed over in silence."""
    runs: dict[str, None] = {}
    folders: list[str] = []
    for match in sorted(_matches(pattern)):
        if any(Path(match).is_relative_to(folder) for folder in folders):
            continue
        inside = readers.run_of(Path(match)) if os.path.isdir(match) else []
        if inside:
            folders.append(match)
            runs |= dict.fromkeys(map(str, inside))
        elif os.path.isfile(match) and readers.claims(Path(match)):
            runs[match] = None
    if not runs:
        raise Unreadable("no log matches this pattern", "check it; ** goes into folders")
    yield from runs


def _matches(pattern: str) -> set[str]:
    """What a pattern names, as `glob` finds it; but `**` goes into no link, nor finds one that
    leads out of where it begins. A link that another part names is followed, as the shell does.
    """
    found: set[str] = set()
    real = real_paths()
    parts = tuple(part for part in pattern.split("/") if part)
    waiting = [("/" if pattern.startswith("/") else "", parts, "")]
    seen = set(waiting)
    while waiting:
        at, rest, root = waiting.pop()
        if not rest:
            if not root or Path(real(at)).is_relative_to(real(root)):
                found.add(at)
            continue
        part, after = rest[0], rest[1:]
        names: Iterable[str]
        if part == "**":
            root = root or at or "."
            folders = [os.path.join(at, name) for name in _names(at) if name[0] != "."]
            folders = [path for path in folders if os.path.isdir(path) and not os.path.islink(path)]
            further = [(at, after or ("*",), root), *((path, rest, root) for path in folders)]
            further += [] if after or not at else [(at, (), root)]
        else:
            if glob.has_magic(part):
                visible = (name for name in _names(at) if name[0] != "." or part[0] == ".")
                names = fnmatch.filter(visible, part)
            else:
                names = [part] if os.path.lexists(os.path.join(at, part)) else []
            further = [(os.path.join(at, name), after, root) for name in names]
        waiting += [one for one in further if one not in seen]
        seen.update(further)
    return {path for path in found if os.path.isdir(path)} if pattern.endswith("/") else found


def _names(folder: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(folder or ".")
    return []


def failed(path: str, error: Exception) -> Analysis:
    """Why a path has no diagnosis, in one sentence and a remedy."""
    if isinstance(error, Unreadable):
        return Analysis(path, reason=error.reason, remedy=error.remedy)
    from concurrent.futures import BrokenExecutor

    if isinstance(error, BrokenExecutor):
        reason = "the process that read it died"
        remedy = "read it alone: it may need more memory"
        return Analysis(path, reason=reason, remedy=remedy, is_ours=True)
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    package = missing.partition(".")[0]
    if package not in ("", "optdoctor"):
        return Analysis(path, reason=f"needs {package}", remedy=f"pip install {package}")
    reason = f"reading it failed inside optdoctor ({type(error).__name__}: {error})"
    return Analysis(
        path, reason=reason, remedy="report it with the first lines of the log", is_ours=True
    )


def _analyze_slim(path: str, reader: str | None, settings: Settings | None) -> Analysis:
    found = analyze(path, reader=reader, settings=settings)
    if found.trace is None:
        return found
    return Analysis(path, found.diagnosis, found.trace.thinned(KEPT_ROWS))
