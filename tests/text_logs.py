"""Reads a few lines of a log in tests of readers."""

import math

from optdoctor.readers import read_source
from optdoctor.reading.reader import Source
from optdoctor.trace import Trace


def read_lines(reader: str, *lines: str) -> Trace:
    """The trace of the lines, which the reader of this name must claim without being asked."""
    trace = read_source(Source("\n".join([*lines, ""]).encode(), "train.log"))
    assert trace.reader == reader
    return trace


def rows_of(trace: Trace, name: str = "loss") -> list[tuple[int, float | None]]:
    """(step, value) of a channel, None for NaN, [] where there is none."""
    if name not in trace.series:
        return []
    series = trace.series[name]
    pairs = zip(series.steps, series.values, strict=True)
    return [(int(step), None if math.isnan(value) else float(value)) for step, value in pairs]
