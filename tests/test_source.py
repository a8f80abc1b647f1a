"""Where bytes come from: blocks of whole lines, compressed files, pipes, remote files, folders."""

import bz2
import gzip
import io
import lzma
import os
import random
import re
import socket
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from optdoctor import readers
from optdoctor.cli import main
from optdoctor.reading import remote, source, unpack
from optdoctor.reading.reader import HEAD_BYTES, Source, Unreadable
from optdoctor.reading.source import Piped
from optdoctor.reading.text_blocks import MAX_LINE, blocks_of, byte_blocks_of, decode, line_views_of

RULE = r"[\r\n]+"
Pieces = list[bytes]

dirty_text = st.lists(
    st.sampled_from(["a", "loss: 1.5", "é", "█", "\U0001f600", "\n", "\r", "\r\n", "\x00", " "]),
    max_size=40,
).map("".join)
dirty_bytes = st.one_of(
    st.binary(max_size=60),
    dirty_text.map(str.encode),
    dirty_text.map(lambda text: b"\xef\xbb\xbf" + text.encode()),
    dirty_text.map(lambda text: text.encode("utf-16")),
    dirty_text.map(lambda text: b"\xfe\xff" + text.encode("utf-16-be")),
    st.tuples(st.sampled_from([b"\xff\xfe", b"\xfe\xff", b"\xef\xbb"]), st.binary(max_size=30)).map(
        b"".join
    ),
)


def console_log(rows: int = 60) -> bytes:
    return b"".join(
        b"{'loss': %.4f, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': %.2f}\n"
        % (3 - i / rows, i / rows)
        for i in range(rows)
    )


def arrow(codec: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(data)
        return sink.getvalue().to_pybytes()

    return compress


def zipped(data: bytes, *more: str, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("train.log", data)
        for name in more:
            archive.writestr(name, b"other")
    return file.getvalue()


class NotSeekable(io.RawIOBase):
    """A pipe, which gives a few bytes at a time."""

    def __init__(self, data: bytes, most: int = 1000) -> None:
        self._file, self._most = io.BytesIO(data), most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(memoryview(buffer)[: self._most])


def pipe(data: bytes) -> Piped:
    return Piped(io.BufferedReader(NotSeekable(data)), "-")


def zip_to_pipe(data: bytes, *more: str) -> bytes:
    """As `zip -` writes it: sizes stand behind the data."""
    file = NotSeekableSink()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("train.log", *more):
            archive.writestr(name, data)
    return bytes(file.written)


class NotSeekableSink(io.RawIOBase):
    def __init__(self) -> None:
        self.written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.written += data
        return len(data)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "zstd": arrow("zstd"),
    "lz4": arrow("lz4"),
    "zip": zipped,
    "zip, stored": lambda data: zipped(data, method=zipfile.ZIP_STORED),
    "zip to a pipe": zip_to_pipe,
}
each_form = pytest.mark.parametrize("form", COMPRESS)


# Text


@given(data=dirty_bytes, size=st.integers(1, 20), longest=st.integers(60, 90))
def test_blocks_joined_are_the_text_and_end_at_line_ends(
    data: bytes, size: int, longest: int
) -> None:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    blocks = list(blocks_of(pieces, 10 * longest))
    assert "".join(blocks) == decode(data)
    assert all(blocks)
    for block, after in pairwise(blocks):
        assert block[-1] in "\r\n"
        assert not (block[-1] == "\r" and after[0] == "\n")


@given(data=dirty_bytes.filter(lambda data: data[:2] not in (b"\xff\xfe", b"\xfe\xff")))
def test_blocks_of_bytes_joined_are_the_bytes_without_their_mark(data: bytes) -> None:
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
    blocks = list(byte_blocks_of(pieces, 1000))
    assert b"".join(blocks) == data.removeprefix(b"\xef\xbb\xbf")
    assert all(block[-1:] in (b"\r", b"\n") for block in blocks[:-1])


@given(
    data=dirty_bytes.filter(lambda data: data[:2] not in (b"\xff\xfe", b"\xfe\xff")),
    piece=st.integers(1, 20),
    size=st.integers(11, 30),
    longest=st.integers(1, 9),
)
@example(data=b"abcdefghij\r", piece=1, size=11, longest=1)
@example(data=b"abcdefghij\r\nb", piece=1, size=11, longest=1)
def test_views_of_lines_are_the_bytes_but_for_the_rest_of_long_lines(
    data: bytes, piece: int, size: int, longest: int
) -> None:
    pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("optdoctor.reading.text_blocks._LEAST", 3)
        views = [bytes(view) for view in line_views_of(pieces, size, longest)]
    assert all(view[-1:] in (b"\r", b"\n") for view in views[:-1])
    for view, after in pairwise(views):
        assert not (view[-1:] == b"\r" and after[:1] == b"\n")
    whole = re.split(rb"([\r\n])", data.removeprefix(b"\xef\xbb\xbf"))
    found = re.split(rb"([\r\n])", b"".join(views))
    assert len(found) == len(whole)
    for line, expected in zip(found, whole, strict=True):
        assert line == expected or (len(expected) >= size - 1 and line == expected[:longest])


def test_views_of_lines_wait_for_a_whole_piece_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optdoctor.reading.text_blocks.PIECE_BYTES", 4)
    views = line_views_of([b"a\nb\n", b"c\nd\n", b"e\n", b"f\n", b"g"])
    assert [bytes(view) for view in views] == [b"a\nb\nc\nd\ne\n", b"f\n", b"g"]


@given(text=dirty_text)
def test_views_of_lines_of_a_wide_encoding_are_utf_8(text: str) -> None:
    whole = b"".join(line_views_of([text.encode("utf-16")]))
    assert whole.decode() == text.replace("\x00", "")


@given(text=dirty_text)
def test_blocks_of_bytes_of_a_wide_encoding_are_utf_8(text: str) -> None:
    whole = b"".join(byte_blocks_of([text.encode("utf-16")]))
    assert whole.decode() == text.replace("\x00", "")


@given(data=dirty_bytes, size=st.integers(1, 20), longest=st.integers(1, 9))
def test_a_long_line_is_cut_and_every_other_line_is_whole(
    data: bytes, size: int, longest: int
) -> None:
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    found = re.split(r"([\r\n])", "".join(blocks_of(pieces, longest)))
    assert found == [line[:longest] for line in re.split(r"([\r\n])", decode(data))]


@given(data=dirty_bytes.filter(lambda data: not unpack.form_of(data)))
def test_lines_are_those_of_the_text(data: bytes) -> None:
    assert list(Source(data, "log").lines()) == re.split(RULE, Source(data, "log").text)


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_of_several_blocks_has_every_line_once(
    tmp_path: Path, line_end: str, encoding: str
) -> None:
    lines = [f"step {i} loss: {i / 7:.4f} █é" for i in range(120_000)]
    path = tmp_path / "train.log"
    path.write_bytes(line_end.join(lines).encode(encoding))
    assert list(Source.of_file(path).lines()) == lines
    assert len(list(Source.of_file(path).blocks())) > 3


def test_only_the_head_of_a_file_is_read_to_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"x" * 5 * HEAD_BYTES)
    read: list[int] = []
    real = source.unpacked

    class Counted(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            read.append(len(data))
            return data

    def counted(file: Any, tell: Any) -> Any:
        with file:
            return real(Counted(file.read()), tell)

    monkeypatch.setattr(source, "unpacked", counted)
    assert len(Source.of_file(path).head.data) == HEAD_BYTES
    assert sum(read) < HEAD_BYTES + 100


def peak_mib(code: str) -> float:
    """Peak memory of a process of its own, above that of the imports, in MiB."""
    before = (
        "import resource, sys, io; from pathlib import Path; import optdoctor.reading.source as s\n"
    )
    peak = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"
    # A child has the peak of its parent until it starts anew: measured inside, after a first one.
    script = f"{before}start = {peak}\n{textwrap.dedent(code)}\nprint(({peak} - start) / 1024)"
    command = [sys.executable, "-c", script]
    shell = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(shell.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_memory_does_not_grow_with_the_file_nor_with_a_line_without_end(tmp_path: Path) -> None:
    lines, endless = tmp_path / "lines.log", tmp_path / "endless.log"
    lines.write_bytes(b"loss: 1.5\n" * 9_000_000)
    endless.write_bytes(b"x" * 90_000_000)
    for path in (lines, endless):
        used = peak_mib(f"for _ in s.Source.of_file(Path({str(path)!r})).lines(): pass")
        assert used < 40
    lines.unlink()
    (cut,) = Source.of_file(endless).lines()
    assert cut == "x" * MAX_LINE


def test_what_is_read_as_a_whole_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "WHOLE_BYTES", 3 << 20)
    assert len(Source(gzip.compress(os.urandom(3 << 20)), "log").data) == 3 << 20
    with pytest.raises(Unreadable, match="larger"):
        _ = Source(gzip.compress(os.urandom((3 << 20) + 1)), "log").data


def test_a_subclass_that_brings_the_bytes_has_text_and_lines() -> None:
    class Follower(Source):
        def pieces(self) -> Iterator[bytes]:
            yield from (b"los", b"s: 1\nlo", b"ss: 2\r", b"\nloss")

    follower = Follower(b"", "log")
    assert list(follower.blocks()) == ["loss: 1\n", "loss: 2\r\n", "loss"]
    assert list(follower.lines()) == ["loss: 1", "loss: 2", "loss"]
    assert list(follower.byte_blocks()) == [b"loss: 1\n", b"loss: 2\r\n", b"loss"]


# Compressed


@each_form
def test_a_compressed_log_reads_as_the_plain_one_whatever_its_name(
    form: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(COMPRESS[form](console_log()))
    trace = readers.read(path)
    assert trace.reader == "huggingface-console"
    assert trace.series["loss"].values.tolist() == [
        pytest.approx(3 - i / 60, abs=1e-4) for i in range(60)
    ]
    assert not any("damaged" in event.text for event in trace.events)


@each_form
def test_compressed_bytes_are_what_they_were_from_a_file_and_from_a_pipe(form: str) -> None:
    data = np.random.default_rng(0).integers(0, 9, 5 << 18, np.uint8).tobytes()
    packed = COMPRESS[form](data)
    assert Source(packed, "log").data == data
    assert pipe(packed).data == data
    assert Source(packed, "log").first(1000) == data[:1000]


@each_form
def test_a_truncated_archive_keeps_what_stands_before_the_cut(form: str) -> None:
    data = "".join(f"{x:.12f}\n" for x in np.random.default_rng(0).random(150_000)).encode()
    packed = COMPRESS[form](data)
    for share in (0.55, 0.9, 0.999):
        cut = Source(packed[: int(len(packed) * share)], "log")
        found = cut.data
        assert data.startswith(found)
        # bzip2 unpacks blocks of 900 kB, zstd those of 128 KiB.
        assert len(found) > share * len(data) - {"bzip2": 950_000}.get(form, 300_000)
        assert "cut off or damaged" in cut.damage


@each_form
def test_a_log_cut_in_its_archive_says_so(form: str, tmp_path: Path) -> None:
    packed = COMPRESS[form](console_log(60_000))
    path = tmp_path / "train.log"
    path.write_bytes(packed[: len(packed) // 2])
    trace = readers.read(path)
    assert trace.series["loss"].rows > 10_000
    assert any("cut off or damaged" in event.text for event in trace.events)


@each_form
def test_a_damaged_archive_is_unreadable_or_gives_rows_before_the_damage(form: str) -> None:
    packed = bytearray(COMPRESS[form](console_log(300)))
    chance = random.Random(0)
    for _ in range(25):
        damaged = bytearray(packed)
        for _ in range(chance.randint(1, 30)):
            damaged[chance.randrange(len(packed))] = chance.randrange(256)
        with suppress(Unreadable):
            assert readers.read_source(Source(bytes(damaged), "log")).series


@pytest.mark.parametrize("form", ["gzip", "bzip2", "xz", "zstd", "lz4"])
def test_members_one_behind_the_other_are_one_log(form: str) -> None:
    compress = COMPRESS[form]
    assert Source(compress(b"one\n") + compress(b"two\n"), "log").data == b"one\ntwo\n"


@pytest.mark.parametrize("form", ["gzip", "bzip2", "xz", "zstd", "lz4"])
def test_a_member_that_is_cut_loses_nothing_of_the_one_before(form: str) -> None:
    compress = COMPRESS[form]
    cut = Source(compress(b"one\n") + compress(b"two\n")[:-5], "log")
    assert cut.data.startswith(b"one\n")
    assert "cut off or damaged" in cut.damage


@pytest.mark.parametrize("form", ["gzip", "bzip2", "xz"])
def test_padding_and_garbage_behind_the_last_member_are_no_text(form: str) -> None:
    packed = COMPRESS[form](b"one\n")
    assert Source(packed + b"\0" * 40_000 + packed, "log").data == b"one\none\n"
    assert Source(packed + b"garbage", "log").data == b"one\n"


def test_many_members_do_not_take_long() -> None:
    packed = gzip.compress(b"") * 100_000
    start = time.process_time()
    assert Source(packed, "log").data == b""
    assert time.process_time() - start < 5


@pytest.mark.parametrize("make", [Source, lambda data, _: pipe(data)])
def test_a_zip_of_several_files_is_to_be_unpacked(make: Callable[..., Source]) -> None:
    for log in (zipped(console_log(), "other.log"), zip_to_pipe(console_log(), "other.log")):
        with pytest.raises(Unreadable, match="several") as told:
            readers.read_source(make(log, "log"))
        assert "unpack it" in told.value.remedy


def test_a_zip_of_several_files_is_told_by_its_directory_before_the_first_is_read() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("notes.txt", b"nothing here\n" * 100_000)
        archive.writestr("train.log", console_log())
    with pytest.raises(Unreadable, match="several"):
        _ = Source(file.getvalue(), "log").head


def test_what_a_mac_adds_to_a_zip_is_no_second_file() -> None:
    packed = zipped(console_log(), "logs/", "__MACOSX/._train.log")
    assert readers.read_source(Source(packed, "log")).series["loss"].rows == 60
    assert pipe(packed).data == console_log()


def test_zips_that_cannot_be_read_say_why() -> None:
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    encrypted = bytearray(zipped(console_log()))
    encrypted[6] |= 1
    for data, reason in [
        (empty.getvalue(), "without a file"),
        (bytes(encrypted), "encrypted"),
        (zipped(console_log(), method=zipfile.ZIP_LZMA), "rare kind"),
    ]:
        with pytest.raises(Unreadable, match=reason):
            readers.read_source(Source(data, "log"))


def test_a_tar_archive_is_to_be_unpacked() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        info = tarfile.TarInfo("train.log")
        info.size = len(console_log())
        archive.addfile(info, io.BytesIO(console_log()))
    with pytest.raises(Unreadable, match="tar archive"):
        readers.read_source(Source(file.getvalue(), "log"))


@pytest.mark.parametrize("form", ["gzip", "bzip2", "xz", "zstd", "lz4", "zip"])
def test_a_bomb_is_stopped_early(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "BOMB_BYTES", 8 << 20)
    unpacked: list[int] = []
    pieces = Source(COMPRESS[form](bytes(48 << 20)), "log").pieces()
    with pytest.raises(Unreadable, match="grows more than"):
        unpacked.extend(map(len, pieces))
    assert 6 << 20 < sum(unpacked) < 16 << 20


def test_a_bomb_is_a_sentence_for_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "BOMB_BYTES", 8 << 20)
    (tmp_path / "log.gz").write_bytes(gzip.compress(console_log() + bytes(48 << 20)))
    result = CliRunner().invoke(main, ["analyze", str(tmp_path / "log.gz")])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "grows more than 200-fold" in result.stderr


def test_a_log_of_many_equal_warnings_is_no_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "BOMB_BYTES", 8 << 20)
    warning = b"/opt/lib/lr_scheduler.py:131: UserWarning: Detected call of step() before step().\n"
    chance = random.Random(0)
    log = b"".join(20 * warning + b"{'loss': %.4f}\n" % chance.random() for _ in range(8_000))
    packed = gzip.compress(log)
    assert len(log) > max(100 * len(packed), unpack.BOMB_BYTES)
    assert Source(packed, "log").data == log


# Standard input and pipes


@each_form
def test_standard_input_may_be_compressed(form: str) -> None:
    packed = COMPRESS[form](console_log())
    result = CliRunner().invoke(main, ["analyze", "-"], input=packed)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "60 rows" in result.stdout


def test_a_pipe_is_read_once_and_its_head_is_kept() -> None:
    data = console_log(60_000)
    piped = pipe(data)
    assert piped.head.data == data[:HEAD_BYTES]
    assert b"".join(piped.pieces()) == data
    with pytest.raises(Unreadable, match="only once"):
        next(piped.pieces())


def test_a_fifo_that_is_named_is_read_and_one_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(console_log()), daemon=True)
    writer.start()
    assert readers.read(fifo).series["loss"].rows == 60
    writer.join()
    (tmp_path / "train.log").write_bytes(console_log())
    assert readers.runs_in(tmp_path) == [tmp_path / "train.log"]


def test_devices_and_sockets_get_a_sentence(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for path in ("socket", "/dev/null", "/dev/zero"):
            with pytest.raises(Unreadable, match="device or a socket"):
                readers.read(path)


# Folders


def test_links_out_of_a_folder_and_in_circles_are_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (inside / "below" / "deep").mkdir(parents=True)
    (outside / "checkpoint-3").mkdir(parents=True)
    (outside / "checkpoint-3" / "trainer_state.json").write_text("{}")
    (outside / "train.log").write_bytes(console_log())
    log = inside / "train.log"
    log.write_bytes(console_log())
    (inside / "below" / "deep" / "other.log").write_bytes(console_log())
    (inside / "out.log").symlink_to(outside / "train.log")
    (inside / "out").symlink_to(outside)
    (inside / "checkpoint-3").symlink_to(outside / "checkpoint-3")
    (inside / "circle").symlink_to(inside)
    (inside / "above").symlink_to(tmp_path)
    (inside / "self").symlink_to("self")
    (inside / "again.log").symlink_to("train.log")
    (inside / "deep.log").symlink_to("below/deep/other.log")
    assert readers.runs_in(inside) == [inside / "deep.log", log]
    given_by_the_user = tmp_path / "link.log"
    given_by_the_user.symlink_to(outside / "train.log")
    assert readers.read(given_by_the_user).series["loss"].rows == 60
    with pytest.raises(Unreadable, match="no such file"):
        readers.read(inside / "self")


def test_a_record_that_is_a_link_out_of_the_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "run.json").symlink_to(tmp_path / "run.json")
    assert readers.run_of(folder) == []
    assert readers.run_of(tmp_path) == [tmp_path]


def test_a_folder_that_cannot_be_read_loses_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "closed", "z"):
        (tmp_path / name / "checkpoint-1").mkdir(parents=True)
        (tmp_path / name / "checkpoint-1" / "trainer_state.json").write_text("{}")
    real = Path.is_file

    def is_file(path: Path) -> bool:  # root may read everything
        if "closed" in path.parts:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert [run.relative_to(tmp_path).parts[0] for run in readers.runs_in(tmp_path)] == ["a", "z"]


def test_hidden_entries_of_a_folder_are_passed_over(tmp_path: Path) -> None:
    for name in (".hidden.log", "train.log", ".cache/train.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(console_log())
    assert readers.runs_in(tmp_path) == [tmp_path / "train.log"]


def test_the_event_files_of_a_folder_are_one_run(tmp_path: Path) -> None:
    (tmp_path / "version_0").mkdir()
    for folder in (tmp_path, tmp_path / "version_0"):
        for stamp in (17, 16):
            (folder / f"events.out.tfevents.{stamp}.host").write_bytes(console_log())
    (tmp_path / "train.log").write_bytes(console_log())
    version = tmp_path / "version_0"
    assert readers.runs_in(tmp_path) == [tmp_path, tmp_path / "train.log", version]
    assert readers.run_of(version) == [version]


def test_a_compressed_log_in_a_folder_is_found_and_an_archive_of_several_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(console_log()))
    (tmp_path / "b.zip").write_bytes(zipped(console_log(), "other.log"))
    assert readers.runs_in(tmp_path) == [tmp_path / "a.log.gz"]


# Remote


@pytest.fixture
def memory() -> Iterator[Any]:
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def test_a_remote_log_is_read_compressed_or_not(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/runs/train.log", console_log())
    memory.pipe("/runs/train.log.gz", gzip.compress(console_log()))
    (tmp_path / "train.log").write_bytes(console_log())
    for address in (
        "memory://runs/train.log",
        "memory://runs/train.log.gz",
        f"file://{tmp_path}/train.log",
    ):
        trace = readers.read(address)
        assert (trace.origin, trace.series["loss"].rows) == (address, 60)
    result = CliRunner().invoke(main, ["analyze", "memory://runs/train.log"])
    assert result.exit_code == 0


def test_a_remote_file_that_cannot_be_had_gets_a_sentence(memory: Any, monkeypatch: Any) -> None:
    with pytest.raises(Unreadable, match="no such file"):
        readers.read("memory://nowhere.log")
    with pytest.raises(Unreadable, match="not known"):
        readers.read("tarot://cards.log")
    memory.pipe("/train.log", console_log())

    def broken(*_: Any) -> bytes:
        raise RuntimeError("the line went dead")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFile.read", broken)
    with pytest.raises(Unreadable, match="the line went dead"):
        readers.read("memory://train.log")


def test_without_fsspec_a_remote_path_says_how_to_get_it(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(Unreadable) as told:
        readers.read("s3://bucket/train.log")
    assert told.value.remedy == "pip install 'optdoctor[remote]'"


@pytest.mark.parametrize("path", ["train.log", "-", "C:\\runs\\a.log", "/x/y", "a:b", "runs/**"])
def test_a_path_of_this_machine_is_not_remote(path: str) -> None:
    assert not remote.is_remote(path)
