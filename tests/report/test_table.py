"""A table of the channels holds what was read, and reads back as the same run."""

import io
import json

import numpy as np
import pytest
from pyarrow import parquet

from optdoctor.readers import read_source
from optdoctor.reading.reader import Source
from optdoctor.report import table
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

LOSSES = [2.5, np.nan, np.inf, -np.inf, 0.1]


def trace() -> Trace:
    return make_trace(
        {"metric:accuracy of, all": [0.5, 0.75]},
        loss=LOSSES,
        grad_norm=[1.0, np.nan],
        eval_loss=[3.0],
        steps={
            "loss": [1, 2, 3, 4, 10],
            "grad_norm": [2, 4],
            "eval_loss": [10],
            "metric:accuracy of, all": [1, 10],
        },
    )


def rows(read: Trace, name: str) -> list[tuple[int, str]]:
    series = read.series[name]
    return [(int(s), repr(float(v))) for s, v in zip(series.steps, series.values, strict=True)]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_table_reads_back_as_the_same_run(form: str) -> None:
    again = read_source(Source(table.render(trace(), form), f"table.{form}"))
    assert set(again.series) == set(trace().series)
    for name in ("loss", "grad_norm", "eval_loss"):
        assert rows(again, name) == rows(trace(), name)


def test_json_lines_are_strict_and_what_was_not_measured_is_absent() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    lines = table.render(trace(), "jsonl").decode().splitlines()
    found = [json.loads(line, parse_constant=refuse) for line in lines]
    assert found[1] == {"step": 2, "loss": "NaN", "grad_norm": 1.0}
    assert found[2:4] == [
        {"step": 3, "loss": "Infinity"},
        {"step": 4, "loss": "-Infinity", "grad_norm": "NaN"},
    ]


def test_parquet_tells_nan_from_what_was_not_measured() -> None:
    found = parquet.read_table(io.BytesIO(table.render(trace(), "parquet")))
    assert found.column_names[:2] == ["step", "loss"]
    norms = found["grad_norm"].to_pylist()
    assert norms[0] is None
    assert norms[2] is None
    assert np.isnan(norms[3])
    assert found["step"].to_pylist() == [1, 2, 3, 4, 10]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_run_without_steps_is_an_empty_table(form: str) -> None:
    written = table.render(Trace(), form)
    if form == "parquet":
        assert parquet.read_table(io.BytesIO(written)).num_rows == 0
    else:
        assert written == {"csv": b"step\n", "jsonl": b""}[form]
