"""The step channels of a trace as a table: CSV, JSON lines or Parquet.

One row a step. A cell that was not measured is empty in CSV, absent in JSON lines and null in
Parquet; NaN and infinity are themselves, in JSON lines as texts, which every parser takes.
"""

import csv
import io
import json
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from optdoctor.store import Series
from optdoctor.trace import Trace

_WORDS = {math.inf: "Infinity", -math.inf: "-Infinity"}


def render(trace: Trace, form: str) -> bytes:
    """`form`: csv, jsonl or parquet."""
    names, steps, columns, measured = _columns(trace)
    if form == "parquet":
        return _parquet(names, steps, columns, measured)
    rows = _rows(steps, columns, measured)
    if form == "jsonl":
        return "".join(_object(names, row) for row in rows).encode()
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", *names])
    table.writerows(["" if cell is None else repr(cell) for cell in row] for row in rows)
    return text.getvalue().encode()


def _step_series(trace: Trace) -> dict[str, Series]:
    """{channel: series} of what varies over steps alone."""
    return {name: series for name, series in trace.series.items() if series.values.ndim == 1}


def _columns(
    trace: Trace,
) -> tuple[list[str], NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """(C names, [T] steps, [C, T] values, [C, T] whether they were measured)."""
    series = _step_series(trace)
    names = sorted(series, key=lambda name: (name.startswith("metric:"), name != "loss", name))
    every = [series[name].steps for name in names]
    steps = np.unique(np.concatenate(every)) if every else np.empty(0, np.int64)
    columns = np.full((len(names), len(steps)), np.nan)
    measured = np.zeros(columns.shape, bool)
    for i, name in enumerate(names):
        where = np.searchsorted(steps, series[name].steps)
        columns[i, where], measured[i, where] = series[name].values, True
    return names, steps, columns, measured


def _rows(
    steps: NDArray[np.int64], columns: NDArray[np.float64], measured: NDArray[np.bool_]
) -> Iterator[list[int | float | None]]:
    for i, step in enumerate(steps.tolist()):
        cells = zip(columns[:, i].tolist(), measured[:, i].tolist(), strict=True)
        yield [step, *(cell if known else None for cell, known in cells)]


def _object(names: list[str], row: list[int | float | None]) -> str:
    step, *cells = row
    known = {n: cell for n, cell in zip(names, cells, strict=True) if cell is not None}
    said = {n: v if math.isfinite(v) else _WORDS.get(v, "NaN") for n, v in known.items()}
    return json.dumps({"step": step, **said}) + "\n"


def _parquet(
    names: list[str],
    steps: NDArray[np.int64],
    columns: NDArray[np.float64],
    measured: NDArray[np.bool_],
) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    # Through buffers: from arrays pyarrow would import pandas where it is installed.
    arrays = [pa.Array.from_buffers(pa.int64(), len(steps), [None, pa.py_buffer(steps)])]
    for column, known in zip(columns, measured, strict=True):
        bits = pa.py_buffer(np.packbits(known, bitorder="little"))
        values = pa.py_buffer(np.ascontiguousarray(column))
        arrays.append(pa.Array.from_buffers(pa.float64(), len(steps), [bits, values]))
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(arrays, names=["step", *names]), sink)
    return bytes(sink.getvalue())
