"""The run record: killed, torn, foreign or hostile, it gives whole rows or says why not."""

import importlib.util
import json
import os
import random
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from click.testing import CliRunner
from small_training import failures, net, quiet, train

import optdoctor
from optdoctor.cli import main
from optdoctor.live.journal import Journal
from optdoctor.reading.reader import Unreadable
from optdoctor.sinks.record import FLUSH_ROWS, FLUSH_S
from optdoctor.trace import Event, TensorInfo, Trace

ROOT = Path(__file__).parent.parent
TENSORS = (TensorInfo("a", (2,), order=0), TensorInfo("b", (3,), order=1))
NUM_ROWS = 3 * FLUSH_ROWS


def script() -> ModuleType:
    """scripts/kill_record.py as a module."""
    path = ROOT / "scripts" / "kill_record.py"
    spec = importlib.util.spec_from_file_location("kill_record", path)
    assert spec and spec.loader  # noqa: PT018 (for the type checker)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def begun(
    folder: Path, *, resumed: bool = False, channels: tuple[str, ...] = ("grad_rms",)
) -> Journal:
    journal = Journal(folder, channels)
    journal.open({"framework": "torch"}, resumed=resumed, first_step=None)
    journal.retrack(TENSORS, journal.last_step + 1)
    return journal


def add(journal: Journal, step: int) -> None:
    journal.row(step, {"loss": step + 0.5, "lr": 1 / step})
    journal.sample(step, {"grad_rms": np.array([step, -step], np.float32)})


def write(folder: Path, rows: int = NUM_ROWS) -> Path:
    journal = begun(folder)
    for step in range(1, rows + 1):
        add(journal, step)
    journal.event(Event(rows, "checkpoint", "last"))
    journal.close()
    assert journal.failure is None
    return folder


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Three whole batches on each axis."""
    return write(tmp_path / "run")


def right(trace: Trace) -> tuple[int, int]:
    """Rows and samples of a trace; every one of them must be what was written."""
    loss, sample = trace.series.get("loss"), trace.series.get("grad_rms")
    num_rows = 0 if loss is None else len(loss.steps)
    num_samples = 0 if sample is None else len(sample.steps)
    if loss is not None:
        assert loss.steps.tolist() == list(range(1, num_rows + 1))
        assert loss.values.tolist() == [step + 0.5 for step in range(1, num_rows + 1)]
    if sample is not None:
        assert sample.steps.tolist() == list(range(1, num_samples + 1))
        assert sample.values.tolist() == [[s, -s] for s in range(1, num_samples + 1)]
    return num_rows, num_samples


def analyzed(path: Path) -> Any:
    """What the command line makes of a path: never its own fault, always a document."""
    result = CliRunner().invoke(main, ["analyze", str(path), "--format", "json"])
    assert result.exit_code in (0, 1, 2), result.output
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    text = CliRunner().invoke(main, ["analyze", str(path)])
    assert text.exit_code == result.exit_code
    assert "\x1b" not in text.output
    return json.loads(result.stdout)


# killed


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_loses_at_most_one_batch() -> None:
    rows = 0
    for number, (read, wrong) in enumerate(script().lives(10, seed=1), 1):
        assert wrong == [], f"kill {number}"
        rows += read
    assert rows > 100, "the writer was never let live"


@pytest.mark.slow
def test_the_check_of_kills_sees_a_record_that_lies(tmp_path: Path) -> None:
    kills = script()
    progress = tmp_path / "progress"
    np.zeros(3, np.int64).tofile(progress)
    _, wrong = kills.one_life(tmp_path / "run", progress, 0.2)
    assert wrong == []
    first, last, done = np.fromfile(progress, np.int64).tolist()
    assert kills.examine(tmp_path / "run", first, last + 100, done + 100)[1] != []
    assert kills.examine(tmp_path / "run", first, last - 100, done - 100)[1] != []
    loss = kills.loss
    kills.loss = lambda steps: loss(steps) + (steps == 3)
    assert "a loss is not" in str(kills.examine(tmp_path / "run", first, last, done)[1])


def test_a_killed_run_goes_on_where_its_record_ends(tmp_path: Path) -> None:
    journal = begun(tmp_path)  # never closed: what waits for its batch is lost
    for step in range(1, NUM_ROWS + 8):
        add(journal, step)
    assert right(optdoctor.read(tmp_path)) == (NUM_ROWS, NUM_ROWS)
    again = begun(tmp_path, resumed=True)
    assert again.last_step == NUM_ROWS
    for step in range(NUM_ROWS + 1, NUM_ROWS + 11):
        add(again, step)
    again.close()
    assert right(optdoctor.read(tmp_path)) == (NUM_ROWS + 10, NUM_ROWS + 10)
    assert right(again.trace()) == (NUM_ROWS + 10, NUM_ROWS + 10)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_a_resumed_run_does_not_hold_on_to_its_old_files(record: Path) -> None:
    journal = begun(record, resumed=True)  # one cut short under our hands would end the process
    assert str(record) not in Path("/proc/self/maps").read_text()
    assert right(journal.trace()) == (NUM_ROWS, NUM_ROWS)


def test_a_run_killed_before_it_described_its_segment_goes_on(record: Path) -> None:
    for name in ("steps-0002.arrows", "tensors-0002.arrows"):
        (record / name).write_bytes(b"")
    (record / "run.json.part").write_text('{"schema": "optdo')
    journal = begun(record, resumed=True)
    add(journal, NUM_ROWS + 1)
    journal.close()
    assert journal.failure is None
    assert right(optdoctor.read(record)) == (NUM_ROWS + 1, NUM_ROWS + 1)


def test_a_run_killed_before_its_first_row_reads_as_empty(tmp_path: Path) -> None:
    begun(tmp_path)
    assert right(optdoctor.read(tmp_path)) == (0, 0)
    assert [len(run["findings"]) for run in analyzed(tmp_path)["runs"]] == [0]


def test_a_sample_does_not_wait_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, now = begun(tmp_path), time.monotonic()
    add(journal, 1)
    assert right(optdoctor.read(tmp_path)) == (0, 0)
    monkeypatch.setattr(time, "monotonic", lambda: now + 2 * FLUSH_S)
    journal.row(2, {"loss": 2.5, "lr": 1 / 2})
    assert right(optdoctor.read(tmp_path)) == (2, 1)


def test_a_full_disk_ends_the_record_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    doctor = quiet(model, optimizer, tmp_path / "run")
    train(model, optimizer, 20, doctor)
    writer = "optdoctor.sinks.record.RecordWriter"

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"{writer}.rows", full)
    train(model, optimizer, 20, doctor, first=20)
    if Path("/proc/self/fd").exists():
        held = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
        assert not any(str(tmp_path) in path for path in held)
    doctor.close()
    (text,) = failures(doctor)
    assert "No space left on device" in text
    assert len(doctor.runs[0].trace.series["loss"].steps) == 40
    assert optdoctor.read(tmp_path / "run").steps[1] >= FLUSH_ROWS


# torn


def test_a_stream_cut_at_any_byte_gives_its_whole_batches(tmp_path: Path) -> None:
    journal = begun(tmp_path)
    path = tmp_path / "tensors-0001.arrows"
    ends = [path.stat().st_size]
    for step in range(1, NUM_ROWS + 1):
        add(journal, step)
        if step % FLUSH_ROWS == 0:
            ends.append(path.stat().st_size)
    journal.close()
    whole = path.read_bytes()
    assert len(whole) < 4000, "every byte is tried"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        batches = sum(end <= length for end in ends[1:])
        assert right(optdoctor.read(tmp_path)) == (NUM_ROWS, batches * FLUSH_ROWS), length


def test_a_stream_of_steps_cut_anywhere_gives_its_whole_batches(record: Path) -> None:
    path = record / "steps-0001.arrows"
    whole = path.read_bytes()
    seen = set()
    for length in (*range(0, len(whole), 53), len(whole)):
        path.write_bytes(whole[:length])
        rows, samples = right(optdoctor.read(record))
        assert samples == NUM_ROWS
        seen.add(rows)
    assert seen == {0, 16, 32, 48}


TAILS = {
    "zeros": b"\0" * 4096,
    "garbage": random.Random(0).randbytes(4096),
    "text": b"No space left on device\n" * 10,
    "a huge batch declared": struct.pack("<iI", -1, 0x7FFFFFF0) + b"\0" * 64,
    "a negative length declared": struct.pack("<ii", -1, -8) + b"\0" * 64,
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_what_lies_behind_the_last_whole_batch_is_left_out(tail: bytes, tmp_path: Path) -> None:
    journal = begun(tmp_path)
    for step in range(1, NUM_ROWS + 1):
        add(journal, step)
    for name in ("steps-0001.arrows", "tensors-0001.arrows"):
        with (tmp_path / name).open("ab") as file:
            file.write(tail)
    tracemalloc.start()
    assert right(optdoctor.read(tmp_path)) == (NUM_ROWS, NUM_ROWS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6


def test_damaged_bytes_never_become_a_traceback(record: Path) -> None:
    chance = random.Random(0)
    for name in ("steps-0001.arrows", "tensors-0001.arrows", "events.jsonl", "run.json"):
        whole = (record / name).read_bytes()
        for _ in range(150):
            damaged = bytearray(whole)
            for _ in range(chance.choice((1, 1, 8, 64))):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            (record / name).write_bytes(damaged)
            try:
                optdoctor.diagnose(optdoctor.read(record))
            except Unreadable:
                assert name == "run.json"
        (record / name).write_bytes(whole)
    assert right(optdoctor.read(record)) == (NUM_ROWS, NUM_ROWS)


def test_no_single_byte_makes_a_batch_hold_more_than_it_has(tmp_path: Path) -> None:
    path = write(tmp_path / "run", FLUSH_ROWS) / "tensors-0001.arrows"
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + b"\xff" + whole[position + 1 :])
        optdoctor.read(tmp_path / "run")
    path.write_bytes(whole)
    assert right(optdoctor.read(tmp_path / "run")) == (FLUSH_ROWS, FLUSH_ROWS)


# foreign


def stream(path: Path, columns: dict[str, Any], **options: Any) -> None:
    """Replaces a stream by one of these columns."""
    table = pa.table(columns)
    with pa.ipc.new_stream(path, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as out:
        out.write_table(table)


STEPS = pa.array([1, 2, 3], pa.int64())
PAIRS = pa.array([[1, -1], [2, -2], [3, -3]], pa.list_(pa.float32(), 2))
FOREIGN_STEPS: dict[str, dict[str, Any]] = {
    "no step": {"loss": [1.5, 2.5, 3.5]},
    "steps of another type": {"step": pa.array([1, 2, 3], pa.int32()), "loss": [1.5, 2.5, 3.5]},
    "steps as numbers": {"step": [1.0, 2.0, 3.0], "loss": [1.5, 2.5, 3.5]},
    "text": {"step": STEPS, "loss": ["one", "two", "three"]},
    "integers": {"step": STEPS, "grad_norm": pa.array([1, 2, 3], pa.int8())},
    "float32": {"step": STEPS, "loss": pa.array([1.5, 2.5, 3.5], pa.float32())},
    "truth": {"step": STEPS, "loss": [True, False, True]},
    "lists": {"step": STEPS, "loss": [[1.5], [2.5, 1], []]},
    "vectors": {"step": STEPS, "loss": PAIRS},
    "a dictionary": {"step": STEPS, "loss": pa.array(["a", "b", "a"]).dictionary_encode()},
    "a structure": {"step": STEPS, "loss": [{"x": 1.5}] * 3},
    "nothing": {"step": STEPS, "loss": pa.nulls(3)},
    "unknown names": {"step": STEPS, "../../etc/passwd": [1.5] * 3, "eps": [1.0] * 3},
    "tensor channels": {"step": STEPS, "update_rms": [1.5] * 3},
}
FOREIGN_TENSORS: dict[str, dict[str, Any]] = {
    "unknown names": {"step": STEPS, "no_channel": PAIRS, "loss": PAIRS, "metric:x": PAIRS},
    "another width": {"step": STEPS, "grad_rms": pa.array([[1.0]] * 3, pa.list_(pa.float32(), 1))},
    "another type": {"step": STEPS, "grad_rms": pa.array([[1, 2]] * 3, pa.list_(pa.float64(), 2))},
    "no fixed width": {"step": STEPS, "grad_rms": pa.array([[1, 2]] * 3, pa.list_(pa.float32()))},
    "scalars": {"step": STEPS, "grad_rms": [1.0, 2.0, 3.0]},
    "width 0": {"step": STEPS, "grad_rms": pa.array([[]] * 3, pa.list_(pa.float32(), 0))},
}


@pytest.mark.parametrize("columns", FOREIGN_STEPS.values(), ids=FOREIGN_STEPS)
def test_a_foreign_stream_of_steps_gives_no_row(columns: dict[str, Any], record: Path) -> None:
    stream(record / "steps-0001.arrows", columns)
    trace = optdoctor.read(record)
    assert right(trace) == (0, NUM_ROWS)
    assert trace.series.keys() == {"grad_rms"}
    analyzed(record)


@pytest.mark.parametrize("columns", FOREIGN_TENSORS.values(), ids=FOREIGN_TENSORS)
def test_a_foreign_stream_of_samples_gives_no_row(columns: dict[str, Any], record: Path) -> None:
    stream(record / "tensors-0001.arrows", columns)
    trace = optdoctor.read(record)
    assert right(trace) == (NUM_ROWS, 0)
    assert trace.series.keys() == {"loss", "lr"}
    analyzed(record)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_stream_that_others_compressed_is_read(compression: str | None, record: Path) -> None:
    options = {"compression": compression}
    stream(record / "steps-0001.arrows", {"step": STEPS, "loss": [1.5, 2.5, 3.5]}, **options)
    stream(record / "tensors-0001.arrows", {"step": STEPS, "grad_rms": PAIRS}, **options)
    assert right(optdoctor.read(record)) == (3, 3)


def test_steps_that_do_not_rise_are_left_out(record: Path) -> None:
    steps = pa.array([-5, 1, 2, 2, 1, 3, None, 2**60], pa.int64())
    losses = [9.0, 1.5, 2.5, 9.0, 9.0, 3.5, 9.0, 9.0]
    stream(record / "steps-0001.arrows", {"step": steps, "loss": losses})
    row = {step: [step, -step] for step in (1, 2, 3)}
    rows = pa.array(
        [[9, 9], row[1], row[2], [9, 9], [9, 9], row[3], [9, 9], [9, 9]], pa.list_(pa.float32(), 2)
    )
    stream(record / "tensors-0001.arrows", {"step": steps, "grad_rms": rows})
    assert right(optdoctor.read(record)) == (3, 3)


def test_a_null_is_no_row_and_a_nan_is_one(record: Path) -> None:
    losses = pa.array([1.5, None, float("nan")], pa.float64())
    stream(record / "steps-0001.arrows", {"step": STEPS, "loss": losses})
    series = optdoctor.read(record).series["loss"]
    assert series.steps.tolist() == [1, 3]
    assert series.first_bad.tolist() == [-1, 3]


def test_a_folder_or_a_pipe_in_place_of_a_stream_is_no_stream(record: Path) -> None:
    for name, make in (("steps-0001.arrows", Path.mkdir), ("tensors-0001.arrows", os.mkfifo)):
        (record / name).unlink()
        make(record / name)
    assert right(optdoctor.read(record)) == (0, 0)


# hostile


def changed(**parts: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document.update(parts)


def tensor(**parts: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["tensors"][0].update(parts)


def segment(**parts: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["segments"][0].update(parts)


def capacity(**parts: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["capacities"].update(parts)


REFUSED: dict[str, Callable[[dict[str, Any]], object]] = {
    "another schema": changed(schema="optdoctor/run-9"),
    "no schema": lambda document: document.pop("schema"),
    "no facts": lambda document: document.pop("facts"),
    "facts as a list": changed(facts=["eps", 1]),
    "no tensors": lambda document: document.pop("tensors"),
    "tensors as a number": changed(tensors=7),
    "tensors of text": changed(tensors=["name"]),
    "no segments": lambda document: document.pop("segments"),
    "segments of nothing": changed(segments=[None]),
    "capacities missing": changed(capacities={}),
    "no room for rows": capacity(step_capacity=0),
    "room for fewer than no rows": capacity(tensor_capacity=-1),
    "endless room": capacity(step_capacity=10**30),
    "room as text": capacity(recent="64"),
    "a tensor without a name": lambda document: document["tensors"][0].pop("name"),
    "a name that is a number": tensor(name=5),
    "an unknown kind": tensor(kind="../../etc"),
    "a huge tensor": tensor(shape=[2**62, 2**62]),
    "a negative tensor": tensor(shape=[-3]),
    "a shape of text": tensor(shape="23"),
    "an order of text": tensor(order="first"),
    "trained maybe": tensor(trainable="maybe"),
    "columns beyond the tensors": segment(columns=[0, 2]),
    "columns below the tensors": segment(columns=[0, -1]),
    "the same column twice": segment(columns=[1, 1]),
    "columns of text": segment(columns=["0", "1"]),
    "a segment with a path for a number": segment(number="../../etc/passwd"),
    "segment 0": segment(number=0),
    "a first step that is no number": segment(first_step=None),
    "the same segment again and again": lambda document: document["segments"].extend(
        document["segments"] * 1000
    ),
    "more tensors than fit": lambda document: document["tensors"].extend(
        document["tensors"][:1] * 70_000
    ),
}


def rewrite(record: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((record / "run.json").read_text())
    change(document)
    (record / "run.json").write_text(json.dumps(document))


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_a_hostile_description_is_refused(
    change: Callable[[dict[str, Any]], object], record: Path
) -> None:
    rewrite(record, change)
    with pytest.raises(Unreadable):
        optdoctor.read(record)
    (error,) = analyzed(record)["errors"]
    assert error["path"] == str(record)
    # A run that resumes does not build on it, and does not fail either.
    journal = begun(record, resumed=True)
    add(journal, 1)
    journal.close()
    assert journal.failure is None
    assert right(optdoctor.read(record)) == (1, 1)
    assert (record / "earlier-1" / "run.json").is_file()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"schema": "optdoctor/run-1"'],
    ids=["empty", "no text", "a list", "null", "deep", "torn"],
)
def test_a_description_that_is_none_is_refused(content: bytes, record: Path) -> None:
    (record / "run.json").write_bytes(content)
    with pytest.raises(Unreadable):
        optdoctor.read(record)
    assert len(analyzed(record)["errors"]) == 1


@pytest.mark.parametrize(
    "facts",
    [
        {"loss": 1.0, "grad_rms": 2.0, "unknown": 3, "eps": [1], "beta1": {"a": 1}},
        {"../../etc/passwd": "x", "framework": "\x1b[31m<script>alert(1)</script>\x1b[0m" * 100},
        {"eps": float("nan"), "beta2": float("inf"), "num_classes": 10**300, "world_size": -1},
        {"state_dtype": 5, "math_dtype": None, "eps": "1e-8", "beta2": True},
    ],
    ids=["no facts", "names", "numbers", "types"],
)
def test_hostile_facts_are_left_out_or_harmless(facts: dict[str, Any], record: Path) -> None:
    rewrite(record, changed(facts=facts))
    trace = optdoctor.read(record)
    assert right(trace) == (NUM_ROWS, NUM_ROWS)
    assert not trace.facts.keys() & {"loss", "grad_rms", "unknown", "../../etc/passwd"}
    assert not any(isinstance(value, list | dict) for value in trace.facts.values())
    assert analyzed(record)["runs"][0]["outcomes"]["crashed"] == {}


def test_hostile_names_are_printed_as_plain_text(record: Path) -> None:
    rewrite(record, tensor(name="\x1b]0;owned\x07../../etc/passwd\n" + "x" * 10_000))
    assert right(optdoctor.read(record)) == (NUM_ROWS, NUM_ROWS)
    analyzed(record)


def test_hostile_events_are_left_out(record: Path) -> None:
    good = json.loads((record / "events.jsonl").read_text())
    lines = [
        "",
        "[1]",
        "{" * 100_000,
        '{"step": 1',
        *(
            json.dumps({**good, **change})
            for change in (
                {"step": "1"},
                {"step": -1},
                {"step": 10**30},
                {"step": float("inf")},
                {"kind": "explosion"},
                {"kind": ["resume"]},
                {"old": {"a": 1}},
            )
        ),
        json.dumps({k: v for k, v in good.items() if k != "text"}),
    ]
    with (record / "events.jsonl").open("a") as file:
        file.write("\n".join(lines))
    assert [event.text for event in optdoctor.read(record).events] == ["last"]
    analyzed(record)


def test_a_small_record_cannot_ask_for_much_memory(record: Path) -> None:
    # 20,000 tensors, of which a row covers one, at every one of 200 samples.
    names = [{"name": f"t{i}"} for i in range(20_000)]
    rewrite(record, changed(tensors=names))
    rewrite(record, segment(columns=[19_999]))
    rows = pa.array([[1.0]] * 200, pa.list_(pa.float32(), 1))
    stream(record / "tensors-0001.arrows", {"step": pa.array(range(1, 201)), "grad_rms": rows})
    tracemalloc.start()
    trace = optdoctor.read(record)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert trace.series["grad_rms"].values.shape == (200, 20_000)
    assert peak < 80e6


# an older record in the folder


def test_a_fresh_start_moves_the_old_record_aside_whole(record: Path) -> None:
    (record / "notes.txt").write_text("mine")
    before = {path.name for path in record.iterdir()} - {"notes.txt"}
    write(record, 5)
    assert {path.name for path in (record / "earlier-1").iterdir()} == before
    assert right(optdoctor.read(record / "earlier-1")) == (NUM_ROWS, NUM_ROWS)
    assert right(optdoctor.read(record)) == (5, 5)
    assert (record / "notes.txt").read_text() == "mine"
    write(record, 6)
    assert right(optdoctor.read(record / "earlier-2")) == (5, 5)


@pytest.mark.parametrize("foreign", [True, False], ids=["a run.json of others", "no run.json"])
def test_files_of_the_user_stay_where_they_are(foreign: bool, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    (tmp_path / "findings.jsonl").write_text("mine")
    (tmp_path / "run.json").write_text('{"mine": 1}') if foreign else None
    write(tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"
    assert (tmp_path / "findings.jsonl").read_text() == "mine"
    assert (tmp_path / "earlier-1").exists() is foreign, "ours would have overwritten it"


def steps_of(out: Path, optimizers: int, steps: int) -> None:
    model = net()
    several = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(optimizers)]
    with quiet(model, several, out) as doctor:
        for _ in range(steps):
            doctor.log(loss=1.0)
            for optimizer in several:
                optimizer.step()


def test_a_run_of_several_optimizers_sets_a_single_record_aside_and_the_other_way_round(
    tmp_path: Path,
) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "run.json").write_text('{"mine": 1}')
    steps_of(tmp_path, 1, 4)
    assert (tmp_path / "0").exists(), "no record of ours"
    (tmp_path / "0" / "run.json").unlink()
    steps_of(tmp_path, 3, 5)
    assert not (tmp_path / "run.json").exists()
    assert optdoctor.read(tmp_path / "earlier-1").steps == (1, 4)
    assert len(analyzed(tmp_path)["runs"]) == 3
    steps_of(tmp_path, 2, 6)
    assert len(analyzed(tmp_path)["runs"]) == 2
    assert optdoctor.read(tmp_path / "earlier-2" / "2").steps == (1, 5)
    assert optdoctor.read(tmp_path / "0" / "earlier-1").steps == (1, 5)
    steps_of(tmp_path, 1, 7)
    assert optdoctor.read(tmp_path).steps == (1, 7)
    assert not (tmp_path / "0").exists()
    assert optdoctor.read(tmp_path / "earlier-3" / "1").steps == (1, 6)


# pandas


def python(code: str, fake: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(fake), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


WRITE_AND_READ = """
import sys
from pathlib import Path
import numpy as np
from optdoctor.live.journal import Journal
from optdoctor.trace import TensorInfo
from optdoctor.cli import main

folder = Path(sys.argv[1])
journal = Journal(folder, ("grad_rms",))
journal.open({"framework": "torch"}, resumed=False, first_step=None)
journal.retrack((TensorInfo("a"), TensorInfo("b")), 1)
for step in range(1, 40):
    journal.row(step, {"loss": 1.0 / step, "metric:late": step} if step > 20 else {"loss": 2.0})
    journal.sample(step, {"grad_rms": np.ones(2, np.float32)})
journal.close()
assert journal.failure is None, journal.failure
again = Journal(folder, ("grad_rms",))
again.open({}, resumed=True, first_step=None)
assert again.last_step == 39
main(["analyze", str(folder)])
"""


def test_neither_writing_nor_reading_imports_pandas(tmp_path: Path) -> None:
    fake, witness = tmp_path / "fake", tmp_path / "imported"
    (fake / "pandas").mkdir(parents=True)
    (fake / "pandas" / "__init__.py").write_text(
        f"open({str(witness)!r}, 'w').close()\nraise RuntimeError('pandas was imported')\n"
    )
    result = python(WRITE_AND_READ, fake, str(tmp_path / "run"))
    assert result.returncode == 0, result.stderr
    assert "39 steps" in result.stdout
    assert not witness.exists()
    control = python("import pyarrow; pyarrow.array([1.5]).to_numpy()", fake)
    assert witness.exists(), "pyarrow's own conversions would have been seen"
    assert control.returncode != 0 or witness.exists()
