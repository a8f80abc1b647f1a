"""A run folder that optdoctor itself wrote: run.json, Arrow streams in segments, events.

Every whole batch before a torn one is read. Where a later segment begins at an earlier step, as
after a resume from an older checkpoint, the rows from there on belong to a branch that was left.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optdoctor.channels import Axis, channel, is_channel
from optdoctor.reader import Unreadable
from optdoctor.trace import Event, Fact, Recorder, TensorInfo, Trace, Vitals

SCHEMA = "optdoctor/run-1"
RUN, EVENTS, FINDINGS = "run.json", "events.jsonl", "findings.jsonl"
STREAMS = {Axis.STEP: "steps-{:04d}.arrows", Axis.TENSOR: "tensors-{:04d}.arrows"}
MAX_TENSORS = 1_000_000


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of a record that has its own streams."""

    number: int
    first_step: int
    columns: tuple[int, ...]
    """Positions of the tensors of its rows among all tensors of the run."""


@dataclass(frozen=True)
class Record:
    """What a run folder holds."""

    facts: dict[str, Fact]
    tensors: tuple[TensorInfo, ...]
    segments: tuple[Segment, ...]
    events: tuple[Event, ...]
    capacities: dict[str, int]


def read_folder(folder: Path) -> Trace:
    """The trace of a run folder.

    Raises:
        Unreadable: run.json is missing or no record.
    """
    record = load(folder)
    recorder = Recorder(record.tensors, **record.capacities)
    last = replay(folder, record, recorder)
    if not last and not record.facts:
        raise Unreadable("the record holds no row", "let the run make its first update")
    return recorder.trace(record.facts, record.events, origin=str(folder), reader="run-record")


def load(folder: Path) -> Record:
    """run.json and the events of a run folder.

    Raises:
        Unreadable: as `read_folder`.
    """
    remedy = "point at a folder that optdoctor wrote"
    try:
        document = json.loads((folder / RUN).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Unreadable(f"{RUN} cannot be read ({type(error).__name__})", remedy) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise Unreadable(f"{RUN} is not of schema {SCHEMA}", remedy)
    try:
        tensors = tuple(_tensor(row) for row in document["tensors"][:MAX_TENSORS])
        segments = tuple(
            Segment(int(s["number"]), int(s["first_step"]), tuple(int(c) for c in s["columns"]))
            for s in document["segments"]
        )
        capacities = {k: int(document["capacities"][k]) for k in Recorder().capacities}
        facts = {k: v for k, v in document["facts"].items() if is_channel(k) and _is_fact(v)}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"{RUN} lacks or garbles a part ({error})", remedy) from error
    return Record(facts, tensors, segments, tuple(_events(folder / EVENTS)), capacities)


def replay(folder: Path, record: Record, recorder: Recorder, before: int | None = None) -> int:
    """Feeds the rows of a record to a recorder, in the order of a run without detours.

    Only steps below `before` where it is given. Returns the last step, 0 if there is none.
    """
    last = 0
    limits = [s.first_step for s in record.segments[1:]] + [before]
    of_step: dict[str, tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]] = {}
    for i, segment in enumerate(record.segments):
        stop = min((x for x in limits[i:] if x is not None), default=None)
        path = folder / STREAMS[Axis.STEP].format(segment.number)
        for steps, columns in _batches(path):
            for name, (rows, values) in columns.items():
                if not is_channel(name) or channel(name).axis is not Axis.STEP:
                    continue
                keep = rows if stop is None else rows & (steps < stop)
                known = of_step.setdefault(name, ([], []))
                known[0].append(steps[keep])
                known[1].append(values[keep].astype(np.float64))
        path = folder / STREAMS[Axis.TENSOR].format(segment.number)
        for steps, columns in _batches(path):
            for row, step in enumerate(steps.tolist()):
                if stop is not None and step >= stop:
                    continue
                last = max(last, step)
                tensors = {
                    name: scatter(values[row], segment.columns, len(record.tensors))
                    for name, (rows, values) in columns.items()
                    if rows[row] and values.ndim == 2 and values.shape[1] == len(segment.columns)
                }
                recorder.add(Vitals(step, tensors=tensors))
    for name, (step_parts, value_parts) in of_step.items():
        steps, values = np.concatenate(step_parts), np.concatenate(value_parts)
        recorder.extend(name, steps, values)
        last = max(last, int(steps[-1]) if steps.size else 0)
    return last


def scatter(row: NDArray[np.float32], columns: tuple[int, ...], width: int) -> NDArray[np.float32]:
    """[width]: a row of some tensors among all tensors of the run, NaN for the others."""
    if columns == tuple(range(width)):
        return row
    wide = np.full(width, np.nan, np.float32)
    wide[list(columns)] = row
    return wide


def _batches(
    path: Path,
) -> Iterator[tuple[NDArray[np.int64], dict[str, tuple[NDArray[np.bool_], NDArray[Any]]]]]:
    """Steps and {column: (valid [n], values [n] or [n, P])} of every whole batch of a stream."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                columns = {n: _column(a) for n, a in zip(stream.schema.names, batch, strict=True)}
                steps = columns.pop("step")[1].astype(np.int64)
                yield steps, columns
    except (
        OSError,
        ValueError,
        KeyError,
    ):  # torn, empty or foreign: pa.ArrowInvalid is a ValueError
        return


def _column(array: Any) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    # Through buffers: pyarrow's own conversion imports pandas where it is installed.
    import pyarrow as pa

    n, bitmap = len(array), array.buffers()[0]
    if bitmap is None:
        valid = np.ones(n, bool)
    else:
        bits = np.frombuffer(bitmap, np.uint8)
        valid = np.unpackbits(bits, bitorder="little")[:n].astype(bool)
    if pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        values = np.frombuffer(array.values.buffers()[1], np.float32)[: n * width]
        return valid, values.reshape(n, width)
    kind = np.int64 if pa.types.is_int64(array.type) else np.float64
    return valid, np.frombuffer(array.buffers()[1], kind)[:n]


def _events(path: Path) -> Iterator[Event]:
    for row in json_rows(path):
        try:
            yield Event(int(row["step"]), row["kind"], str(row["text"]), row["old"], row["new"])
        except (KeyError, TypeError, ValueError):
            continue


def json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The objects of a JSON-lines file; a torn or foreign line is left out."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _tensor(row: Mapping[str, Any]) -> TensorInfo:
    known = {f.name for f in fields(TensorInfo)}
    values = {key: value for key, value in row.items() if key in known}
    return TensorInfo(**{**values, "shape": tuple(int(n) for n in values.get("shape", ()))})


def _is_fact(value: object) -> bool:
    return value is None or isinstance(value, float | int | str | bool)
