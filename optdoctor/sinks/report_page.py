"""Writes report.html into a run's folder, whole or not at all, and never over a file of the user.

No sink: a run with a folder has its page whatever its sinks are.
"""

import os
from contextlib import suppress
from pathlib import Path

from optdoctor.findings import Diagnosis
from optdoctor.trace import Trace

PAGE = "report.html"
OURS = b'<meta name="generator" content="optdoctor'
"""What stands near the beginning of every page of ours."""


def write(folder: Path, diagnosis: Diagnosis, trace: Trace, cost: str) -> None:
    """Writes the page of one run; an older one of ours is replaced, or removed where that fails.

    Raises:
        FileExistsError: a report.html that optdoctor did not write.
        OSError: the folder is gone or the disk is full.
    """
    from optdoctor.report import page

    path, part = folder / PAGE, folder / f"{PAGE}.part"
    if path.exists() and written(folder) is None:
        raise FileExistsError(f"{PAGE} of yours stays as it is")
    try:
        part.write_text(page.render([(diagnosis, trace)], cost=cost), "utf-8")
        os.replace(part, path)
    except BaseException:
        # Nobody may take the page of an earlier run for this one's.
        for stale in (part, path):
            with suppress(OSError):
                stale.unlink()
        raise


def written(folder: Path) -> Path | None:
    """The page in `folder`, None where there is none of ours."""
    path = folder / PAGE
    try:
        with path.open("rb") as file:
            return path if OURS in file.read(256) else None
    except OSError:
        return None
