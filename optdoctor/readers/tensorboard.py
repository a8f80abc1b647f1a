"""TensorBoard event files: one, or those of a folder, which a run leaves after each resume.

All scalars count, of TensorFlow 1 (`simple_value`) and 2 (`tensor`), every point of them: nothing
is sampled. Histograms, images, texts and graphs are passed over. A folder whose event files lie in
`train` and `validation`, as Keras writes them, is one run.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from optdoctor.reading.curve_names import fill, meaning_of
from optdoctor.reading.event_file import read_file
from optdoctor.reading.event_folder import event_files
from optdoctor.reading.event_points import Points
from optdoctor.reading.event_record import HEADER, length_at, record_at
from optdoctor.reading.log import Log
from optdoctor.reading.reader import Head, Rank, Reader, Source, Unreadable
from optdoctor.store import IntArray
from optdoctor.trace import Trace

_VERSION = b"brain.Event:"
_LONGEST_FIRST = 4096  # bytes; newer writers name themselves in it too


def read_folder(folder: Path) -> Trace:
    """The trace of the run whose event files lie in a folder.

    Raises:
        Unreadable: there is none, or they hold no scalar.
    """
    log = Log()
    points: dict[str, Points] = {}
    files = event_files(folder)
    try:
        for part, path in files:
            with path.open("rb") as file:
                read_file(file, points.setdefault(part, Points()))
    except OSError as error:
        raise Unreadable(error.strerror or str(error), "check the files' permissions") from error
    _fill(points, log)
    if not log.has_rows:
        raise Unreadable("no event file with a curve in it", "name the folder of a run")
    count = f"{len(files)} event file{'s' * (len(files) > 1)}"
    return log.trace(str(folder), READER.name, f"{count} in this folder")


def _fill(points: dict[str, Points], log: Log) -> None:
    sizes: dict[str, int] = {}
    places: dict[str, tuple[Points, str]] = {}
    for part, of_part in points.items():
        log.skip(of_part.num_unreadable)
        for tag, size in of_part.sizes.items():
            name = f"{part}/{tag}" if part else tag
            sizes[name], places[name] = size, (of_part, tag)

    def take(name: str) -> tuple[IntArray, NDArray[np.float64]]:
        of_part, tag = places[name]
        steps, values, left_at = of_part.take(tag)
        if left_at is not None and log.aliases.get(name) == "loss":
            log.event(left_at, "resume", f"the run went on from step {left_at}")
        return steps, values

    fill(log, meaning_of(sizes), take)
    log.count_from_one()


def _read(source: Source, log: Log) -> None:
    points = Points()
    with source.open() as file:
        read_file(file, points)
    _fill({"": points}, log)


def _sniff(head: Head) -> int:
    """Records at the beginning, the first of which names the version of the format."""
    data = head.data
    if len(data) < HEADER or not HEADER < length_at(data, 0) <= min(len(data), _LONGEST_FIRST):
        return 0
    first = record_at(data, 0, {})
    if not first.is_sound or data.find(_VERSION, HEADER, first.stop) < 0:
        return 0
    at = num_records = 0
    while at + HEADER <= len(data):
        at += length_at(data, at)
        num_records += 1
    return num_records


READER = Reader(
    "tensorboard", _sniff, _read, rank=Rank.BYTES, grows=False, marks=(_VERSION.decode(),)
)
