"""Follows a log that grows, is rotated or cut, and tells findings as they appear.

A reader pulls the text of a log; where there is no more of it yet, the log so far is examined
while the reader waits. So every format is followed by the code that reads it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

from optdoctor import readers
from optdoctor.engine import diagnose
from optdoctor.findings import Diagnosis, Notice, Severity
from optdoctor.live.examiner import Examiner
from optdoctor.reading.dispatch import Claim
from optdoctor.reading.log import Log
from optdoctor.reading.reader import Source, Unreadable
from optdoctor.reading.unpack import PIECE_BYTES, form_of
from optdoctor.rules import RULES
from optdoctor.settings import Settings
from optdoctor.trace import Trace

POLL_S = 0.5
"""Seconds between two looks at a file that does not grow."""
SHARE = 0.1
"""Largest share of the time that examinations take."""

Tell = Callable[[Notice, Trace], None]


class _Growing(Source):
    """A file whose text goes on as long as `wait` says so."""

    def __init__(self, path: Path, wait: Callable[[], bool]) -> None:
        super().__init__(lambda: path.open("rb"), str(path), path)
        self._file_path, self._wait = path, wait

    @property
    def is_packed(self) -> bool:
        """Whether it is compressed: such a file does not grow."""
        with self._file_path.open("rb") as file:
            return bool(form_of(file.read(16)))

    def pieces(self) -> Iterator[bytes]:
        """The bytes as they come, those of files that take the place of this one too."""
        file: BinaryIO = self._file_path.open("rb")
        piece = b""
        try:
            while True:
                if more := file.read(PIECE_BYTES):
                    yield (piece := more)
                elif (successor := _successor(file, self._file_path)) is not None:
                    file.close()
                    file = successor
                    if not piece.endswith(b"\n"):
                        yield b"\n"  # the line that the old file broke off with ends here
                elif not self._wait():
                    return
        finally:
            file.close()


def _successor(file: BinaryIO, path: Path) -> BinaryIO | None:
    """The file to go on with where this one was cut or another has its name; None if neither."""
    try:
        here, there = os.fstat(file.fileno()), path.stat()
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino) or here.st_size < file.tell():
            return path.open("rb")
    except OSError:  # the next one is not there yet
        return None
    return None


class Follower:
    """One log, followed until nothing came for `idle_s` seconds or the user interrupts."""

    def __init__(
        self,
        path: str | Path,
        tell: Tell,
        *,
        reader: str | None = None,
        settings: Settings | None = None,
        idle_s: float = float("inf"),
    ) -> None:
        self._path, self._tell, self._reader_name = Path(path), tell, reader
        self._settings = settings or Settings()
        self._examiner = Examiner(self._settings.chosen(RULES))
        self._idle_s = idle_s
        self._size = -1
        self._grew = monotonic()
        self._next = 0.0  # when the next examination is paid for
        self._seen = (0, 0)  # rows and last step that were examined
        self._stopped = False
        self._claim: Claim | None = None
        self._log = Log()

    def run(self) -> tuple[Diagnosis, Trace]:
        """Follows to the end; the last diagnosis, and the trace that it is of.

        Raises:
            Unreadable: the path is no file, or no reader claims it before the end.
        """
        while not self._path.is_file():
            what = "a folder" if self._path.is_dir() else "no such file"
            may_come = not self._path.is_dir() and self._path.absolute().parent.is_dir()
            if not may_come or not self._wait():
                raise Unreadable(what, "name a log that a training writes", str(self._path))
        try:
            claim = self._claimed()
            trace = self._pulled(claim) if claim is not None else self._read_anew()
        except Unreadable as error:
            raise Unreadable(error.reason, error.remedy, str(self._path)) from error
        return diagnose(trace, settings=self._settings), trace

    def _claimed(self) -> Claim | None:
        """The reader of the file, once it shows its format; None if it is to be read as a whole."""
        while True:
            source = _Growing(self._path, self._at_end)
            if source.is_packed:
                return None
            try:
                claim = readers.claim(source, self._reader_name)
                return claim if claim.reader.grows else None
            except Unreadable:
                if not self._wait():
                    raise

    def _pulled(self, claim: Claim) -> Trace:
        """The trace at the end, while `_at_end` looks at what was read so far."""
        self._claim, self._log = claim, Log(aliases=claim.reader.aliases)
        try:
            return readers.read_claimed(claim, self._log)
        except KeyboardInterrupt:
            return self._log.trace(str(self._path), claim.reader.name)

    def _at_end(self) -> bool:
        """Examines what was read so far, and waits; whether more may come."""
        if self._claim is not None and self._log.has_rows:
            name = self._claim.reader.name
            self._examine(lambda: self._log.trace(str(self._path), name))
        return self._wait()

    def _read_anew(self) -> Trace:
        """The trace of a file that is written as a whole each time, read when it changed."""
        size = -1
        while True:
            if self._size != size:
                size = self._size
                with suppress(Unreadable):  # it is being written
                    trace = readers.read(self._path, self._reader_name)
                    self._examine(lambda: trace)  # noqa: B023 - called at once
            if not self._wait():
                return readers.read(self._path, self._reader_name)

    def _examine(self, snapshot: Callable[[], Trace]) -> None:
        if monotonic() < self._next:
            return
        began = monotonic()
        trace = snapshot()
        rows = max((s.rows for s in trace.series.values() if s.values.ndim == 1), default=0)
        seen = rows, trace.steps[1]
        if seen == self._seen:
            return
        is_first, self._seen = self._seen == (0, 0), seen
        if is_first:
            # What the log shows by now is told at once, as `analyze` would.
            for finding in diagnose(trace, settings=self._settings).findings:
                self._examiner.announced[finding.rule] = finding
                self._say(Notice(seen[1], "appeared", finding), trace)
        else:
            for notice in self._examiner.examine(trace, seen[1]):
                self._say(notice, trace)
        self._next = monotonic() + (monotonic() - began) / SHARE

    def _say(self, notice: Notice, trace: Trace) -> None:
        if notice.finding.severity is not Severity.NOTE or notice.what == "renamed":
            self._tell(notice, trace)

    def _wait(self) -> bool:
        """Sleeps for a while; whether to go on."""
        try:
            size = self._path.stat().st_size
        except OSError:
            size = self._size
        if size != self._size:
            self._size, self._grew = size, monotonic()
        if self._stopped or monotonic() - self._grew > self._idle_s:
            return False
        try:
            sleep(POLL_S)
        except KeyboardInterrupt:
            self._stopped = True
        return not self._stopped
