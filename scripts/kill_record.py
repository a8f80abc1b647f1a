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
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import optdoctor
from optdoctor.live.journal import Journal
from optdoctor.reader import Unreadable
from optdoctor.sinks.record import FLUSH_ROWS
from optdoctor.trace import Event, TensorInfo

LIVES = 5
"""Lives of the writer in one folder."""
CHANNELS = ("grad_rms", "update_rms")
TENSORS = tuple(TensorInfo(f"h.{i}.weight", (i + 1,)) for i in range(40))
SAMPLE_EVERY, EVENT_EVERY, SEGMENT_EVERY = 3, 50, 200
LONGEST_LIFE_S = 0.25


def loss(steps: np.ndarray) -> np.ndarray:
    """The loss written at each step: never the same twice, with a NaN now and then."""
    return np.where(steps % 101 == 0, np.nan, np.sin(steps) + steps)


def tensor_row(step: int) -> np.ndarray:
    """[P]: the row written at a step."""
    return np.arange(len(TENSORS), dtype=np.float32) + np.float32(step)


def write(folder: Path, progress: Path) -> None:
    """Writes rows until it is killed; `progress` holds the last step begun and the last done."""
    steps = np.memmap(progress, np.int64, "r+", shape=(2,))
    journal = Journal(folder, CHANNELS)
    journal.open({"framework": "torch"}, resumed=True, first_step=None)
    step = journal.last_step
    journal.retrack(TENSORS, step + 1)
    while journal.failure is None:
        step += 1
        steps[0] = step
        journal.row(step, {"loss": float(loss(np.array(step))), "lr": 1 / step})
        if step % SAMPLE_EVERY == 0:
            row = tensor_row(step)
            journal.sample(step, {"grad_rms": row, "update_rms": -row})
        if step % EVENT_EVERY == 0:
            journal.event(Event(step, "checkpoint", str(step)))
        if step % SEGMENT_EVERY == 0:
            journal.retrack(TENSORS, step + 1)
        steps[1] = step
    raise journal.failure


def lives(kills: int, seed: int = 0) -> Iterator[tuple[int, list[str]]]:
    """(rows read, what is wrong) after each kill."""
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        for kill in range(kills):
            folder = Path(root) / str(kill // LIVES)
            progress = Path(root) / f"progress-{kill}"
            np.zeros(2, np.int64).tofile(progress)
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
    begun, done = np.fromfile(progress, np.int64).tolist()
    return examine(folder, begun, done)


def examine(folder: Path, begun: int, done: int) -> tuple[int, list[str]]:
    """(rows read, what is wrong) of a record whose writer began and finished these steps."""
    try:
        trace = optdoctor.read(folder)
    except Unreadable as error:
        return 0, [] if begun == 0 and not (folder / "run.json").exists() else [str(error)]
    wrong = []
    read = trace.series["loss"] if "loss" in trace.series else None
    num_rows = 0 if read is None else len(read.steps)
    if read is not None:
        if not np.array_equal(read.steps, np.arange(1, num_rows + 1)):
            wrong.append("steps are not 1, 2, 3, ...")
        elif not np.array_equal(read.values, loss(read.steps), equal_nan=True):
            wrong.append("a loss is not the one that was written")
        elif not np.array_equal(trace.series["lr"].values, 1 / read.steps):
            wrong.append("a rate is not the one that was written")
    # A writer that was killed before its first row has not said how far its predecessors came.
    if begun and not done - FLUSH_ROWS < num_rows <= begun:
        wrong.append(f"{num_rows} rows of {done} written and {begun} begun")
    samples = trace.series.get("grad_rms")
    if samples is not None:
        due = (done // SAMPLE_EVERY - FLUSH_ROWS) if begun else 0
        if samples.rows < due:
            wrong.append(f"{samples.rows} samples, {due} must be there")
        for step, row in zip(samples.steps.tolist(), samples.values, strict=True):
            if step % SAMPLE_EVERY or not np.array_equal(row, tensor_row(step)):
                wrong.append(f"the sample of step {step} is not the one that was written")
    if trace.tensors != tuple(t for t in trace.tensors if t.name.startswith("h.")):
        wrong.append("foreign tensors")
    checkpoints = [int(e.text) for e in trace.events if e.kind == "checkpoint"]
    if any(step % EVENT_EVERY for step in checkpoints):
        wrong.append("an event is not one that was written")
    return num_rows, wrong


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
