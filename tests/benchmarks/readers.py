"""Speed and memory of readers, each beside the obvious way to parse the same text.

Both sides run in turns in one process; a side's time is the least CPU time of its rounds.

    python tests/benchmarks/readers.py            # about a minute
    python tests/benchmarks/readers.py --full     # with the console log of 1 GB
    python tests/benchmarks/readers.py console    # one of them
"""

import argparse
import ast
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS = 5
CONSOLE_ROWS = 500_000
STATE_ROWS = 1_000_000
EVENT_STEPS = 150_000
CSV_BYTES = 64 << 20
CSV_HEADERS = {
    "dense": "step,loss,lr,grad_norm,epoch,accuracy",
    "sparse": "epoch,lr-AdamW,step,train_loss,val_loss",
}
TEXT_BYTES = 20 << 20


def ratio(
    name: str,
    base: tuple[str, Callable[[], object]],
    ours: Callable[[], object],
    at_least: float,
    rounds: int = ROUNDS,
    share: float = 1,
) -> bool:
    """Prints how many times as fast `ours` is as `base`; False where it is less than it should.

    `share` is the part of the work that `base` does, where all of it would take minutes.
    """
    what, other = base
    seconds = [(cpu_seconds(ours), cpu_seconds(other)) for _ in range(rounds)]
    times = min(b for _, b in seconds) / share / min(a for a, _ in seconds)
    print(f"{name}: {times:.2f} x {what} (at least {at_least:g})", flush=True)
    return times >= at_least


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of this process while it does the work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def at_most(name: str, mib: float, limit: float) -> bool:
    """Prints an amount of memory; False where it is more than it should."""
    print(f"{name}: {mib:.0f} MiB (at most {limit:g})", flush=True)
    return mib <= limit


def resident_mib(path: Path) -> float:
    """Peak resident memory of a process of its own that reads a log, in MiB; Linux only.

    Not `ru_maxrss`, which a process takes over from the one that started it.
    """
    return _in_own_process(
        "read(path); lines = open('/proc/self/status');"
        " print(int(next(l for l in lines if l.startswith('VmHWM')).split()[1]) << 10)",
        path,
    )


def allocated_mib(path: Path) -> float:
    """Peak of what a process of its own allocates while it reads a log, in MiB."""
    return _in_own_process(
        "import tracemalloc; tracemalloc.start(); read(path);"
        " print(tracemalloc.get_traced_memory()[1])",
        path,
    )


def _in_own_process(code: str, path: Path) -> float:
    start = "import sys; from optdoctor.readers import read; path = sys.argv[1]; "
    command = [sys.executable, "-c", start + code, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout) / (1 << 20)


def console(folder: Path, full: bool) -> bool:
    """Console of the Hugging Face Trainer, of both generations and with NaN, per line."""
    from optdoctor.readers import read

    random.seed(7)
    rows = [
        (
            round(2 + random.random(), 4),
            math.nan if i % 1000 == 999 else random.random() * 5,
            random.random() * 1e-4,
            round(i * 3 / CONSOLE_ROWS, 2),
        )
        for i in range(CONSOLE_ROWS)
    ]
    floats = "{{'loss': {!r}, 'grad_norm': {!r}, 'learning_rate': {!r}, 'epoch': {!r}}}\n"
    texts = (
        "{{'loss': '{:.4g}', 'grad_norm': '{:.4g}', 'learning_rate': '{:.4g}',"
        " 'epoch': '{:.4g}'}}\n"
    )
    is_good = True
    for generation, form in (("4.x", floats), ("5.x", texts)):
        log = folder / f"console-{generation}.log"
        log.write_text("".join(form.format(*row) for row in rows))
        # literal_eval knows no bare nan: it gets a number in its place.
        lines = log.read_text().replace(": nan", ": 0.0").splitlines()[::20]
        is_good &= ratio(
            f"console {generation}",
            ("ast.literal_eval", lambda lines=lines: [ast.literal_eval(line) for line in lines]),
            lambda log=log: read(log),
            8,
            share=1 / 20,
        )
    if full:
        block = log.read_bytes()
        large = folder / "console-1gb.log"
        with large.open("wb") as file:
            for _ in range(-(-(1 << 30) // len(block))):
                file.write(block)
        is_good &= at_most("console of 1 GiB, peak resident memory", resident_mib(large), 300)
        large.unlink()
    return is_good


def state(folder: Path, full: bool) -> bool:
    """`trainer_state.json` of a million rows."""
    from optdoctor.readers import read

    random.seed(7)
    path = folder / "trainer_state.json"
    row = (
        '    {{\n      "epoch": {!r},\n      "grad_norm": {!r},\n      "learning_rate": {!r},\n'
        '      "loss": {!r},\n      "step": {}\n    }}'
    )
    with path.open("w") as file:
        file.write('{\n  "best_metric": null,\n  "log_history": [\n')
        for i in range(STATE_ROWS):
            loss, norm = round(2 + random.random(), 4), random.random() * 5
            numbers = i * 3 / STATE_ROWS, norm, random.random() * 1e-4, loss, i + 1
            file.write((",\n" if i else "") + row.format(*numbers))
        file.write('\n  ],\n  "logging_steps": 1,\n  "max_steps": 1000000\n}')

    def whole() -> object:
        with path.open() as file:
            return json.load(file)

    is_good = ratio("state", ("json.load", whole), lambda: read(path), 0.75, rounds=2)
    columns = STATE_ROWS * 5 * 8 / (1 << 20)  # four values and a step a row
    further = allocated_mib(path) - columns
    return is_good & at_most("state, peak allocated beyond the columns", further, 64)


def events(folder: Path, full: bool) -> bool:
    """Event files: the same tags at every step, and tags at intervals of their own."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    from optdoctor.readers import read

    def accumulated(path: Path) -> int:
        accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        return sum(len(accumulator.Scalars(tag)) for tag in accumulator.Tags()["scalars"])

    random.seed(7)
    every = {"train/loss": 1, "train/grad_norm": 1, "train/learning_rate": 1, "train/epoch": 1}
    every |= {"train/aux_loss": 2, "optim/beta1": 3, "eval/loss": 50, "eval/accuracy": 70}
    is_good = True
    regular = folder / "events.out.tfevents.regular-a"
    for kind, at_least in (("regular", 60), ("irregular", 12)):
        path, small = (folder / f"events.out.tfevents.{kind}-{part}" for part in "ab")
        first = Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString()
        with path.open("wb") as file, small.open("wb") as checked:
            writer = RecordWriter(checked)
            writer.write(first)
            file.write(struct.pack("<QI", len(first), 0) + first + bytes(4))
            for step in range(EVENT_STEPS):
                for tag, interval in every.items():
                    if kind == "irregular" and step % interval:
                        continue
                    value = Summary.Value(tag=tag, simple_value=random.random())
                    event = Event(wall_time=1.7e9 + step, step=step, summary=Summary(value=[value]))
                    data = event.SerializeToString()
                    file.write(struct.pack("<QI", len(data), 0) + data + bytes(4))
                    if step * 20 < EVENT_STEPS:  # its checksums take TensorBoard long to write
                        writer.write(data)
        share = accumulated(small) / sum(series.rows for series in read(path).series.values())
        is_good &= ratio(
            f"event files, {kind}",
            ("EventAccumulator", lambda small=small: accumulated(small)),
            lambda path=path: read(path),
            at_least,
            share=share,
        )
    if full:
        records = regular.read_bytes()
        large = folder / "events.out.tfevents.large"
        with large.open("wb") as file:
            while file.tell() < 1 << 30:
                file.write(records)
        is_good &= at_most("event file of 1 GB, peak memory", resident_mib(large), 500)
        large.unlink()
    return is_good


def csv(folder: Path, full: bool) -> bool:
    """CSV: a cell in every column, and the gaps that Lightning's logger leaves."""
    from pyarrow import csv as arrow

    from optdoctor.readers import read

    one_thread = arrow.ReadOptions(use_threads=False)
    is_good = True
    for kind in CSV_HEADERS:
        path = folder / f"{kind}.csv"
        _write_table(path, kind, CSV_BYTES)
        is_good &= ratio(
            f"CSV, {kind}",
            ("pyarrow", lambda path=path: arrow.read_csv(path, one_thread)),
            lambda path=path: read(path),
            0.6,
        )
        # What is left for everything else: the bound of any reader that parses with pyarrow.
        columns = CSV_HEADERS[kind].split(",")
        typed = arrow.ConvertOptions(column_types=dict.fromkeys(columns, "float64"))
        ratio(
            f"CSV, {kind}, pyarrow itself with the types given",
            ("pyarrow", lambda path=path: arrow.read_csv(path, one_thread)),
            lambda path=path, typed=typed: arrow.read_csv(path, one_thread, convert_options=typed),
            0,
        )
        if full:
            _write_table(path, kind, 1 << 30)
            is_good &= at_most(f"CSV of 1 GiB, {kind}, peak memory", resident_mib(path), 300)
        path.unlink()
    return is_good


def _write_table(path: Path, kind: str, size_bytes: int) -> None:
    random.seed(7)
    with path.open("w") as file:
        file.write(CSV_HEADERS[kind] + "\n")
        step = 0
        while file.tell() < size_bytes:
            step += 1
            loss, norm, hits = random.random() + 1, random.random() * 3, random.random()
            if kind == "dense":
                rate = 3e-4 * (1 + step / 1e4)
                file.write(f"{step},{loss!r},{rate:.8g},{norm!r},{step / 1000},{hits!r}\n")
                continue
            file.write(f"{step // 1000},,{step},{loss:.8f},\n")
            if step % 10 == 0:
                file.write(f",{3e-4 * (1 + step / 1e7):.6g},{step},,\n")
            if step % 1000 == 999:
                file.write(f"{step // 1000},,{step},,{loss * 1.1:.8f}\n")


def text(folder: Path, full: bool) -> bool:
    """Text formats as data: lines of Megatron and nanoGPT, beside reading each of them."""
    from unittest import mock

    from optdoctor.readers import read
    from optdoctor.reading.text_stretches import Stretches

    def line_by_line(path: Path) -> None:
        with mock.patch.object(Stretches, "add", lambda self, lines: [*map(self._by_line, lines)]):
            read(path)

    random.seed(7)
    megatron = (
        " [2026-01-02 03:{:02d}:{:02d}] iteration {:8d}/ 5000000 | consumed samples: {:12d} |"
        " elapsed time per iteration (ms): {:.1f} | learning rate: {:.6E} | lm loss: {:.6E} |"
        " loss scale: 1.0 | grad norm: {:.3f} | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |\n"
    )
    is_good = True
    for form in ("megatron", "nanogpt"):
        path = folder / f"{form}.log"
        with path.open("w") as file:
            step = 0
            while file.tell() < TEXT_BYTES:
                step += 1
                loss, ms = 2 + random.random(), 100 + random.random() * 900
                rate, norm = 3e-4 * random.random(), 3 * random.random()
                time_of_day = step // 60 % 60, step % 60
                if form == "megatron":
                    file.write(megatron.format(*time_of_day, step, step * 8, ms, rate, loss, norm))
                else:
                    file.write(f"iter {step}: loss {loss:.4f}, time {ms:.2f}ms, mfu {norm:.2f}%\n")
                if step % 100 == 0 and form == "megatron":
                    file.write(
                        f" validation loss at iteration {step} | lm loss value: {loss:.6E} |\n"
                    )
                elif step % 100 == 0:
                    file.write(f"step {step}: train loss {loss:.4f}, val loss {loss * 1.1:.4f}\n")
        is_good &= ratio(
            f"text formats, {form}",
            ("line by line", lambda path=path: line_by_line(path)),
            lambda path=path: read(path),
            7,
            rounds=3,
        )
    return is_good


FORMATS = {"events": events, "console": console, "state": state, "csv": csv, "text": text}


def main() -> int:
    """Measures and prints; 1 where something is slower or larger than it should be."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser()
    parser.add_argument("formats", nargs="*", choices=[[], *FORMATS], default=[])
    parser.add_argument("--full", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = [FORMATS[name](Path(folder), asked.full) for name in asked.formats or FORMATS]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
