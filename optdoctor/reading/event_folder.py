"""The TensorBoard event files of a run folder."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PARTS = frozenset(
    ["train", "training", "val", "valid", "validation", "eval", "evaluation", "test", "dev"]
)
"""Names of folders that hold a part of a run's curves, alone or at their end: "loss_train"."""
EVENT_FILE = "tfevents"
"""A part of the name of an event file."""
MAX_FILES = 10_000


def event_files(folder: Path) -> list[tuple[str, Path]]:
    """(part, event file) of the run that a folder is, in the order of writing; [] if it is none.

    The part is "" for files in the folder itself, else the name of the folder within.
    """
    inside = _listed(folder)
    found = [("", path) for path in _in_order(inside)]
    parts = [path for path in inside if _is_part(path)]
    of_parts = [(p.name, file) for p in parts for file in _in_order(_listed(p))]
    if found or any(not _is_evaluation(part) for part, _ in of_parts):
        return found + of_parts
    return []


def _listed(folder: Path) -> list[Path]:
    """What stands in a folder, nothing where it cannot be read."""
    with suppress(OSError):
        return sorted(folder.iterdir())[:MAX_FILES]
    return []


def _in_order(paths: Iterable[Path]) -> list[Path]:
    """The event files among these, in the order in which they were begun."""
    files = [p for p in paths if EVENT_FILE in p.name and p.is_file() and not p.is_symlink()]
    return sorted(files, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)[:1]])


def _is_part(path: Path) -> bool:
    last = re.split(r"[_\-.]", path.name.lower())[-1]
    return last in PARTS and path.is_dir() and not path.is_symlink()


def _is_evaluation(part: str) -> bool:
    return not re.split(r"[_\-.]", part.lower())[-1].startswith("train")
