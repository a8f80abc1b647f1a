"""Reading small tables in tests."""

from pathlib import Path

from optdoctor.readers import read_source
from optdoctor.reading.reader import Source
from optdoctor.trace import Fact, Trace


def read(text: str, reader: str | None = None, name: str = "metrics.csv") -> Trace:
    return read_source(Source(text.encode(), name, Path(name)), reader)


def steps(trace: Trace, name: str = "loss") -> list[int]:
    return [int(step) for step in trace.series[name].steps]


def values(trace: Trace, name: str = "loss") -> list[float]:
    return [float(value) for value in trace.series[name].values]


def facts(trace: Trace, *names: str) -> list[Fact]:
    return [trace.facts.get(name) for name in names]
