"""A run folder that optdoctor itself wrote: run.json, Arrow streams in segments, events.

Every whole batch before a torn one is read. Where a later segment begins at an earlier step, as
after a resume from an older checkpoint, the rows from there on belong to a branch that was left.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from optdoctor.channels import Axis, channel, is_channel
from optdoctor.reading.reader import Unreadable
from optdoctor.trace import Event, EventKind, Fact, Kind, Recorder, TensorInfo, Trace, Vitals

SCHEMA = "optdoctor/run-1"
RUN, EVENTS, FINDINGS = "run.json", "events.jsonl", "findings.jsonl"
STREAMS = {Axis.STEP: "steps-{:04d}.arrows", Axis.TENSOR: "tensors-{:04d}.arrows"}
MAX_BYTES = 1 << 28
"""Size of run.json, or of a JSON-lines file beside it, beyond which it is not read."""
MAX_CELLS = 1 << 25
"""Tensors times kept rows of a channel: what one may take in memory is 128 MiB."""
MAX_CAPACITY = 1 << 20
MAX_NUMBER = 1 << 53
"""Where floats stop holding every integer: no step, and no tensor, reaches it."""

Columns = dict[str, tuple[NDArray[np.bool_], NDArray[Any]]]
"""{column: (valid [n], values [n] or [n, P])} of one batch."""


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
    closed: bool
    """Whether its run came to its end."""


def read_folder(folder: Path) -> Trace:
    """The trace of a run folder.

    Raises:
        Unreadable: run.json is missing or no record.
    """
    record = load(folder)
    recorder = Recorder((), **record.capacities)
    last = replay(folder, record, recorder)
    if not last and not record.facts:
        raise Unreadable("the record holds no row", "let the run make its first update")
    events = record.events
    if not record.closed:
        said = f"This record was not closed: its run was cut off after step {last}, or still trains"
        events = (*events, Event(last, "gap", said))
    return recorder.trace(record.facts, events, origin=str(folder), reader="run-record")


def load(folder: Path) -> Record:
    """run.json and the events of a run folder.

    Raises:
        Unreadable: as `read_folder`.
    """
    remedy = "point at a folder that optdoctor wrote"
    try:
        if not _is_own(folder / RUN):
            raise Unreadable(f"{RUN} is missing, or no file of this folder", remedy)
        if (folder / RUN).stat().st_size > MAX_BYTES:
            raise Unreadable(f"{RUN} is larger than {MAX_BYTES >> 20} MiB", remedy)
        document = json.loads((folder / RUN).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Unreadable(f"{RUN} cannot be read ({type(error).__name__})", remedy) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise Unreadable(f"{RUN} is not of schema {SCHEMA}", remedy)
    try:
        capacities = {
            name: _whole(document["capacities"][name], 2, MAX_CAPACITY)
            for name in Recorder().capacities
        }
        kept_rows = capacities["tensor_capacity"] + capacities["recent"]
        if len(document["tensors"]) > MAX_CELLS // kept_rows:
            raise ValueError("more tensors than are read")
        tensors = tuple(_tensor(row) for row in document["tensors"])
        segments = tuple(_segment(row, len(tensors)) for row in document["segments"])
        if any(b.number <= a.number for a, b in pairwise(segments)):
            raise ValueError("segments out of order")
        facts = {k: v for k, v in document["facts"].items() if _is_fact(k, v)}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Unreadable(f"{RUN} lacks or garbles a part ({error})", remedy) from error
    events = tuple(settled(_events(folder / EVENTS)))
    return Record(facts, tensors, segments, events, capacities, document.get("closed") is True)


def settled(events: Iterable[Event]) -> list[Event]:
    """Events in the order of writing, without those of a branch that a later resume left."""
    kept: list[Event] = []
    for event in events:
        if event.kind == "resume":
            kept = [e for e in kept if e.step < event.step]
        kept.append(event)
    return kept


def replay(folder: Path, record: Record, recorder: Recorder, before: int | None = None) -> int:
    """Feeds the rows of a record to an empty recorder, in the order of a run without detours.

    Only steps below `before` where it is given. Returns the last step, 0 if there is none.
    """
    last = width = 0
    limits = [s.first_step for s in record.segments[1:]] + [before]
    of_step: dict[str, tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]] = {}
    for i, segment in enumerate(record.segments):
        stop = min((x for x in limits[i:] if x is not None), default=MAX_NUMBER)
        # As while it was written: rows from before a tensor are not rows in which it was missing.
        width = max(width, *(c + 1 for c in segment.columns), 0)
        recorder.widen(record.tensors[:width])
        for steps, columns in _batches(folder / STREAMS[Axis.STEP].format(segment.number)):
            for name, (valid, values) in columns.items():
                if _axis(name) is not Axis.STEP or values.ndim != 1:
                    continue
                keep = valid & (steps >= 0) & (steps < stop)
                known = of_step.setdefault(name, ([], []))
                known[0].append(steps[keep])
                known[1].append(values[keep].astype(np.float64))
        for steps, columns in _batches(folder / STREAMS[Axis.TENSOR].format(segment.number)):
            rows = {
                name: column
                for name, column in columns.items()
                if _axis(name) is Axis.TENSOR and column[1].shape[1:] == (len(segment.columns),)
            }
            for row, step in enumerate(steps.tolist()):
                if not last < step < stop:
                    continue
                last = step
                tensors = {
                    name: scatter(values[row], segment.columns, width)
                    for name, (valid, values) in rows.items()
                    if valid[row]
                }
                recorder.add(Vitals(step, tensors=tensors))
    recorder.widen(record.tensors)
    for name, (step_parts, value_parts) in of_step.items():
        steps, values = np.concatenate(step_parts), np.concatenate(value_parts)
        rising = np.diff(np.maximum.accumulate(steps), prepend=-1) > 0
        recorder.extend(name, steps[rising], values[rising])
        last = max(last, int(steps.max(initial=0)))
    return last


def _axis(name: str) -> Axis | None:
    return channel(name).axis if is_channel(name) else None


def scatter(row: NDArray[np.float32], columns: tuple[int, ...], width: int) -> NDArray[np.float32]:
    """[width]: a row of some tensors among all tensors of the run, NaN for the others."""
    if columns == tuple(range(width)):
        return row
    wide = np.full(width, np.nan, np.float32)
    wide[list(columns)] = row
    return wide


def _batches(path: Path) -> Iterator[tuple[NDArray[np.int64], Columns]]:
    """Steps [n] and columns of every whole batch of a stream."""
    import pyarrow as pa

    if not _is_own(path):
        return
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                batch.validate()
                named = zip(batch.schema.names, batch.columns, strict=True)
                columns = {n: column for n, a in named if (column := _column(a)) is not None}
                _, steps = columns.pop("step", (None, None))
                if steps is None or steps.dtype != np.int64:
                    return
                yield steps, columns
    except (OSError, ValueError, pa.ArrowException):  # torn, empty or foreign
        return


def _column(array: Any) -> tuple[NDArray[np.bool_], NDArray[Any]] | None:
    """(valid [n], values), None for a type that no record has."""
    # Through buffers: pyarrow's own conversion imports pandas where it is installed.
    import pyarrow as pa

    kind, n, width = array.type, len(array), 1
    dtype: np.dtype[Any]
    if pa.types.is_fixed_size_list(kind) and pa.types.is_float32(kind.value_type):
        dtype, width, data = np.dtype(np.float32), kind.list_size, array.values.buffers()[1]
    elif pa.types.is_int64(kind) or pa.types.is_float64(kind):
        dtype = np.dtype(np.int64 if pa.types.is_int64(kind) else np.float64)
        data = array.buffers()[1]
    else:
        return None
    bitmap = array.buffers()[0]
    if bitmap is None:
        valid = np.ones(n, bool)
    else:
        bits = np.frombuffer(bitmap, np.uint8)
        valid = np.unpackbits(bits, bitorder="little")[:n].astype(bool)
    values = np.frombuffer(b"" if data is None else data, dtype)[: n * width]
    return valid, values.reshape(n, width) if pa.types.is_fixed_size_list(kind) else values


def _events(path: Path) -> Iterator[Event]:
    for row in json_rows(path):
        try:
            step, kind, old, new = _whole(row["step"]), row["kind"], row["old"], row["new"]
            if kind in get_args(EventKind) and _is_value(old) and _is_value(new):
                yield Event(step, kind, str(row["text"]), old, new)
        except (KeyError, TypeError, ValueError):
            continue


def json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The objects of a JSON-lines file; a torn or foreign line is left out."""
    if not _is_own(path):
        return
    try:
        with path.open("rb") as file:
            size_bytes = min(path.stat().st_size, MAX_BYTES)
            lines = file.read(size_bytes).decode("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def _is_own(path: Path) -> bool:
    """Whether it is a file, and no link to one of another folder."""
    return path.is_file() and Path(os.path.realpath(path)).parent == Path(
        os.path.realpath(path.parent)
    )


def _tensor(row: Mapping[str, Any]) -> TensorInfo:
    values = {"name": row["name"]}
    values |= {f.name: row[f.name] for f in fields(TensorInfo) if f.name in row}
    values["shape"] = tuple(_whole(n) for n in values.get("shape", ()))
    tensor = TensorInfo(**values)
    empty = TensorInfo("")
    for field in fields(TensorInfo):
        if type(getattr(tensor, field.name)) is not type(getattr(empty, field.name)):
            raise TypeError(f"{field.name} of a tensor")
    if tensor.kind not in get_args(Kind) or math.prod(tensor.shape) > MAX_NUMBER:
        raise ValueError("kind or shape of a tensor")
    return tensor


def _segment(row: Mapping[str, Any], num_tensors: int) -> Segment:
    columns = tuple(_whole(c, most=num_tensors - 1) for c in row["columns"])
    if len(set(columns)) < len(columns):
        raise ValueError("columns of a segment")
    return Segment(_whole(row["number"], 1), _whole(row["first_step"]), columns)


def _whole(value: object, least: int = 0, most: int = MAX_NUMBER) -> int:
    if type(value) is not int:
        raise TypeError(f"{type(value).__name__} for a whole number")
    if not least <= value <= most:
        raise ValueError(f"a number outside {least}-{most}")
    return value


def _is_fact(name: str, value: object) -> bool:
    return _axis(name) is Axis.RUN and _is_value(value)


def _is_value(value: object) -> bool:
    return value is None or isinstance(value, float | int | str | bool)
