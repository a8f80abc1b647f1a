"""A run of which each epoch is a file of its own: AllenNLP's metrics_epoch_N.json."""

import re
from contextlib import suppress
from pathlib import Path

from optdoctor.reading.source import Source

FORMAT = "allennlp-json"
"""The reader of the files, joined."""
_NAME = re.compile(r"metrics_epoch_(\d{1,9})\.json")
_MAX_FILES = 10_000
_MAX_BYTES = 1 << 20  # of one file


def epoch_files(folder: Path) -> list[Path]:
    """The files of a run's epochs in their order, from two on; [] if the folder holds none."""
    found: dict[Path, int] = {}
    with suppress(OSError):
        for path in folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and path.is_file() and not path.is_symlink():
                found[path] = int(match[1])
    return sorted(found, key=lambda path: found[path])[:_MAX_FILES] if len(found) > 1 else []


def source_of(folder: Path) -> Source:
    """All of them as one source, a line each."""
    lines = []
    for path in epoch_files(folder):
        with path.open("rb") as file:
            lines.append(b" ".join(file.read(_MAX_BYTES).split()))
    return Source(b"\n".join([*lines, b""]), str(folder))
