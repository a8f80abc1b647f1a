"""Which reader gets a log, why, and what is said where none does."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from optdoctor import readers
from optdoctor.cli import main
from optdoctor.reading import dispatch
from optdoctor.reading.log import Log
from optdoctor.reading.reader import HEAD_BYTES, Head, Rank, Reader, Source, Unreadable

MIB = 1 << 20
PROSE = "It was a dark and stormy night, and nothing was trained at all.\n"


def reader_of(name: str, rank: Rank = Rank.FORMAT, **more: str) -> Reader:
    """A reader of lines "<name> <loss>"."""
    row = re.compile(rf"^{name} (\d+)$", re.M)

    def read(source: Source, log: Log) -> None:
        for line in source.lines():
            if found := row.match(line):
                log.row({"loss": float(found[1])})

    more.setdefault("sample", f"{name} 1\n{name} 2\n")
    return Reader(name, lambda head: len(row.findall(head.text)), read, rank=rank, **more)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> tuple[Reader, ...]:
    known = (
        reader_of("guess", Rank.GUESS),
        reader_of("table", Rank.TABLE),
        reader_of("tool"),
        reader_of("engine"),
    )
    monkeypatch.setattr(readers, "readers", lambda: known)
    of_rank = {rank: [reader for reader in known if reader.rank is rank] for rank in Rank}
    monkeypatch.setattr(readers, "candidates", lambda rank, head: of_rank[rank])
    return known


def read(text: str) -> readers.Trace:
    return readers.read_source(Source(text.encode(), "log"))


# Claims


def test_a_format_goes_before_a_table_and_a_table_before_a_guess(few: object) -> None:
    lines = "guess 1\n" * 30 + "table 1\n" * 20 + "tool 1\n"
    assert read(lines).reader == "tool"
    assert read(lines.replace("tool", "")).reader == "table"
    assert read("guess 1\n").reader == "guess"
    assert readers.claiming(Head(lines.encode())).name == "tool"
    assert readers.claiming(Head(b"nothing")) is None


def test_within_a_rank_most_rows_decide(few: object) -> None:
    assert read("tool 1\nengine 1\nengine 2\n").reader == "engine"
    assert read("tool 1\ntool 2\nengine 2\n").reader == "tool"


def test_the_trace_says_why_its_reader_claimed_it(few: object) -> None:
    reading = read("tool 1\n" * 1234 + "engine 2\n" * 3).reading
    assert reading is not None
    assert reading.why == "1,234 rows of tool in the first MiB; also engine: 3"
    assert not reading.guessed
    assert read("table 1\n").reading.why == "1 row of table in the first MiB"
    assert read("guess 1\n").reading.guessed
    named = readers.read_source(Source(b"table 1\ntool 1\n", "log"), "table")
    assert named.reading.why == "the reader table was asked for"


def test_what_the_engine_collected_of_the_reading_is_kept() -> None:
    reading = read("step 0: train loss 4.25, val loss 4.5\niter 1: loss 4.1, time 5ms\n").reading
    assert reading is not None
    assert reading.why.startswith("2 rows of nanogpt")


# Logs that begin with something else


@pytest.mark.parametrize("before", [1.2, 7.5, 14.4])
def test_a_log_behind_a_long_beginning_is_found(few: object, before: float) -> None:
    beginning = PROSE * int(before * MIB / len(PROSE))
    trace = read(beginning + "".join(f"tool {i}\n" for i in range(1, 200_000)))
    assert trace.series["loss"].rows == 199_999
    assert re.match(r"[\d,]+ rows of tool in MiB \d+$", trace.reading.why)


def test_a_log_behind_a_long_beginning_comes_through_a_pipe_too(few: object) -> None:
    from test_source import pipe

    text = PROSE * (3 * MIB // len(PROSE)) + "".join(f"tool {i}\n" for i in range(1, 9))
    assert readers.read_source(pipe(text.encode())).series["loss"].rows == 8


def test_a_format_further_on_goes_before_a_guess_in_the_beginning(few: object) -> None:
    text = "guess 1\n" + PROSE * (2 * MIB // len(PROSE)) + "tool 1\n"
    assert read(text).reader == "tool"
    assert read(text.replace("tool", "tolo")).reader == "guess"


def test_a_log_that_shows_its_format_only_at_its_end_is_read_from_its_beginning(
    few: object, tmp_path: Path
) -> None:
    path = tmp_path / "train.log"
    beyond = PROSE * (18 * MIB // len(PROSE))
    path.write_text(beyond + "tool 1\n" + PROSE * (3 * MIB // len(PROSE)) + "tool 2\ntool 3\n")
    trace = readers.read(path)
    assert trace.series["loss"].rows == 3
    assert trace.reading.why == "2 rows of tool in the last MiB"


def test_a_table_behind_a_long_beginning_has_all_its_rows() -> None:
    rows = "".join(f"{i},{3 - i / 9000}\n" for i in range(1, 9001))
    text = PROSE * (MIB // len(PROSE) + 1) + "\n" * 9 + "step,loss\n" + rows
    reading = readers.read_source(Source(text.encode(), "log"))
    assert reading.series["loss"].rows >= 8000


# Unknown formats


def told_of(text: str | bytes) -> Unreadable:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(Unreadable) as told:
        readers.read_source(Source(data, "log"))
    return told.value


def test_an_unknown_format_names_the_three_nearest_and_what_each_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = (
        reader_of("one", sample="one alpha beta gamma\none 1\n"),
        reader_of("two", sample="two 1 alpha beta\n"),
        reader_of("three", sample="three 1 alpha\n"),
        reader_of("four", sample="four 1 delta\n", wants="line of four"),
    )
    monkeypatch.setattr(readers, "readers", lambda: known)
    error = told_of("delta epsilon\n" * 5)
    assert re.search(r"nearest are four \(no line of four\), \w+ \(.*\), \w+ \(.*\)$", error.reason)
    error = told_of("alpha beta gamma\n" * 5)
    assert "nearest are one (no line like 'one 1'), two (no line like 'two 1 alpha beta')," in (
        f"{error.reason},"
    )
    assert "`optdoctor formats` lists the 4 known ones" in error.remedy


def test_words_that_only_one_format_has_count_more() -> None:
    samples = {"one": "one step loss alpha\n", "too": "too step loss gamma\n", "two": "two beta\n"}
    known = tuple(reader_of(name, sample=sample) for name, sample in samples.items())
    assert dispatch.nearest(Head(b"step loss beta"), known)[0].name == "two"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Schritt 3, Fehler ungefaehr 2.5, iter, time, mfu\n" * 3, "nanogpt"),
        ("consumed samples, elapsed time per iteration, global batch size\n" * 3, "megatron"),
    ],
)
def test_a_format_that_resembles_a_known_one_names_it(text: str, name: str) -> None:
    assert f"{name} (no " in told_of(text).reason


def test_an_unknown_format_is_one_line_and_exit_2(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(PROSE * 100)
    result = CliRunner().invoke(main, ["analyze", str(path)])
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert result.stderr.count("(no ") == 3
    assert f"lists the {len(readers.readers())} known ones" in result.stderr


def test_every_reader_can_say_what_a_log_would_have_to_show() -> None:
    for reader in readers.readers():
        if reader.sample:
            assert re.fullmatch(r"no [^\r\n]{3,120}", dispatch.missing(reader)), reader.name


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40,
        b"\x80\x02}q\x00(X\x07\x00\x00\x00" + bytes(5000),
        bytes(range(128, 256)) * 99,
    ],
)
def test_binary_data_is_called_so(data: bytes) -> None:
    assert "binary data" in told_of(data).reason


def test_blank_data_is_empty_and_a_head_of_blanks_is_not_all(few: object) -> None:
    assert "is empty" in told_of(" \n\r\n\t").reason
    assert read(" \n" * HEAD_BYTES + "tool 1\n").series["loss"].rows == 1


def test_an_unknown_file_of_many_megabytes_does_not_take_long() -> None:
    import time

    start = time.process_time()
    told_of("".join(f"request {i} took {i % 97} ms and gave {i * 7}\n" for i in range(600_000)))
    assert time.process_time() - start < 10


def test_the_formats_are_listed_and_each_shows_its_sample() -> None:
    from click.testing import CliRunner

    from optdoctor.cli import main
    from optdoctor.readers import readers

    listed = CliRunner().invoke(main, ["formats"])
    assert listed.exit_code == 0
    assert all(f"  {reader.name} " in listed.stdout for reader in readers())
    assert max(map(len, listed.stdout.splitlines())) <= 80
    one = CliRunner().invoke(main, ["formats", "nanogpt"]).stdout
    assert "iter 0: loss" in one
    assert CliRunner().invoke(main, ["formats", "nothing"]).exit_code == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "time,temperature\n1,20.5\n2,21.5\n3,20\n",
            "nearest are csv (no header that names a loss)",
        ),
        ("time;temperature\n1;20,5\n2;21,5\n", "nearest are csv (no header that names a loss)"),
        (
            '{"a": 1}\n{"a": 2}\n',
            "nearest are json-lines (no object a line with a number named loss)",
        ),
    ],
)
def test_a_table_or_json_lines_without_a_loss_is_told_so(text: str, told: str) -> None:
    assert told in told_of(text).reason
