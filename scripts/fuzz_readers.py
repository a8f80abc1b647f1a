"""Reads hostile logs and folders, examines what was read, and writes reports of some.

    python scripts/fuzz_readers.py --inputs 200000

Only `Unreadable` may be raised. No input may take more than 5 s of a processor, and 25 us for each
line; no rule may crash; memory stays bounded; no file is written; no link out of a folder is
followed. One line for each fault: `--only NUMBER` reads that input again, `--save FILE` keeps it.
Exit code 1 if there is one. An input stays the same as long as the samples of the readers do.
"""

import argparse
import ctypes
import gc
import io
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, Process, connection
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

from hostile_inputs import MAGIC, Input, hostile

import optdoctor
from optdoctor import analysis, readers
from optdoctor.findings import Diagnosis, Status
from optdoctor.reading.reader import Unreadable
from optdoctor.reading.source import Piped
from optdoctor.report import document, many, markdown, page, reading, table, text
from optdoctor.trace import Trace

LIMIT_S, BLOCKED_S = 5.0, 20.0
"""Seconds of a processor, and of the clock, that an input may take."""
FILE_S, LINE_S = 0.01, 25e-6
"""What each file of a folder, and each line of a log, adds to that: 10 MB of rows are no hang."""
LIMIT_BYTES = 400 << 20
"""Memory that an input may take beyond what the process takes at rest."""
LEAK_BYTES = 64 << 20
"""What many inputs together may leave behind, beyond that."""
ADDRESS_BYTES = 4 << 30
REPORT_EVERY = 6
LIFE = 1000
"""Inputs after which a new process goes on."""
_AT, _SINCE, _SLOWEST, _MOST, _DONE, _SLOW_AT, _MOST_AT = range(7)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = re.compile(
    r"os\.(mkdir|rename|remove|rmdir|link|symlink|chmod|chown|truncate|utime|system|exec|fork"
    r"|posix_spawn|setxattr)|shutil\.|subprocess\.|socket\.(connect|bind|getaddrinfo|sendto)"
    r"|tempfile\.|pickle\.find_class|ftplib\.|urllib\."
)
_STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class TooLong(BaseException):
    """An input took too long; no `except Exception` stops it."""


class Wrong(Exception):
    """What was returned is not what it should be."""


# --- One input ----------------------------------------------------------------------------------


class Guard:
    """Notes what a process does to files, by the events that Python tells auditors."""

    def __init__(self) -> None:
        self.is_on, self.forbidden, self.took_s = False, "", 0.0
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event == "open":
            path, _, flags = args
            if flags is not None and flags & _WRITES:
                self.seen.append(f"opened {path!r} to write")
            elif self.forbidden and isinstance(path, str | bytes):
                self.is_on = False  # realpath asks the system too
                if os.path.realpath(os.fsdecode(path)).startswith(self.forbidden):
                    self.seen.append(f"followed a link to {path!r}")
                self.is_on = True
        elif _CHANGES.match(event):
            self.seen.append(f"{event} {args!r}")


def examine(given: Input, number: int, place: Path, guard: Guard) -> None:
    """Reads one input in an empty folder.

    Raises:
        Exception: whatever is at fault.
    """
    guard.seen.clear()
    if given.files is None:
        (place / "log").write_bytes(given.data)
        with watched(guard, LIMIT_S + (given.data.count(b"\n") + given.data.count(b"\r")) * LINE_S):
            read_file(given, number, place / "log")
    else:
        with tempfile.TemporaryDirectory(dir=place) as root:
            below = Path(os.path.realpath(root))
            build(given, below)
            before = listing(below)
            with watched(guard, LIMIT_S + len(given.files) * FILE_S, str(below / "outside")):
                read_folder(below / "folder", number)
            if listing(below) != before:
                raise Wrong("the folder is not as it was")
    if guard.seen:
        raise Wrong(guard.seen[0])
    if left := os.listdir("."):
        raise Wrong(f"wrote {left}")


@contextmanager
def watched(guard: Guard, limit_s: float, forbidden: str = "") -> Iterator[None]:
    """Notes what is done to files meanwhile, and stops what takes too long."""
    guard.is_on, guard.forbidden, before = True, forbidden, time.process_time()
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    signal.setitimer(signal.ITIMER_REAL, BLOCKED_S + limit_s)
    signal.setitimer(signal.ITIMER_VIRTUAL, 3 * limit_s)
    try:
        yield
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL, signal.ITIMER_VIRTUAL):
            signal.setitimer(timer, 0)
        guard.took_s = time.process_time() - before
        guard.is_on = False


def read_file(given: Input, number: int, path: Path) -> None:
    """By the reader that claims it, and by the one whose format it was."""
    for name in {None, given.reader or None}:
        try:
            if name is None and number % 7 == 0:
                piped = Piped(io.BytesIO(given.data), "-")
                trace = readers.read_source(piped)
            else:
                trace = optdoctor.read(path, name)
        except Unreadable as error:
            check_refusal(error)
        else:
            check(trace, number)


def read_folder(folder: Path, number: int) -> None:
    """As the command line reads a folder, and a pattern, and each run in it by name."""
    with suppress(Unreadable):
        check(optdoctor.read(folder), number)
    found = analysis.analyze_many([folder, f"{folder}/**"])
    for one in found:
        if one.is_ours:
            raise Wrong(f"{one.path!r}: {one.reason} {one.remedy}")
    runs = [(one.diagnosis, one.trace) for one in found if one.diagnosis and one.trace]
    for diagnosis, trace in runs:
        check(trace, number, diagnosis)
    if runs:
        errors = [(one.path, one.reason, one.remedy) for one in found if one.diagnosis is None]
        clean(many.render_many(runs), "the report of many")
        clean(page.render(runs, errors), "the page")
        clean(markdown.render(runs, errors), "the markdown")
        json.loads(document.render(runs, errors))
    with suppress(Unreadable):
        readers.passed_over(folder, readers.runs_in(folder))


def check(trace: Trace, number: int, diagnosis: Diagnosis | None = None) -> None:
    """Examines a trace and tells what is wrong with it."""
    for name, series in trace.series.items():
        steps, values = series.steps, series.values
        if len(steps) != len(values) or (steps[1:] <= steps[:-1]).any() or (steps < 0).any():
            raise Wrong(f"the steps of {name!r} do not rise")
        if (values == MAGIC).any():
            raise Wrong("rows of a file outside of the folder")
    diagnosis = diagnosis or optdoctor.diagnose(trace)
    for rule, outcome in diagnosis.with_status(Status.CRASHED).items():
        raise Wrong(f"{rule} crashed: {outcome.reason}")
    if number % REPORT_EVERY == 0:
        clean(text.render(diagnosis, trace), "the report")
        clean(text.render(diagnosis, trace, ascii=True).encode("ascii").decode(), "the report")
        clean(text.one_line(diagnosis, trace), "the line")
        clean(reading.render(trace), "the reading")
        clean(document.render([(diagnosis, trace)]), "the document")
        clean(page.render([(diagnosis, trace)]), "the page")
        clean(markdown.render([(diagnosis, trace)]), "the markdown")
        table.render(trace, ("csv", "jsonl", "parquet")[number // REPORT_EVERY % 3])


def check_refusal(error: Unreadable) -> None:
    """What a person is told: a reason and a remedy."""
    if not error.reason or not error.remedy or len(error.reason) > 2000:
        raise Wrong(f"refused for {error.reason!r}, {error.remedy!r}") from error


def clean(said: str, what: str) -> None:
    """A report is valid text and steers no terminal."""
    said.encode()
    if found := _STEERING.search(said):
        raise Wrong(f"{what} holds {found[0]!r}: ..{said[max(found.start() - 40, 0) :][:80]!r}")


def build(given: Input, root: Path) -> None:
    """Puts a folder and what is beside it on disk; what collides is left out."""
    for below, files in (("folder", given.files), ("outside", given.outside)):
        base = os.fsencode(root / below)
        os.makedirs(base)
        for name, data in (files or {}).items():
            path = os.path.join(base, name)
            with suppress(OSError, ValueError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if not os.path.realpath(os.path.dirname(path)).startswith(base):
                    continue
                if data is None:
                    os.mkfifo(path)
                elif isinstance(data, tuple):
                    os.symlink(data[1], path)
                else:
                    with open(path, "xb") as file:
                        file.write(data)


def listing(root: Path) -> dict[str, tuple[int, int]]:
    """{path: size and time of the last change} of everything below."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            state = os.lstat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = state.st_size, state.st_mtime_ns
    return found


# --- Many ---------------------------------------------------------------------------------------


def work(numbers: range, seed: int, state: Any, out: connection.Connection, root: str) -> None:
    """Reads inputs in a process of its own, and says which are at fault."""
    sys.dont_write_bytecode = True
    warnings.filterwarnings("error", module="optdoctor")
    signal.signal(signal.SIGPROF, _too_long)
    signal.signal(signal.SIGALRM, _too_long)
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    place = Path(tempfile.mkdtemp(dir=root))
    (place / "empty").mkdir()
    os.chdir(place / "empty")
    guard = Guard()
    prepare(place, guard)
    rest = memory("VmRSS")
    address = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (address + ADDRESS_BYTES,) * 2)
    for number in numbers:
        given = hostile(seed, number)
        at_rest = forget_high_water()
        state[_AT], state[_SINCE] = number, time.monotonic()
        fault, took_s = fault_of(given, number, place, guard), guard.took_s
        state[_DONE] += 1
        if took_s > state[_SLOWEST]:
            state[_SLOWEST], state[_SLOW_AT] = took_s, number
        taken = max(memory("VmHWM") - at_rest, at_rest - rest - LEAK_BYTES)
        if taken > state[_MOST]:
            state[_MOST], state[_MOST_AT] = taken, number
        if taken > LIMIT_BYTES:
            fault = fault or f"took {taken >> 20} MiB"
        if fault:
            out.send((number, given.made, fault, took_s))
        if taken > LIMIT_BYTES:
            break
    out.close()


def prepare(place: Path, guard: Guard) -> None:
    """Loads what is loaded once, so that it is not taken for what an input takes."""
    for number in (*range(0, 60, REPORT_EVERY), 39, 79):
        fault_of(hostile(0, number), number, place, guard)


def fault_of(given: Input, number: int, place: Path, guard: Guard) -> str:
    """What is wrong with how an input is read, "" if nothing is."""
    try:
        examine(given, number, place, guard)
    except TooLong:
        where = [f for f in traceback.extract_tb(sys.exc_info()[2]) if "optdoctor/" in f.filename]
        last = where[-1] if where else traceback.extract_tb(sys.exc_info()[2])[-1]
        return f"took too long in {Path(last.filename).name}:{last.lineno} {last.line}"
    except Exception as error:
        if isinstance(error, MemoryError):
            gc.collect()
        where = [f for f in traceback.extract_tb(error.__traceback__) if "optdoctor/" in f.filename]
        at = f" at {Path(where[-1].filename).name}:{where[-1].lineno}" if where else ""
        return f"{type(error).__name__}{at}: {error}"
    return ""


def _too_long(signum: int, frame: object) -> None:
    raise TooLong


def memory(name: str) -> int:
    """Bytes that this process takes (VmRSS), or took at most (VmHWM), as Linux tells."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else 0


def forget_high_water() -> int:
    """Bytes that this process takes; what it took at most is counted anew from here."""
    gc.collect()
    with suppress(OSError, AttributeError):  # what making the input took is not the reader's
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return memory("VmHWM")


def run(first: int, inputs: int, seed: int, seconds: float, workers: int) -> tuple[int, int, str]:
    """(inputs read, of them at fault, the last line) of so many inputs, the faults printed."""
    waiting = [
        range(at, min(at + LIFE, first + inputs)) for at in range(first, first + inputs, LIFE)
    ]
    waiting.reverse()
    stop = time.monotonic() + seconds
    readers.readers()  # once, for all processes
    alive: dict[connection.Connection, tuple[Process, Any, range]] = {}
    states, faults = [], 0
    with tempfile.TemporaryDirectory() as root:
        while alive or (waiting and time.monotonic() < stop):
            while waiting and len(alive) < workers and time.monotonic() < stop:
                numbers, state = waiting.pop(), RawArray("d", 7)
                ours, theirs = Pipe(duplex=False)
                state[_AT], state[_SINCE] = -1, time.monotonic()
                process = Process(target=work, args=(numbers, seed, state, theirs, root))
                process.start()
                theirs.close()
                states.append(state)
                alive[ours] = process, state, numbers
            for ours in connection.wait(list(alive), 1.0):
                process, state, numbers = alive[ours]
                try:
                    number, made, fault, took_s = ours.recv()
                    print(f"input {number} ({made}), {took_s:.1f} s: {fault}", flush=True)
                    faults += 1
                    continue
                except EOFError:
                    del alive[ours]
                process.join()
                at = int(state[_AT])
                if process.exitcode and time.monotonic() < stop:
                    print(f"input {at}: its process ended with {process.exitcode}", flush=True)
                    faults += 1
                if numbers.start <= at < numbers.stop - 1:
                    waiting.append(range(at + 1, numbers.stop))
            for process, _, _ in alive.values():
                if time.monotonic() > stop:
                    process.terminate()
    done = int(sum(state[_DONE] for state in states))
    slow, large = max(states, key=lambda s: s[_SLOWEST]), max(states, key=lambda s: s[_MOST])
    said = (
        f"{done:,} inputs, {faults} with a fault, slowest {slow[_SLOWEST]:.1f} s"
        f" (input {slow[_SLOW_AT]:.0f}), most memory {int(large[_MOST]) >> 20} MiB"
        f" (input {large[_MOST_AT]:.0f})"
    )
    return done, faults, said


def again(number: int, seed: int, save: Path | None) -> int:
    """Reads one input again, with the whole traceback."""
    given = hostile(seed, number)
    print(f"{given.made}: {len(given.data):,} bytes, {len(given.files or ())} files")
    if save:
        if given.files is None:
            save.write_bytes(given.data)
        else:
            build(given, save)
    signal.signal(signal.SIGPROF, _too_long)
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "empty").mkdir()
        os.chdir(Path(root) / "empty")
        before = time.process_time()
        try:
            examine(given, number, Path(root), Guard())
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            print(f"{time.process_time() - before:.2f} s")
            os.chdir("/")
    return 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    if options.only is not None:
        return again(options.only, options.seed, options.save)
    _, faults, said = run(
        options.first, options.inputs, options.seed, options.seconds, options.workers
    )
    print(said)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
