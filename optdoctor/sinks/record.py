"""Writes the run record: a folder that survives a kill at any moment and can be read on.

The streams are Arrow's; each segment has its own, because nothing can be appended to a stream that
ended or was torn. Rows are built through buffers: pyarrow's conversions import pandas.
"""

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from optdoctor import __version__
from optdoctor.channels import CHANNELS, Axis
from optdoctor.findings import Notice
from optdoctor.readers.run_record import EVENTS, FINDINGS, RUN, SCHEMA, STREAMS, Segment
from optdoctor.trace import Event, Fact, TensorInfo

FLUSH_ROWS = 16
FLUSH_S = 2.0
OURS = b"optdoctor/run-"
"""What stands near the beginning of every run.json of ours."""


class RecordWriter:
    """One run folder, being written."""

    def __init__(self, folder: Path, segments: Sequence[Segment] = ()) -> None:
        self._folder = folder
        self._segments = list(segments)
        self._streams: dict[Axis, _Stream] = {}
        self._metrics: list[str] = []
        self._tensor_channels: tuple[str, ...] = ()
        folder.mkdir(parents=True, exist_ok=True)

    def begin(
        self, first_step: int, columns: tuple[int, ...], tensor_channels: tuple[str, ...]
    ) -> None:
        """Starts a segment: at every start, resume and change of tensors or columns."""
        self._end_streams()
        number = self._segments[-1].number + 1 if self._segments else 1
        # A process killed before it described its segment leaves streams that run.json lacks.
        while any((self._folder / name.format(number)).exists() for name in STREAMS.values()):
            number += 1
        self._segments.append(Segment(number, first_step, columns))
        self._tensor_channels = tensor_channels
        names = [c.name for c in CHANNELS.values() if c.axis is Axis.STEP] + self._metrics
        row = pa.list_(pa.float32(), max(len(columns), 1))
        schemas = {
            Axis.STEP: {name: pa.float64() for name in names},
            Axis.TENSOR: dict.fromkeys(tensor_channels if columns else (), row),
        }
        for axis, columns_of in schemas.items():
            path = self._folder / STREAMS[axis].format(number)
            self._streams[axis] = _Stream(path, columns_of)

    def describe(
        self,
        facts: Mapping[str, Fact],
        tensors: Iterable[TensorInfo],
        capacities: Mapping[str, int],
        **more: Any,
    ) -> None:
        """Writes run.json, whole or not at all."""
        document = {
            "schema": SCHEMA,
            "versions": {"optdoctor": __version__, "python": platform.python_version()},
            "facts": dict(facts),
            "capacities": dict(capacities),
            "segments": [asdict(segment) for segment in self._segments],
            "tensors": [asdict(tensor) for tensor in tensors],
            **more,
        }
        part = self._folder / f"{RUN}.part"
        part.write_text(json.dumps(document, indent=1), "utf-8")
        os.replace(part, self._folder / RUN)

    def knows(self, names: Iterable[str]) -> bool:
        """Whether the current segment has a column for each of these step channels."""
        return all(name in CHANNELS or name in self._metrics for name in names)

    def learn(self, names: Iterable[str]) -> None:
        """Gives the next segment columns for further metrics."""
        new = [n for n in names if n not in CHANNELS and n not in self._metrics]
        self._metrics += new

    def row(self, step: int, values: Mapping[str, float]) -> None:
        """Adds the step channels of one update."""
        self.rows([(step, values)])

    def rows(self, rows: Iterable[tuple[int, Mapping[str, float]]]) -> None:
        """Adds the step channels of several."""
        self._add(Axis.STEP, rows)

    def sample(self, step: int, tensors: Mapping[str, NDArray[np.float32]]) -> None:
        """Adds the tensor channels of one sampled update, rows as wide as the segment's columns."""
        self._add(Axis.TENSOR, [(step, tensors)])

    def events(self, events: Iterable[Event]) -> None:
        """Appends to events.jsonl."""
        self._append(EVENTS, [asdict(event) for event in events])

    def notices(self, notices: Iterable[Notice]) -> None:
        """Appends to findings.jsonl."""
        rows = [
            {
                "announced": notice.step,
                "what": notice.what,
                "rule": notice.finding.rule,
                "was": notice.was,
                "severity": notice.finding.severity,
                "finding": asdict(notice.finding),
            }
            for notice in notices
        ]
        self._append(FINDINGS, rows)

    def flush(self) -> None:
        """Hands every waiting row to the operating system."""
        for stream in self._streams.values():
            stream.flush()

    def close(self) -> None:
        """Ends the streams."""
        self._end_streams()

    def _add(self, axis: Axis, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        self._streams[axis].add(rows)
        now = time.monotonic()
        for stream in self._streams.values():  # a sample must not wait for the next one
            stream.flush_if_due(now)

    def _end_streams(self) -> None:
        with ExitStack() as ending:  # each is ended, also after one that fails
            for stream in self._streams.values():
                ending.callback(stream.close)
            self._streams = {}

    def _append(self, name: str, rows: list[dict[str, Any]]) -> None:
        if rows:
            with (self._folder / name).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


class _Stream:
    """One Arrow stream; the schema is in the file before the first row."""

    def __init__(self, path: Path, columns: Mapping[str, Any]) -> None:
        self._columns = dict(columns)
        schema = pa.schema([("step", pa.int64()), *self._columns.items()])
        self._schema = schema
        # Unbuffered: a batch that was written survives the end of the process.
        self._file = path.open("xb", buffering=0)
        self._writer = pa.ipc.new_stream(self._file, schema)
        self._waiting: list[tuple[int, Mapping[str, Any]]] = []
        self._flushed = time.monotonic()
        self._write([])

    def add(self, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        self._waiting.extend(rows)

    def flush_if_due(self, now: float) -> None:
        if len(self._waiting) >= FLUSH_ROWS or now - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._write(self._waiting)
            self._waiting = []
        self._flushed = time.monotonic()

    def close(self) -> None:
        try:
            self.flush()
            self._writer.close()
        finally:
            self._file.close()

    def _write(self, rows: list[tuple[int, Mapping[str, Any]]]) -> None:
        steps = np.array([step for step, _ in rows], np.int64)
        arrays = [pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(steps)])]
        for name, kind in self._columns.items():
            arrays.append(_array(kind, [values.get(name) for _, values in rows]))
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))


def _array(kind: Any, cells: list[Any]) -> Any:
    if all(cell is None for cell in cells):
        return pa.nulls(len(cells), kind)
    valid = np.array([cell is not None for cell in cells], bool)
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    if not pa.types.is_fixed_size_list(kind):
        values = np.array([np.nan if c is None else c for c in cells], np.float64)
        return pa.Array.from_buffers(kind, len(cells), [bitmap, pa.py_buffer(values)])
    block = np.full((len(cells), kind.list_size), np.nan, np.float32)
    for row, cell in enumerate(cells):
        if cell is not None:
            block[row] = cell
    child = pa.Array.from_buffers(pa.float32(), block.size, [None, pa.py_buffer(block)])
    return pa.Array.from_buffers(kind, len(cells), [bitmap], children=[child])


def set_aside(folder: Path) -> None:
    """Moves an old record in `folder` to `folder/earlier-N`: one folder is one run.

    Streams and run.json would be in the way; files whose names others use too are moved only with
    a run.json that is ours.
    """
    patterns = [RUN, "steps-*.arrows", "tensors-*.arrows"]
    if _is_record(folder):
        patterns += [EVENTS, FINDINGS, "report.html", "tensorboard", "batches/step-*.pt"]
    _move_aside(folder, [path for pattern in patterns for path in folder.glob(pattern)])


def make_room(folder: Path, parts: Sequence[str]) -> None:
    """Sets aside records that a reader of `folder` would take for parts of the run to come.

    `parts` names the subfolders of a run of several optimizers; it is empty for a single one, whose
    record lies in `folder` itself.
    """
    if parts and _is_record(folder):
        set_aside(folder)
    numbered = [path for path in folder.glob("[0-9]*") if path.name.isdecimal()]
    _move_aside(folder, [p for p in numbered if p.name not in parts and _is_record(p)])


def _is_record(folder: Path) -> bool:
    """Whether `folder` holds a run.json of ours, whole or not, or one beside our streams."""
    try:
        with (folder / RUN).open("rb") as file:
            ours = OURS in file.read(256)
    except OSError:
        return False
    return ours or any(folder.glob("steps-*.arrows"))


def _move_aside(folder: Path, old: Sequence[Path]) -> None:
    if not old:
        return
    number = 1
    while (folder / f"earlier-{number}").exists():
        number += 1
    aside = folder / f"earlier-{number}"
    aside.mkdir()
    for path in old:
        place = aside / path.relative_to(folder)
        place.parent.mkdir(exist_ok=True)
        path.rename(place)
