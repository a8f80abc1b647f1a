"""The engine of text formats: numbers, names, steps, and what a torn line may not say."""

import math
import re

import pytest

from optdoctor.reading.log import Log
from optdoctor.reading.reader import Head, Source
from optdoctor.reading.text_format import NUMBER, PAIRS, Line, TextFormat, lines_of, value_of
from optdoctor.trace import Trace

PLAIN = TextFormat(
    name="plain",
    lines=(Line(r"^step <step>:", pairs=":", mark="step"),),
    aliases={"cost": "loss"},
    sample="step 1: cost: 2.5\nstep 2: cost: 2.25\n",
)


def read(of: TextFormat, text: str) -> Trace:
    log = Log(aliases=of.reader.aliases)
    of.reader.read(Source(text.encode(), "log"), log)
    return log.trace("log", of.name)


def values(trace: Trace, name: str = "loss") -> dict[int, str]:
    series = trace.series[name]
    return {int(s): repr(float(v)) for s, v in zip(series.steps, series.values, strict=True)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2.5", 2.5),
        ("-2.5e-03", -0.0025),
        (".5", 0.5),
        ("3.", 3.0),
        ("1E+00", 1.0),
        ("10,050", 10050.0),
        ("1,234,567.5", 1234567.5),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
        ("NaN", math.nan),
        ("-nan", math.nan),
        ("nanxxx", math.nan),
        ("-nan(ind)", math.nan),
        ("1.#QNAN", math.nan),
        ("-1.#INF00", -math.inf),
    ],
)
def test_a_number_is_known_in_every_spelling(text: str, value: float) -> None:
    found = re.fullmatch(NUMBER, text)
    assert found
    assert repr(value_of(found[0])) == repr(value)


@pytest.mark.parametrize("text", ["nanms", "nanogpt", "nanmean", "info", "infer", "e5", "-", "."])
def test_false_friends_are_no_numbers(text: str) -> None:
    assert re.match(NUMBER + r"(?![\w.])", text) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("loss: 2.5, lr: 1e-3", {"loss": "2.5", "lr": "1e-3"}),
        ("lm loss: 2.5 | grad norm: 0.1 |", {"lm loss": "2.5", "grad norm": "0.1"}),
        ("loss=2.5 acc=0.5", {"loss": "2.5", "acc": "0.5"}),
        ("'loss': '2.5', \"acc\": nan", {"loss": "2.5", "acc": "nan"}),
        (
            "memory: 66.91GiB(37.51%)  tps: 10,050  mfu: 3%",
            {"memory": "66.91", "tps": "10,050", "mfu": "3"},
        ),
        ("eta: 5:02:49, loss: 2.5", {"loss": "2.5"}),
        ("date: 2026-01-02 loss: 2.5", {"loss": "2.5"}),
        ("loss: tensor(2.5, device='cuda:0')", {"loss": "2.5"}),
        ("scores (higher is better) : 2.5", {"scores (higher is better)": "2.5"}),
        ("**loss**: **2.5**", {"loss": "2.5"}),
        ("19s 76ms/step - loss: 1.95", {"loss": "1.95"}),
        ("step_avg:nanms loss:2", {"loss": "2"}),
        ("lr=[9.6e-06, 9.6e-06], mom=[(0.9, 0.95)]", {"lr": "9.6e-06", "mom": "0.9"}),
    ],
)
def test_pairs_are_found_between_units_and_brackets(text: str, found: dict[str, str]) -> None:
    assert {pair["key"]: pair["value"] for pair in re.finditer(PAIRS[":"], text)} == found


def test_a_line_gives_its_names_their_channels_and_others_become_metrics() -> None:
    trace = read(PLAIN, "step 1: cost: 2.5, accuracy: 0.5, eta: 3, grad_norm: 1\n")
    assert set(trace.series) == {"loss", "metric:accuracy", "grad_norm"}


def test_steps_within_epochs_are_steps_of_the_run() -> None:
    of = TextFormat(
        name="epochs",
        lines=(Line(r"^epoch <epoch> \[<iter>/<per_epoch>\] loss <loss>"),),
        sample="",
    )
    text = "".join(f"epoch {e} [{i}/100] loss {e}.{i}\n" for e in (1, 2) for i in (50, 100))
    assert values(read(of, text)) == {50: "1.5", 100: "1.1", 150: "2.5", 200: "2.1"}


def test_a_line_that_opens_a_block_says_where_the_lines_below_it_stand() -> None:
    of = TextFormat(
        name="blocks",
        lines=(Line(r"^\[batch=<step>/<total>\]:"), Line(r"^ loss: <loss>")),
        sample="",
    )
    trace = read(of, "[batch=10/90]:\n  loss: 2.5\n[batch=20/90]:\n  loss: 2.25\n")
    assert values(trace) == {10: "2.5", 20: "2.25"}
    assert trace.facts["total_steps"] == 90


def test_a_perplexity_becomes_what_it_is_the_exponential_of() -> None:
    of = TextFormat(
        name="perplexities",
        lines=(Line(r"^step <step>:", pairs=":"),),
        aliases={"ppl": "eval_loss"},
        convert={"ppl": math.log},
        sample="",
    )
    assert values(read(of, "step 1: ppl: 1\nstep 2: ppl: -1\n"), "eval_loss") == {
        1: "0.0",
        2: "nan",
    }


def test_a_torn_number_at_the_end_is_no_value() -> None:
    whole = "step 1: cost: 12.25\nstep 2: cost: 12.50\n"
    assert values(read(PLAIN, whole + "step 3: cost: 12.7")) == {1: "12.25", 2: "12.5"}
    assert values(read(PLAIN, whole + "step 3: cost: 12.75")) == {1: "12.25", 2: "12.5", 3: "12.75"}
    assert values(read(PLAIN, whole + "step 3: cost: 1\n"))[3] == "1.0"
    assert values(read(PLAIN, whole + "step 3: cost: nan"))[3] == "nan"
    assert values(read(PLAIN, "number: 0\n" + whole + "step 3: cost: 12.7")) == {
        1: "12.25",
        2: "12.5",
    }


def test_colours_and_carriage_returns_are_no_text() -> None:
    source = Source(b"\x1b[32mstep 1\x1b[0m: cost: 2\rstep 2: cost: 3\r\n\x1b[2Kend", "log")
    assert [" ".join(line.split()) for line in lines_of(source)] == [
        "step 1 : cost: 2",
        "step 2: cost: 3",
        "end",
    ]


def test_a_line_that_shows_the_mark_and_no_row_is_skipped_and_shown() -> None:
    trace = read(PLAIN, "step 1: cost: 2\nstep two: cost: 3\nwords\n")
    assert trace.lines_skipped == 1
    assert trace.reading is not None
    assert [text for _, text in trace.reading.skipped] == ["step two: cost: 3"]


def test_only_lines_that_claim_tell_the_format() -> None:
    of = TextFormat(
        name="two", lines=(Line(r"^a <loss>"), Line(r"^b <lr>", claims=False)), sample=""
    )
    assert of.reader.sniff(Head(b"a 1\nb 2\na 3\n")) == 2
    assert of.reader.sniff(Head(b"b 2\n")) == 0
