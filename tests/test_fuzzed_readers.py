"""What `scripts/fuzz_readers.py` found, made small, and a short run of it.

A new finding is mended where it comes from and replayed here for good.
"""

import io
import json
import os
import re
import struct
import subprocess
import sys
import time
import tracemalloc
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from optdoctor import analysis, readers
from optdoctor.engine import diagnose
from optdoctor.findings import Status
from optdoctor.live.journal import Journal
from optdoctor.readers import read_source
from optdoctor.reading.folders import real_paths
from optdoctor.reading.reader import Source, Unreadable
from optdoctor.report import page
from optdoctor.synthetic import make_trace

SCRIPT = Path(__file__).parents[1] / "scripts" / "fuzz_readers.py"
LOG = b"".join(b"step %d loss %.2f\n" % (i, 3 - i / 50) for i in range(40))
NUMBER = re.compile(r"(?<![\d.])\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def read_or_refuse(data: bytes, reader: str | None = None) -> dict[str, list[object]]:
    """{channel: (step, value as text)}, empty of what is refused; nothing else may be raised."""
    with suppress(Unreadable):
        series = read_source(Source(data, "log"), reader).series
        return {
            n: [*zip(s.steps.tolist(), map(repr, s.values.tolist()), strict=True)]
            for n, s in series.items()
        }
    return {}


# Files


@pytest.mark.parametrize("cell", ["nan", "inf", "-inf", "1e308"])
def test_bare_columns_that_are_not_finite_are_no_counter(cell: str) -> None:
    lines = [f"{i} {cell} {2.5 - i / 10}" for i in range(9)]
    lines += [f"9 {i} 1.5" for i in range(9)]
    read_or_refuse("\n".join(lines).encode(), "guess")
    read_or_refuse(f"{cell}\n1\n2\n3\n-1e308\n5\n6\n".encode(), "guess")


@pytest.mark.parametrize("reader", [r for r in readers.readers() if r.sample], ids=lambda r: r.name)
@pytest.mark.parametrize("blank", [b"\n", b"\r", b" \n", b"\0"])
def test_blanks_before_a_log_and_behind_it_change_no_row(
    reader: readers.Reader, blank: bytes
) -> None:
    data = reader.sample.encode()
    rows = read_or_refuse(data)
    assert rows
    for longer in (blank * 500 + data, data + blank * 500):
        assert read_or_refuse(longer) == read_or_refuse(longer, reader.name) == rows
    assert read_or_refuse(blank * 500, reader.name) == {}


@pytest.mark.parametrize("reader", [r for r in readers.readers() if r.sample], ids=lambda r: r.name)
@pytest.mark.parametrize("number", ["9" * 5000, "1e999"])
def test_each_number_of_a_log_may_be_of_any_size(reader: readers.Reader, number: str) -> None:
    for place in NUMBER.finditer(reader.sample):
        log = reader.sample[: place.start()] + number + reader.sample[place.end() :]
        read_or_refuse(log.encode(), reader.name)
    read_or_refuse(NUMBER.sub(number, reader.sample).encode(), reader.name)


def test_a_line_of_many_guesses_does_not_take_the_memory_of_its_square() -> None:
    line = "cost 1.5 then " * 4000
    read_or_refuse(LOG)  # loads what is loaded once
    tracemalloc.start()
    try:
        read_or_refuse(f"{line}\n{line}\n".encode())
        assert tracemalloc.get_traced_memory()[1] < 40 << 20  # it was 400 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("epoch", ["nan", "inf", "9" * 400])
def test_a_printed_epoch_may_be_no_number(epoch: str) -> None:
    lines = [
        f"epoch: {i} step: {i % 5} discriminator_loss: {i}.5 generator_loss: 1.5" for i in range(40)
    ]
    lines += [
        f"epoch: {epoch} step: {i % 5} discriminator_loss: {i}.5 generator_loss: 1.5"
        for i in range(40)
    ]
    assert read_or_refuse("\n".join(lines).encode(), "prints")


def test_an_epoch_may_be_of_more_rows_than_there_are_numbers() -> None:
    lines = [
        f"| epoch {900 + i} | {i}/ 1e308 batches | lr 5.0 | ms/batch 1.5 | loss 1.{i} | ppl 5.0"
        for i in range(40)
    ]
    assert read_or_refuse("\n".join(lines).encode(), "word-language-model")


LONG = 20_000
SLOW_LINES = (
    ("clu", "logging_writer.py:48] [200] collection=eval" + "1" * LONG + "x"),
    ("fastai", "epoch     train_loss" + " " * LONG + "x"),
    ("galore", "loss at 4" + " " * LONG + "x"),
    ("huggingface-state", '{"log_history": [{"loss": 1' + ', "loss": 1' * (LONG // 11)),
    ("json-lines", '{"' + "loss" * LONG + "}"),
    ("keras-history", "{'loss': [" + "1" * LONG + "x"),
    ("levanter", "Progress on:train 1.00it/9.00kit " + "postfix:" * (LONG // 8)),
    ("open-clip", "Eval Epoch: " + "1" * LONG),
    ("prints", "train loss: 2.5 step" + " " * LONG + "x"),
    ("prints", "train loss: 2.5 epoch" + " " * LONG + "x"),
    ("prints", "train loss: 2.5 step " + "1" * LONG + "x"),
    ("prints", "train loss: 2.5 epoch " + "1" * LONG + "x"),
    ("rwkv", "0 1.25 3.49 1e-05 2026-01-02 03:10:05." + "1" * LONG + "x"),
    ("torch-imagenet", "Epoch: [0][  1/900]" + "\t" * LONG + "x"),
)
"""Lines at which an expression took the square of their length or more."""


@pytest.mark.parametrize(("reader", "line"), SLOW_LINES, ids=[r for r, _ in SLOW_LINES])
def test_a_long_line_takes_no_longer_than_it_is_long(reader: str, line: str) -> None:
    sample = readers.named(reader).sample
    log = line if line[0] == "{" and line[1] == '"' else f"{sample}{line}\n{sample}"
    started = time.process_time()
    read_or_refuse(log.encode(), reader)
    assert time.process_time() - started < 1  # it was 2 s and more


def test_a_row_of_twelve_thousand_names_is_read_in_time() -> None:
    row = json.dumps({"step": 1, "loss": 2.5} | {f"loss{i}": 1.5 for i in range(12_000)})
    started = time.process_time()
    rows = read_or_refuse(f"{row}\n{row}\n{row}\n".encode(), "json-lines")
    assert rows["loss"] == [(1, "2.5"), (2, "2.5"), (3, "2.5")]  # a step that stands still is none
    assert time.process_time() - started < 3  # it was 5 s and more


def test_a_signalling_nan_is_a_nan() -> None:
    name = b"\x0a\x04loss"
    data = b""
    for step in range(60):
        value = name + b"\x15" + (b"\x01\x00\xa0\x7f" if step == 30 else b"\x00\x00\x20\x40")
        value = b"\x0a" + bytes([len(value)]) + value
        event = b"\x10" + bytes([step + 1]) + b"\x2a" + bytes([len(value)]) + value
        event = event if step else b"\x1a\x0dbrain.Event:2" + event
        data += struct.pack("<QI", len(event), 0) + event + bytes(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = read_or_refuse(data, "tensorboard")["loss"]
    assert (len(rows), rows[29], rows[30]) == (60, (30, "2.5"), (31, "nan"))


def test_a_file_that_is_passed_over_in_an_archive_is_no_place_for_a_bomb() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(2):
            archive.writestr(f"__MACOSX/{i}", bytes(20 << 20))
        archive.writestr("train.log", LOG)
    with pytest.raises(Unreadable, match="much beside its log"):
        read_source(Source(file.getvalue(), "log"))


# Rules


@pytest.mark.parametrize("rate", [1.7e308, 1e305, 5e-324])
def test_no_rule_crashes_at_rates_of_any_size(rate: float) -> None:
    loss = 2.5 + np.sin(np.arange(400.0))
    rates = np.full(400, rate)
    rates[::7] = 0.1234567890123
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagnosis = diagnose(make_trace(loss=loss, lr=rates))
    assert not diagnosis.with_status(Status.CRASHED)


@pytest.mark.parametrize(("low", "high"), [(5e-324, 1.0), (1e-3, 1.7e308), (5e-324, 1.7e308)])
def test_no_rule_crashes_where_a_rate_rises_by_any_factor(low: float, high: float) -> None:
    loss = np.where(np.arange(400) < 200, 2.0, 8.0) + 0.01 * np.sin(np.arange(400.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagnosis = diagnose(make_trace(loss=loss, lr=np.where(np.arange(400) < 200, low, high)))
    assert not diagnosis.with_status(Status.CRASHED)
    assert "divergence" in {finding.rule for finding in diagnosis.findings}


@pytest.mark.parametrize("size", [1e300, 1e-310, 1.0])
def test_no_rule_crashes_at_losses_of_any_size(size: float) -> None:
    loss = size * (2.5 + np.sin(np.arange(400.0)))
    loss[::50] = 1.7e308
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagnosis = diagnose(make_trace(loss=loss))
    assert not diagnosis.with_status(Status.CRASHED)


@pytest.mark.parametrize("epoch", [np.nan, np.inf, -np.inf])
def test_no_rule_crashes_where_an_epoch_is_no_number(epoch: float) -> None:
    loss, epochs = np.full(400, np.nan), np.arange(400) // 100.0
    loss[:200], epochs[200:210] = 2.5, epoch
    trace = make_trace(loss=loss, epoch=epochs, loss_form="running mean")
    assert trace.facts["loss_form"] == "running mean"
    assert not diagnose(trace).with_status(Status.CRASHED)


@pytest.mark.parametrize("rate", ["1e305", "1.7e308", "5e-324"])
def test_no_rule_crashes_at_printed_rates_of_any_size(rate: str) -> None:
    rates = [rate, "0.1234567890123"]
    lines = [f"step {i} loss {2.5 - i / 400} lr {rates[i % 7 == 0]}" for i in range(1, 300)]
    trace = read_source(Source("\n".join(lines).encode(), "log"))
    assert trace.series["lr"].rows == 299
    assert not diagnose(trace).with_status(Status.CRASHED)


def test_a_page_draws_the_least_numbers_there_are() -> None:
    trace = make_trace(loss=np.tile([5e-324, 0.0], 200))
    assert page.render([(diagnose(trace), trace)])


# Folders


def paths_of(pattern: str) -> list[str]:
    return [run if isinstance(run, str) else run.reason for run in analysis.expanded(pattern)]


def test_a_pattern_ends_where_links_go_in_circles(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        for link in range(4):
            (tmp_path / name / f"loop{link}").symlink_to("..")
        (tmp_path / name / "train.log").write_bytes(LOG)
    expected = [str(tmp_path / name / "train.log") for name in ("a", "b", "c")]
    assert paths_of(f"{tmp_path}/**") == expected
    assert paths_of(f"{tmp_path}/**/*.log") == expected
    assert paths_of(f"{tmp_path}/*/train.log") == expected


def test_two_stars_find_nothing_outside(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "train.log").write_bytes(LOG)
    (inside / "link").symlink_to("../outside")
    (inside / "link.log").symlink_to("../outside/train.log")
    assert paths_of(f"{inside}/**") == ["no log matches this pattern"]
    # Who names a link means it.
    assert paths_of(f"{inside}/l*/*.log") == [str(inside / "link" / "train.log")]


def test_the_walk_through_a_deep_tree_does_not_grow_with_its_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path.joinpath(*["d"] * 200)
    deep.mkdir(parents=True)
    (deep / "train.log").write_text("".join(f"step {i} loss {9 - i}.5\n" for i in range(9)))
    asked: list[str] = []
    real = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path: asked.append(str(path)) or real(path))
    assert paths_of(f"{tmp_path}/**") == [str(deep / "train.log")]
    assert len(asked) < 20


def test_a_path_is_real_as_the_system_has_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    (tmp_path / "a" / "b" / "up").symlink_to("..")
    (tmp_path / "circle").symlink_to("circle")
    real = real_paths()
    for name in ("a/b", "link", "link/up/b", "a/../a/b", "circle/x", "none/of/these", "./a//b/."):
        path = f"{tmp_path}/{name}"
        assert real(path) == os.path.realpath(path)
    assert real("") == os.path.realpath("")


def test_a_pipe_in_place_of_a_wandb_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "x.wandb")
    assert readers.run_of(tmp_path / "run") == []


@pytest.mark.parametrize("step", ["²", "٣", "-1", "9" * 200])
def test_a_checkpoint_may_have_any_name(tmp_path: Path, step: str) -> None:
    for name in (step, "5"):
        folder = tmp_path / f"checkpoint-{name}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text("{}")
    assert len(readers.runs_in(tmp_path)) == 1


def record_in(folder: Path) -> Path:
    journal = Journal(folder, ("grad_rms",))
    journal.open({"framework": "torch"}, resumed=False, first_step=None)
    journal.retrack((), 1)
    for step in range(1, 40):
        journal.row(step, {"loss": 3 - step / 50})
    journal.close()
    return folder


@pytest.mark.parametrize("name", ["events.jsonl", "findings.jsonl", "steps-0001.arrows"])
def test_a_pipe_in_a_record_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = record_in(tmp_path / "run")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert analysis.analyze(folder).reason in ("", "the record holds no row")


def test_a_pipe_in_place_of_a_record_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    for path in (tmp_path, tmp_path / "run.json"):
        assert analysis.analyze(path).reason


def test_the_rows_of_a_record_are_in_its_folder(tmp_path: Path) -> None:
    other, own = record_in(tmp_path / "other"), record_in(tmp_path / "own")
    (own / "steps-0001.arrows").unlink()
    (own / "steps-0001.arrows").symlink_to(other / "steps-0001.arrows")
    assert "loss" in readers.read(other).series
    assert "loss" not in readers.read(own).series


# All of it


def test_a_short_run_of_the_fuzzer_finds_nothing() -> None:
    command = [sys.executable, str(SCRIPT), "--inputs", "300", "--workers", "1", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("300 inputs, 0 with a fault")
