"""What every reader of a text format must hold to; a new reader is picked up by itself."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdoctor.channels import Axis, channel
from optdoctor.readers import read_source, readers
from optdoctor.reading.reader import HEAD_BYTES, Head, Reader, Source, Unreadable
from optdoctor.trace import Trace

TEXT_READERS = [reader for reader in readers() if reader.sample]
GARBAGE = (
    b"warning: the disk is almost full, 3 GB left",
    b"caf\xe9 g\xfcltig",
    b"\x00\x00\x00",
    b"Traceback (most recent call last):",
    b"{'",
    b"50%|#####     | 1/2 [00:01<00:01,  1.00s/it]",
    b'"',
)

each_reader = pytest.mark.parametrize("reader", TEXT_READERS, ids=lambda reader: reader.name)


def rows(trace: Trace) -> dict[str, list[tuple[int, str]]]:
    """{channel: (step, value as text)}: as text a NaN equals itself."""
    return {
        name: [(int(step), repr(float(v))) for step, v in zip(s.steps, s.values, strict=True)]
        for name, s in trace.series.items()
    }


def read(data: bytes, name: str | None = None) -> Trace:
    return read_source(Source(data, "log"), name)


def rows_or_none(data: bytes, name: str | None = None) -> dict[str, list[tuple[int, str]]]:
    try:
        return rows(read(data, name))
    except Unreadable:
        return {}


def main_series(sample: bytes) -> str:
    """`loss`, or another series where the format has none."""
    series = read(sample).series
    return "loss" if "loss" in series else next(iter(series))


def is_within_a_line(data: bytes, cut: int) -> bool:
    """Whether a cut shows little that others do not: far from line ends, and not the third one."""
    return cut % 3 > 0 and b"\n" not in data[max(cut - 3, 0) : cut + 4]


def with_garbage(sample: bytes, garbage: bytes) -> bytes:
    """A line of garbage after every second line."""
    lines = sample.split(b"\n")
    return b"\n".join(b"\n".join([*lines[i : i + 2], garbage]) for i in range(0, len(lines), 2))


def test_there_are_text_readers() -> None:
    assert {"csv", "huggingface-console", "huggingface-state", "json-lines"} <= {
        reader.name for reader in TEXT_READERS
    }


@each_reader
def test_exactly_one_reader_claims_the_sample(reader: Reader) -> None:
    head = Head(reader.sample.encode())
    rivals = [r for r in TEXT_READERS if r.rank <= reader.rank and r.sniff(head)]
    assert [r.name for r in rivals] == [reader.name]
    assert read(reader.sample.encode()).reader == reader.name


@each_reader
def test_the_sample_reads_to_rows_with_rising_steps(reader: Reader) -> None:
    trace = read(reader.sample.encode())
    assert trace.series[main_series(reader.sample.encode())].rows >= 2
    for series in trace.series.values():
        assert (np.diff(series.steps) > 0).all()
    assert trace.lines_skipped == 0


@each_reader
def test_aliases_point_into_the_vocabulary_or_drop_the_name(reader: Reader) -> None:
    targets = {target for target in reader.aliases.values() if target}
    assert all(channel(target).axis is Axis.STEP for target in targets)


@each_reader
def test_a_cut_anywhere_keeps_all_complete_rows(reader: Reader) -> None:
    data = reader.sample.encode()
    whole = rows(read(data))
    complete: dict[str, list[tuple[int, str]]] = {}
    for cut in range(len(data)):
        if data[:cut].endswith(b"\n"):
            complete = rows_or_none(data[:cut], reader.name)
            for name, kept in complete.items():
                assert whole[name][: len(kept)] == kept
        elif is_within_a_line(data, cut):
            continue
        found = rows_or_none(data[:cut], reader.name)
        for name, kept in complete.items():
            assert found[name][: len(kept)] == kept
        assert len(found.get("loss", ())) <= len(complete.get("loss", ())) + 1


@each_reader
def test_every_line_that_is_complete_counts(reader: Reader) -> None:
    data = reader.sample.encode()
    ends = [at + 1 for at, byte in enumerate(data) if byte == ord("\n")]
    name = main_series(data)
    num_rows = [len(rows_or_none(data[:end], reader.name).get(name, ())) for end in ends]
    assert num_rows == sorted(num_rows)
    assert max(np.diff(num_rows)) == 1
    assert num_rows[-1] == read(data).series[name].rows


@each_reader
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_between_the_lines_changes_no_row(reader: Reader, garbage: bytes) -> None:
    data = reader.sample.encode()
    assert rows(read(with_garbage(data, garbage))) == rows(read(data))


@each_reader
def test_the_encoding_changes_no_row(reader: Reader) -> None:
    expected = rows(read(reader.sample.encode()))
    dos = reader.sample.replace("\n", "\r\n")
    for data in (
        dos.encode(),
        dos.encode("utf-8-sig"),
        reader.sample.encode("utf-16"),
        dos.encode("utf-16-be"),
        b"\xfe\xff" + dos.encode("utf-16-be"),
        dos.encode().replace(b"\r", b"\r\x00").replace(b" ", b"\x00 "),
    ):
        assert rows(read(data)) == expected


@each_reader
def test_the_sniff_looks_at_the_beginning_only(reader: Reader) -> None:
    noise = b"x" * HEAD_BYTES
    assert not reader.sniff(Source(noise + reader.sample.encode(), "log").head)


@given(data=st.binary(max_size=400))
@settings(deadline=None)
def test_random_bytes_are_at_most_unreadable(data: bytes) -> None:
    rows_or_none(data)
    for reader in TEXT_READERS:
        rows_or_none(data, reader.name)


@each_reader
@given(choices=st.data())
@settings(deadline=None, max_examples=25)
def test_a_damaged_sample_is_at_most_unreadable(reader: Reader, choices: st.DataObject) -> None:
    data = reader.sample.encode()
    start = choices.draw(st.integers(0, len(data)))
    stop = choices.draw(st.integers(start, len(data)))
    damaged = data[:start] + choices.draw(st.binary(max_size=40)) + data[stop:]
    rows_or_none(damaged)
    rows_or_none(damaged, reader.name)


@each_reader
@pytest.mark.parametrize("mark", ["{", "[", '{"loss":', "{'", '"', ",", "(", "\x1b[", "9", "\n{"])
def test_a_mark_repeated_thousands_of_times_costs_no_more_than_its_length(
    reader: Reader, mark: str
) -> None:
    data = (reader.sample + mark * 30_000).encode()
    start = time.process_time()
    rows_or_none(data, reader.name)
    # It takes 0.2 s at most; what grows with the square takes 2 s and more.
    assert time.process_time() - start < 1
