"""The runs that a folder holds. Links that lead out of it are not followed."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from optdoctor.reading.epoch_files import epoch_files
from optdoctor.reading.event_folder import EVENT_FILE, event_files

RECORD = "run.json"
"""The file that makes a folder a run record."""
WANDB_FILE = ".wandb"
"""How the file of a wandb run ends, one in the folder of each."""


def runs_in(folder: Path, claims: Callable[[Path], bool]) -> list[Path]:
    """The runs of a folder: itself, or its logs and the runs directly below it.

    A subfolder that cannot be read is passed over.

    Raises:
        OSError: the folder itself cannot be read.
    """
    if found := _kept_run(folder):
        return found
    inside = _entries(folder)
    events, epochs = event_files(folder), epoch_files(folder)
    found = [folder] if events or epochs else []
    others = (p for p in inside if EVENT_FILE not in p.name and p not in epochs)
    found += [path for path in others if claims(path)]
    parts = {part for part, _ in events}
    for below in _folders(inside, ("earlier-",)):
        found += run_of(below) if below.name not in parts else []
    return found


def passed_over(folder: Path, runs: list[Path], claims: Callable[[Path], bool]) -> list[Path]:
    """Logs and runs beside the record that `runs` are of; see `readers.passed_over`."""
    if not (folder / "optdoctor-run").is_dir() or (folder / RECORD).is_file():
        return []
    if not all(run.is_relative_to(folder / "optdoctor-run") for run in runs):
        return []
    inside = _entries(folder)
    own = ("earlier-", "checkpoint-", "optdoctor-run")
    return [path for path in inside if claims(path)] + [
        path for path in _folders(inside, own) if run_of(path)
    ]


def run_of(folder: Path) -> list[Path]:
    """The run that a folder is, nothing where it is none or cannot be read.

    A record, one record an optimizer, a Trainer's newest state, all event files or epochs' files in
    it, or the file of a wandb run.
    """
    with suppress(OSError):
        if found := _kept_run(folder):
            return found
        if event_files(folder) or epoch_files(folder):
            return [folder]
        inside = (path for path in _entries(folder) if path.name.endswith(WANDB_FILE))
        return [path for path in inside if path.is_file()][:1]
    return []


def _kept_run(folder: Path) -> list[Path]:
    if _is_own_file(folder / RECORD, folder):
        return [folder]
    if several := [p for p in sorted(folder.glob(f"[0-9]*/{RECORD}")) if _is_own_file(p, folder)]:
        return [record.parent for record in several]
    record = folder / "optdoctor-run"
    if record.is_dir() and _stays(record, folder) and (inside := _kept_run(record)):
        return inside
    states = folder.glob("checkpoint-*/trainer_state.json")
    own = [state for state in states if _is_own_file(state, folder)]
    return [newest_state(own)] if own else []


def newest_state(states: list[Path]) -> Path:
    """The trainer state of the highest checkpoint."""

    def step(path: Path) -> int:
        tail = path.parent.name.rpartition("-")[2]
        return int(tail) if tail.isdecimal() else -1

    return max(states, key=step)


def _entries(folder: Path) -> list[Path]:
    """What stands in a folder, by name, without hidden entries and links that show it again."""
    visible = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    if not any(path.is_symlink() for path in visible):
        return visible
    here = os.path.realpath(folder)  # once: its cost grows with the depth
    seen = {os.path.join(here, path.name) for path in visible if not path.is_symlink()}
    found = []
    for path in visible:
        if path.is_symlink():
            target = os.path.realpath(path)
            if target in seen or Path(here) not in Path(target).parents:
                continue
            seen.add(target)
        found.append(path)
    return found


def real_paths() -> Callable[[str], str]:
    """`os.path.realpath` for many paths: each folder once, as the cost grows with depth."""
    known: dict[str, str] = {}

    def real(path: str) -> str:
        below: list[str] = []
        at = path
        while at not in known:
            above, name = os.path.split(at)
            if name in ("", ".", "..") or os.path.islink(at):
                known[at] = os.path.realpath(at)
            else:
                below.append(at)
                at = above
        for inner in reversed(below):
            known[inner] = os.path.join(known[os.path.dirname(inner)], os.path.basename(inner))
        return known[path]

    return real


def _folders(inside: list[Path], own: tuple[str, ...]) -> list[Path]:
    return [path for path in inside if not path.name.startswith(own) and os.path.isdir(path)]


def _is_own_file(path: Path, folder: Path) -> bool:
    return path.is_file() and _stays(path, folder)


def _stays(path: Path, folder: Path) -> bool:
    """Whether a path, with all links followed, lies in a folder and is not the folder itself."""
    return Path(os.path.realpath(folder)) in Path(os.path.realpath(path)).parents
