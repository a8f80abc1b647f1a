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


def test_what_is_behind_train_is_the_loss_and_behind_val_that_of_the_evaluation() -> None:
    text = "\n".join(f"> {n}/9 | train {3 - n / 64} | val {4 - n / 64} | 1.5s" for n in range(1, 9))
    trace = read_source(Source(text.encode(), "out.txt"))
    assert trace.reader == "guess"
    assert trace.series["loss"].values.tolist() == [3 - n / 64 for n in range(1, 9)]
    assert trace.series["eval_loss"].values.tolist() == [4 - n / 64 for n in range(1, 9)]


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"We paid a cost of some kind.\ncost {n}.5\ncost is high.\n" for n in range(9)),
        "cost 1\nThe cost 2\nA cost 3\nThat cost 4\nMy cost 5\nHis cost 6\n",
        '{\n "a": {\n' + "".join(f'  "cost": 2.{n},\n' for n in range(9)) + " }\n}\n",
    ],
)
def test_most_lines_with_the_word_have_to_be_rows_of_one_shape(text: str) -> None:
    assert claiming(Head(text.encode())) is None
