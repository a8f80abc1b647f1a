"""Which readers are loaded for a log, and about how much of it they are asked."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from test_docs import script

from optdoctor import readers
from optdoctor.readers import registry
from optdoctor.reading import dispatch
from optdoctor.reading.log import Log
from optdoctor.reading.reader import HEAD_BYTES, Head, Rank, Reader, Source
from optdoctor.reading.text_format import Line, TextFormat

ALL = readers.readers()
FIRST = 1 << 16
BEFORE = "nothing that anybody trains, a line of words without numbers\n"


def has_mark(reader: Reader, head: Head) -> bool:
    if reader.rank is Rank.BYTES:
        return any(mark.encode() in head.data for mark in reader.marks)
    return any(mark in head.text for mark in reader.marks)


def without_marks(head: Head) -> list[str]:
    """The readers that claim a head which holds none of their marks."""
    marked = [reader for reader in ALL if reader.marks and not has_mark(reader, head)]
    return [reader.name for reader in marked if reader.sniff(head)]


def counting(name: str, rank: Rank, asked: list[int]) -> Reader:
    """A reader of lines "<name> .."; sizes of the heads that it is asked about go to `asked`."""

    def sniff(head: Head) -> int:
        asked.append(len(head.data))
        return sum(line.startswith(f"{name} ") for line in head.lines)

    def read(source: Source, log: Log) -> None:
        log.row({"loss": 1.0})

    return Reader(name, sniff, read, rank=rank)


def claim(text: str, *known: Reader) -> dispatch.Claim:
    def candidates(rank: Rank, head: Head) -> Sequence[Reader]:
        return [reader for reader in known if reader.rank is rank]

    found = dispatch.claim_of(Source(text.encode(), "log"), candidates)
    assert found is not None
    return found


# The index


def test_the_index_is_what_the_readers_say() -> None:
    assert registry.INDEX.read_text("utf-8") == script().index(), "run `make docs`"


@pytest.mark.parametrize("reader", ALL, ids=lambda reader: reader.name)
def test_what_a_reader_claims_of_the_samples_holds_one_of_its_marks(reader: Reader) -> None:
    assert without_marks(Head(reader.sample.encode())) == []


@pytest.mark.skipif("OPTDOCTOR_CORPUS" not in os.environ, reason="needs the real logs")
def test_what_a_reader_claims_of_the_real_logs_holds_one_of_its_marks() -> None:
    paths = sorted(Path(os.environ["OPTDOCTOR_CORPUS"]).iterdir())
    heads = {path.name: Source.of_file(path).head for path in paths if path.is_file()}
    assert heads
    assert {name: found for name, head in heads.items() if (found := without_marks(head))} == {}


def test_a_claim_without_a_mark_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Reader("wrong", lambda head: 1, lambda source, log: None, marks=("mark",))
    monkeypatch.setattr(sys.modules[__name__], "ALL", (wrong,))
    assert without_marks(Head(b"anything")) == ["wrong"]
    assert without_marks(Head(b"a mark")) == []


def test_a_text_format_has_the_marks_of_the_lines_that_tell_it() -> None:
    lines = (Line("a", mark="A"), Line("b", mark="B"), Line("c", claims=False), Line("d", mark="A"))
    assert TextFormat("one", lines, "").reader.marks == ("A", "B")
    assert TextFormat("two", (*lines, Line("e")), "").reader.marks == ()


# What is loaded


def names(rank: Rank, data: bytes) -> list[str]:
    return [reader.name for reader in registry.candidates(rank, Head(data))]


def test_only_readers_whose_marks_stand_in_a_log_are_asked() -> None:
    assert names(Rank.FORMAT, b"elapsed time per iteration") == ["megatron"]
    assert names(Rank.FORMAT, b"3 1 4") == []
    assert names(Rank.FORMAT, "elapsed time per iteration".encode("utf-16")) == ["megatron"]
    assert names(Rank.BYTES, b"elapsed time per iteration") == []
    assert names(Rank.BYTES, b"\xff\xfe\0brain.Event:2") == ["tensorboard"]


def test_a_reader_without_marks_is_always_asked() -> None:
    unmarked = {reader.name for reader in ALL if not reader.marks}
    assert {"csv", "guess", "prints"} <= unmarked
    found = {name for rank in Rank for name in names(rank, b"3 1 4")}
    assert found == unmarked


def test_a_module_that_is_not_in_the_index_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    index = registry._index()
    monkeypatch.setattr(registry, "_index", lambda: {m: e for m, e in index.items() if m != "olmo"})
    assert names(Rank.FORMAT, b"3 1 4") == ["olmo"]
    assert names(Rank.TABLE, b"3 1 4") == ["csv", "long-table", "prints"]


LOADED = """
import json, sys
from optdoctor import readers
print(readers.read(sys.argv[1]).reader)
print(json.dumps([m.removeprefix("optdoctor.") for m in sys.modules if m.startswith("optdoctor.")]))
"""


def loaded_for(path: Path) -> tuple[str, set[str]]:
    """The reader of a log, and our modules that a process has loaded when it has read it."""
    command = [sys.executable, "-c", LOADED, str(path)]
    reader, modules = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.split("\n", 1)
    return reader, set(json.loads(modules))


def test_a_small_log_loads_few_modules(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"{{'loss': {3 - i / 9}, 'epoch': {i / 9}}}\n" for i in range(9)))
    reader, loaded = loaded_for(path)
    assert reader == "huggingface-console"
    assert {m for m in loaded if m.startswith("readers.")} == {
        *("readers.registry", "readers.huggingface_console")
    }
    shared = ("text_format", "table_format", "table_header", "table_rows", "event_file")
    assert not loaded & {f"reading.{module}" for module in shared}


def test_a_small_table_loads_few_modules(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n" + "".join(f"{i},{3 - i / 9}\n" for i in range(9)))
    reader, loaded = loaded_for(path)
    assert reader == "csv"
    own = {module.name.replace("-", "_") for module in ALL}
    assert {m.removeprefix("readers.") for m in loaded if m.startswith("readers.")} & own == {
        *("console_table", "huggingface_console", "long_table", "prints"),
    }


# How much of a log is asked


def test_the_first_lines_decide_where_most_of_them_are_rows() -> None:
    asked: list[int] = []
    table = counting("table", Rank.TABLE, asked)
    found = claim("table 1234567\n" * 99_999, table)
    assert (found.reader, found.why) == (table, "4,681 rows of table in the first 64 KiB")
    assert max(asked) <= FIRST
    assert max(asked) % len("table 1234567\n") == 0  # whole lines


def test_all_of_the_head_is_asked_where_most_lines_are_no_rows() -> None:
    asked: list[int] = []
    text = BEFORE * 600 + ("table 1\n" + BEFORE) * 20_000
    found = claim(text, counting("table", Rank.TABLE, asked))
    assert found.why.endswith("rows of table in the first MiB")
    assert max(asked) == HEAD_BYTES


def test_a_format_of_a_tool_goes_before_a_table_of_which_less_is_seen_first() -> None:
    asked: list[int] = []
    known = [counting("table", Rank.TABLE, asked), counting("tool", Rank.FORMAT, asked)]
    late = ("table 1\n" + BEFORE * 2) * 600 + "tool 1\n" * 9
    assert claim(late, *known).reader.name == "tool"
    assert claim("tool 1\n" * 3 + "table 1\n" * 99_999, *known).reader.name == "tool"


def test_a_format_of_a_tool_is_clear_between_bars_unless_another_is_there() -> None:
    asked: list[int] = []
    tool, other = counting("tool", Rank.FORMAT, asked), counting("other", Rank.FORMAT, asked)
    rows = ("tool 1\n" + BEFORE * 5) * 60
    later = rows + BEFORE * 900 + "other 1\n" * 900
    assert claim(later, tool, other).reader is tool
    assert max(asked) <= FIRST
    assert claim("other 1\n" * 9 + later, tool, other).reader is other
    few = ("tool 1\n" + BEFORE * 20) * 49
    assert claim(few + BEFORE * 900 + "other 1\n" * 900, tool, other).reader is other


def test_a_guess_is_asked_about_all_of_the_head() -> None:
    asked: list[int] = []
    found = claim("guess 1\n" * 99_999, counting("guess", Rank.GUESS, asked))
    assert found.why.endswith("rows of guess in the first MiB")
    assert asked == [len("guess 1\n" * 99_999)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_the_first_lines_are_the_same_in_every_encoding(encoding: str) -> None:
    head = Head(("gültig 1\r\n" * 50_000).encode(encoding))
    first = dispatch._first_lines(head)
    assert first is not None
    assert set(first.lines) == {head.lines[0]}
    assert 3000 < len(first.lines) < len(head.lines)


def test_one_line_longer_than_the_first_lines_may_be_is_asked_as_a_whole() -> None:
    assert dispatch._first_lines(Head(b"x" * 3 * FIRST)) is None
    assert dispatch._first_lines(Head(b"short\n" * 9)) is None
