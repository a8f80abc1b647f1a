"""The last resort reads, and says that it guessed."""

import pytest

from optdoctor import diagnose
from optdoctor.findings import Verdict
from optdoctor.readers import claiming, read_source
from optdoctor.reading.reader import Head, Source


@pytest.mark.parametrize(
    "line",
    ["round {n} cost {x}", "cost = {x}", "perplexity: {x} after {n}", "{n} {x}", "{x}", "{n}, {x}"],
)
def test_a_quantity_that_nobody_named_loss_is_read_as_a_guess(line: str) -> None:
    text = "\n".join(line.format(n=n, x=3 - n / 64) for n in range(1, 41))
    trace = read_source(Source(text.encode(), "out.txt"))
    assert trace.reader == "guess"
    assert trace.series["loss"].values.tolist() == [3 - n / 64 for n in range(1, 41)]
    assert trace.facts["loss_kind"] == "unknown"
    assert diagnose(trace).verdict is Verdict.UNKNOWN


def test_a_guess_that_turned_nan_is_found() -> None:
    text = "\n".join(f"cost {3 - n / 64 if n < 60 else float('nan')}" for n in range(1, 90))
    diagnosis = diagnose(read_source(Source(text.encode(), "out.txt")))
    assert {finding.rule for finding in diagnosis.findings} == {"nan-pulse"}


@pytest.mark.parametrize(
    "text",
    [
        "error 404\nerror 500\n",
        "".join(f"{n} {n * n}\n" for n in range(3)),
        "the cost of 5 is 6\n" * 3,
        "1\n2\n3\n4\n5\n6\n7\n",
        "a b c\n" * 20,
    ],
)
def test_few_lines_counters_and_prose_are_no_log(text: str) -> None:
    assert claiming(Head(text.encode())) is None
