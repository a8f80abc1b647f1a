"""Files of wandb runs: of wandb itself, and made by hand as older versions wrote them."""

import json
import os
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdoctor import readers
from optdoctor.readers import read_source, wandb
from optdoctor.reading.reader import Source, Unreadable
from optdoctor.trace import Trace

HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
BLOCK = 32768


def message(field: int, data: bytes) -> bytes:
    assert field < 16
    return bytes([field << 3 | 2]) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def item(name: str | tuple[str, ...], value: bytes) -> bytes:
    """An item of the history; `value` is its encoded field."""
    if isinstance(name, str):
        return message(1, message(1, name.encode()) + value)
    return message(1, b"".join(message(2, part.encode()) for part in name) + value)


def as_json(value: object) -> bytes:
    data = (value if isinstance(value, str) else json.dumps(value)).encode()
    return b"\x82\x01" + varint(len(data)) + data  # field 16


def history(values: dict[Any, object], step: int | None = None) -> bytes:
    """A record with a row, all values as JSON text."""
    items = b"".join(item(name, as_json(value)) for name, value in values.items())
    return message(2, items + (b"" if step is None else message(2, b"\x08" + varint(step))))


def log_of(records: list[bytes], block: int = BLOCK) -> bytes:
    """A file in the form of LevelDB's logs."""
    out = bytearray(HEADER)
    for record in records:
        kinds = (1, 2)  # whole, beginning
        while True:
            room = block - len(out) % block
            if room < 7:
                out += bytes(room)
                continue
            part, record = record[: room - 7], record[room - 7 :]
            kind = kinds[1] if record else kinds[0]
            out += struct.pack("<IHB", 0, len(part), kind) + part
            kinds = (4, 3)  # end, middle
            if not record:
                break
    return bytes(out)


def read(*records: bytes) -> Trace:
    return read_source(Source(log_of(list(records)), "log"))


def rows(trace: Trace, name: str = "loss") -> list[tuple[int, float]]:
    series = trace.series[name]
    return [(int(s), float(v)) for s, v in zip(series.steps, series.values, strict=True)]


RUN = """
import math, wandb
with wandb.init(project="p", dir=".") as run:
    run.define_metric("*", step_metric="train/global_step")
    for s in range(1, 1501):
        loss = math.nan if s == 3 else 1 / s
        row = {"train/loss": loss, "train/global_step": s * 10, "train/grad_norm": math.inf}
        if s < 5:
            row |= {"optim": {"lr": 0.5}, "note": "5.0 text", "ok": True}
            row |= {"hist": wandb.Histogram([1, 2, 3]), "train/epoch": s / 4}
        run.log(row)
        if s % 500 == 0:
            run.log({"eval/loss": 2.5, "eval/runtime": 9.5, "train/global_step": s * 10})
    run.log({"train/train_runtime": 5.5, "total_flos": 1e9})
"""


def test_a_run_of_wandb_itself_is_read(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    # Other tests of this process may have said where wandb writes.
    environment = {name: v for name, v in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
    subprocess.run([sys.executable, "-c", RUN], cwd=tmp_path, env=environment, check=True)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert readers.runs_in(tmp_path / "wandb") == [file]
    trace = readers.read(file.parent)
    assert trace.reader == "wandb"
    losses = [1 / s for s in range(1, 1501)]
    losses[2] = float("nan")
    np.testing.assert_array_equal(trace.series["loss"].values, losses)
    assert trace.series["loss"].steps.tolist() == list(range(10, 15_001, 10))
    assert rows(trace, "eval_loss") == [(5000, 2.5), (10_000, 2.5), (15_000, 2.5)]
    assert rows(trace, "lr") == [(10 * s, 0.5) for s in range(1, 5)]
    assert rows(trace, "epoch") == [(10 * s, s / 4) for s in range(1, 5)]
    assert np.isposinf(trace.series["grad_norm"].values).all()
    assert set(trace.series) == {
        "loss", "eval_loss", "lr", "epoch", "grad_norm", "metric:total_flos"
    }  # fmt: skip
    assert trace.facts["loss_kind"] == "falling"
    assert trace.lines_skipped == 0


def test_nan_is_read_in_every_spelling() -> None:
    spellings = ["NaN", '"NaN"', "Infinity", '"-Infinity"', "1e-3"]
    trace = read(*(history({"loss": text, "_step": s}) for s, text in enumerate(spellings, 1)))
    expected = [np.nan, np.nan, np.inf, -np.inf, 1e-3]
    np.testing.assert_array_equal(trace.series["loss"].values, expected)


def test_typed_values_are_read_as_wandb_defines_them() -> None:
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    records = []
    for step in range(1, 4):
        record = pb.Record()
        for name, value in (
            ("loss", {"number": 0.5 * step}),
            ("lr", {"integer": -step}),
            ("flag", {"boolean": True}),
            ("note", {"text": "5.0"}),
            ("train", {"json": json.dumps({"grad_norm": 2.5, "n": {"_type": "image", "w": 3}})}),
        ):
            record.history.item.add(key=name, **value)
        record.history.step.num = step
        records.append(record.SerializeToString())
    trace = read(*records)
    assert rows(trace) == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert rows(trace, "lr") == [(1, -1), (2, -2), (3, -3)]
    assert rows(trace, "grad_norm") == [(1, 2.5), (2, 2.5), (3, 2.5)]
    assert set(trace.series) == {"loss", "lr", "grad_norm"}


def test_nested_names_are_joined_and_media_are_passed_over() -> None:
    trace = read(
        *(
            history(
                {
                    ("train", "loss"): 1.5,
                    ("image", "_type"): "image-file",
                    ("image", "width"): 64,
                    "table": {"_type": "table-file", "nrows": 3},
                    "optim": {"lr": 0.5, "deep": {"momentum": 0.9}},
                    "_step": step,
                }
            )
            for step in (1, 2)
        )
    )
    assert set(trace.series) == {"loss", "lr", "metric:optim/deep/momentum"}


def test_the_clock_of_wandb_counts_from_zero() -> None:
    trace = read(*(history({"loss": 2.5, "_step": s, "_runtime": 9.5}) for s in (0, 1, 2)))
    assert rows(trace) == [(1, 2.5), (2, 2.5), (3, 2.5)]
    assert set(trace.series) == {"loss"}


def test_a_step_that_stands_beside_the_items_counts() -> None:
    assert rows(read(*(history({"loss": 2.5}, s) for s in (5, 9)))) == [(5, 2.5), (9, 2.5)]


def test_rows_without_any_step_are_counted() -> None:
    assert rows(read(history({"loss": 2.5}), history({"loss": 2}))) == [(1, 2.5), (2, 2)]


@pytest.mark.parametrize(
    "name", ["train/global_step", "trainer/global_step", "global_step", "step"]
)
def test_the_trainers_own_step_goes_before_wandbs(name: str) -> None:
    trace = read(
        *(history({"loss": 2.5, name: 50 * s, "_step": s}) for s in (1, 2)),
        history({"eval/loss": 3, "_step": 3}),
    )
    assert rows(trace) == [(50, 2.5), (100, 2.5)]
    assert rows(trace, "eval_loss") == [(100, 3)]


def test_a_step_that_begins_again_in_each_epoch_is_no_clock() -> None:
    records = [
        history({"loss": 1 / (1 + epoch), "step": s, "_step": 10 * epoch + s})
        for epoch in range(3)
        for s in range(1, 11)
    ]
    assert [s for s, _ in rows(read(*records))] == list(range(1, 31))


def test_a_global_step_that_goes_back_is_a_resume() -> None:
    steps = [10, 20, 30, 20, 30, 40]
    trace = read(*(history({"loss": i, "global_step": s, "_step": i}) for i, s in enumerate(steps)))
    assert rows(trace) == [(10, 0), (20, 3), (30, 4), (40, 5)]
    assert [(e.step, e.kind) for e in trace.events] == [(20, "resume")]


def test_curves_of_the_doctor_stand_over_its_own_clock() -> None:
    trace = read(
        *(
            history(
                {
                    "optdoctor/loss": 2.5,
                    "optdoctor/step": 7 * s,
                    "optdoctor/update_ratio/fc.weight": 0.5,
                    "_step": s,
                }
            )
            for s in (1, 2)
        )
    )
    assert rows(trace) == [(7, 2.5), (14, 2.5)]
    assert set(trace.series) == {"loss"}


def test_beside_a_framework_the_doctors_curves_are_left_out() -> None:
    trace = read(
        *(
            history({"train/loss": s, "optdoctor/loss": 9, "optdoctor/grad_norm": 9, "_step": s})
            for s in (1, 2)
        )
    )
    assert rows(trace) == [(1, 1), (2, 2)]
    assert set(trace.series) == {"loss"}


def test_records_go_on_over_the_ends_of_blocks() -> None:
    records = [history({"loss": s, "pad": "x" * (s * 37 % 700), "_step": s}) for s in range(1, 500)]
    records[100] = history({"loss": 101, "pad": "x" * 100_000, "_step": 101})
    trace = read(*records)
    assert rows(trace) == [(s, s) for s in range(1, 500)]
    assert trace.lines_skipped == 0


def test_other_records_are_passed_over() -> None:
    other = [message(field, b"\x0a\x03abc") for field in (1, 3, 4, 5, 7, 9, 11)]
    assert rows(read(*other, history({"loss": 2, "_step": 4}), *other)) == [(4, 2)]


def test_a_file_without_history_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="no row"):
        read(message(5, b"abc"))
    with pytest.raises(Unreadable, match="no row"):
        read_source(Source(HEADER, "log"))


def test_a_cut_anywhere_keeps_all_complete_rows() -> None:
    records = [history({"loss": s, "_step": s}) for s in range(1, 20)]
    data = log_of(records)
    ends = np.cumsum([len(HEADER), *(len(record) + 7 for record in records)])
    for cut in range(int(ends[1]), len(data), 5):
        trace = read_source(Source(data[:cut], "log"))
        assert trace.series["loss"].rows == int((ends[1:] <= cut).sum())


def test_room_that_was_not_written_yet_is_not_counted_as_damage() -> None:
    data = log_of([history({"loss": s, "_step": s}) for s in (1, 2)]) + bytes(3 * BLOCK)
    trace = read_source(Source(data, "log"))
    assert rows(trace) == [(1, 1), (2, 2)]
    assert trace.lines_skipped == 0


def test_a_record_whose_beginning_or_end_was_lost_is_left_out() -> None:
    row = history({"loss": 1, "_step": 1})
    # What is behind its first block would read as a row of its own.
    torn = message(4, b"x" * (BLOCK - len(HEADER) - 7 - 4)) + history({"loss": 9, "_step": 9})
    data = bytearray(log_of([torn, row]))
    assert read_source(Source(bytes(data), "log")).series["loss"].rows == 2
    data[len(HEADER) + 6] = 77
    trace = read_source(Source(bytes(data), "log"))
    assert rows(trace) == [(1, 1)]
    assert trace.lines_skipped == 1
    cut = log_of([row, history({"pad": "x" * 2 * BLOCK, "loss": 2})])[: BLOCK + 100]
    trace = read_source(Source(cut, "log"))
    assert rows(trace) == [(1, 1)]
    assert trace.lines_skipped == 1
    whole_block = log_of([row, history({"pad": "x" * 2 * BLOCK, "loss": 2})])[:BLOCK]
    assert read_source(Source(whole_block, "log")).lines_skipped == 1


def test_a_damaged_block_costs_no_row_of_the_next() -> None:
    records = [history({"loss": s, "_step": s}) for s in range(1, 2500)]
    data = bytearray(log_of(records))
    assert len(data) > 2 * BLOCK
    data[300:330] = b"\xff" * 30
    trace = read_source(Source(bytes(data), "log"))
    assert trace.lines_skipped
    steps = [s for s, _ in rows(trace)]
    assert steps[-1] == 2499
    assert len(steps) > 2499 - BLOCK / 26


def test_a_record_that_never_ends_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb, "MAX_RECORD", 1000)
    long = history({"loss": 2, "pad": "x" * 5000, "_step": 2})
    assert rows(read(history({"loss": 1, "_step": 1}), long)) == [(1, 1)]


@given(choices=st.data())
@settings(deadline=None)
def test_damaged_bytes_are_at_most_unreadable(choices: st.DataObject) -> None:
    data = log_of([history({"loss": s, "a": {"b": s}, "_step": s}) for s in range(1, 20)])
    start = choices.draw(st.integers(0, len(data)))
    stop = choices.draw(st.integers(start, min(start + 30, len(data))))
    damaged = data[:start] + choices.draw(st.binary(max_size=30)) + data[stop:]
    with suppress(Unreadable):
        read_source(Source(damaged, "log"), "wandb")


def test_many_names_and_deep_values_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb, "MAX_NAMES", 5)
    deep = "{" + '"a":{' * 5000
    records = [history({"loss": s, "_step": s, f"name{s}": s, "x": deep}) for s in range(1, 50)]
    trace = read(*records)
    assert trace.series["loss"].rows == 49
    assert len(trace.series) <= 5
