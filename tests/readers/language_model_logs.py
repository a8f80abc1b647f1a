"""What the tests of the text formats of language-model trainers share."""

import math

from optdoctor.readers import read_source
from optdoctor.reading.reader import Source
from optdoctor.trace import Trace


def read(reader: str, *lines: str) -> Trace:
    """The trace of these lines, which `reader` has to claim by itself."""
    trace = read_source(Source("\n".join([*lines, ""]).encode(), "train.log"))
    assert trace.reader == reader
    return trace


def rows(trace: Trace, name: str = "loss") -> dict[int, float | str]:
    """{step: value}, a value that is not finite as text, so that NaN equals itself."""
    series = trace.series[name]
    return {
        int(step): float(value) if math.isfinite(value) else str(float(value))
        for step, value in zip(series.steps, series.values, strict=True)
    }
