"""Kills the writer of a run record at random moments and reads what is left.

    python scripts/kill_record.py --kills 50

Each life of the writer goes on with the record that the last one left. After each kill every whole
batch must be there, no row may be wrong, and run.json must be readable. Exit code 1 if not.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import optdoctor
from optdoctor.live.journal import Journal
from optdoctor.readers.run_record import load, replay
from optdoctor.reading.reader import Unreadable
from optdoctor.sinks.record import FLUSH_ROWS
from optdoctor.trace import Event, Recorder, TensorInfo, Trace

LIVES = 5
"""Lives of the writer in one folder."""
CHANNELS = ("grad_rms", "update_rms")
TENSORS = tuple(TensorInfo(f"h.{i}.weight", (i + 1,), order=i) for i in range(40))
SAMPLE_EVERY, EVENT_EVERY, SEGMENT_EVERY = 3, 50, 200
LONGEST_LIFE_S = 0.25


def loss(steps: np.ndarray) -> np.ndarray:
    """The loss written at each step: never the same twice, with a NaN now and then."""
    return np.where(steps % 101 == 0, np.nan, np.sin(steps) + steps)


def tensor_row(step: int) -> np.ndarray:
    """[P]: the row written at a step."""
    return np.arange(len(TENSORS), dtype=np.float32) + np.float32(step)


def write(folder: Path, progress: Path) -> None:
    """Writes rows until it is killed; `progress`: its first step, the last begun, the last done."""
    steps = np.memmap(progress, np.int64, "r+", shape=(3,))
    journal = Journal(folder, CHANNELS)
    journal.open({"framework": "torch"}, resumed=True, first_step=None)
    step = journal.last_step
    steps[0] = step + 1
    journal.retrack(TENSORS, step + 1)
    journal.event(Event(step + 1, "resume"))
    while journal.failure is None:
        step += 1
        steps[1] = step
        journal.row(step, {"loss": float(loss(np.array(step))), "lr": 1 / step})
        if step % SAMPLE_EVERY == 0:
            row = tensor_row(step)
            journal.sample(step, {"grad_rms": row, "update_rms": -row})
        if step % EVENT_EVERY == 0:
            journal.event(Event(step, "checkpoint", str(step)))
        if step % SEGMENT_EVERY == 0:
            journal.retrack(TENSORS, step + 1)
        steps[2] = step
    raise journal.failure


def lives(kills: int, seed: int = 0) -> Iterator[tuple[int, list[str]]]:
    """(rows read, what is wrong) after each kill."""
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        for kill in range(kills):
            folder = Path(root) / str(kill // LIVES)
            progress = Path(root) / f"progress-{kill}"
            np.zeros(3, np.int64).tofile(progress)
            yield one_life(folder, progress, LONGEST_LIFE_S * moments.random())


def one_life(folder: Path, progress: Path, life_s: float) -> tuple[int, list[str]]:
    """Lets the writer live so long after its first file is there, kills it, and looks."""
    before = len(list(folder.glob("steps-*")))
    command = [sys.executable, __file__, "--write", str(folder), str(progress)]
    writer = subprocess.Popen(command, stderr=subprocess.PIPE)
    while writer.poll() is None and len(list(folder.glob("steps-*"))) == before:
        time.sleep(0.0005)
    time.sleep(life_s)
    writer.send_signal(signal.SIGKILL)
    _, said = writer.communicate()
    if writer.returncode != -signal.SIGKILL:
        return 0, [f"the writer ended by itself: {said.decode()}"]
    return examine(folder, *np.fromfile(progress, np.int64).tolist())


def examine(folder: Path, first: int, begun: int, done: int) -> tuple[int, list[str]]:
    """(rows read, what is wrong) of a record whose writer began and finished these steps."""
    try:
        record = load(folder)
    except Unreadable as error:
        return 0, [] if not begun and not (folder / "run.json").exists() else [str(error)]
    recorder = Recorder((), **{**record.capacities, "tensor_capacity": 1 << 20})
    replay(folder, record, recorder)
    trace, wrong = recorder.trace(record.facts, record.events), []
    steps, losses = rows_of(trace, "loss")
    starts = [event.step for event in trace.events if event.kind == "resume"]
    for step in sorted(set(range(1, int(steps.max(initial=0)))) - set(steps.tolist())):
        if not any(start - FLUSH_ROWS < step < start for start in starts):
            wrong.append(f"step {step} is missing, and no writer was killed there")
    if not np.array_equal(losses, loss(steps), equal_nan=True):
        wrong.append("a loss is not the one that was written")
    if not np.array_equal(rows_of(trace, "lr")[1], 1 / steps):
        wrong.append("a rate is not the one that was written")
    sampled, rows = rows_of(trace, "grad_rms")
    for step, row in zip(sampled.tolist(), rows, strict=True):
        if step % SAMPLE_EVERY or not np.array_equal(row, tensor_row(step)):
            wrong.append(f"the sample of step {step} is not the one that was written")
    if begun:  # else it was killed before it could say where it begins
        due = range(first, begun + 1)
        wrong += of_this_life("rows", steps, due)
        wrong += of_this_life("samples", sampled, [s for s in due if s % SAMPLE_EVERY == 0])
    if record.tensors != TENSORS[: len(record.tensors)]:
        wrong.append("foreign tensors")
    checkpoints = [int(event.text) for event in trace.events if event.kind == "checkpoint"]
    if any(step % EVENT_EVERY for step in checkpoints):
        wrong.append("an event is not one that was written")
    if rows_of(optdoctor.read(folder), "loss")[0][-1:].tolist() != steps[-1:].tolist():
        wrong.append("the trace ends elsewhere than its record")
    return len(steps), wrong


def of_this_life(what: str, steps: np.ndarray, due: Sequence[int]) -> list[str]:
    """What is wrong unless the steps are the first of those due, at most one batch short."""
    found = [step for step in steps.tolist() if due and step >= due[0]]
    whole = len(due) - 1 - len(found) < FLUSH_ROWS
    return (
        [] if found == list(due[: len(found)]) and whole else [f"{len(found)} of {len(due)} {what}"]
    )


def rows_of(trace: Trace, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a channel, empty if it has none."""
    series = trace.series.get(name)
    return (np.empty(0, int), np.empty(0)) if series is None else (series.steps, series.values)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(*options.write)
    failed = 0
    for number, (rows, wrong) in enumerate(lives(options.kills, options.seed), 1):
        print(f"kill {number}: {rows} rows read; {'; '.join(wrong) or 'all of them right'}")
        failed += bool(wrong)
    print(f"{options.kills} kills, {failed} with a fault")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
