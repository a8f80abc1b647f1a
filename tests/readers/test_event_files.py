"""TensorBoard event files, written by TensorBoard itself, against a slow and obvious reading."""

import io
import math
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from optdoctor import readers
from optdoctor.readers import read_source
from optdoctor.readers.tensorboard import READER, event_files, read_folder
from optdoctor.reading import event_file, event_rounds, event_shapes
from optdoctor.reading.curve_names import meaning_of
from optdoctor.reading.event_file import read_file
from optdoctor.reading.event_points import Points
from optdoctor.reading.reader import Source, Unreadable
from optdoctor.trace import Trace

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary import Writer
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_ndarray, make_tensor_proto

Curve = list[tuple[int, str]]
VERSION = Event(wall_time=1.5e9, file_version="brain.Event:2")


def scalar(tag: str, step: int, value: float, wall_time: float = 1.5e9) -> Any:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    return Event(wall_time=wall_time, step=step, summary=summary)


def tensor(tag: str, step: int, proto: Any, plugin: str = "scalars") -> Any:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    value = Summary.Value(tag=tag, tensor=proto, metadata=metadata if plugin else None)
    return Event(wall_time=1.5e9, step=step, summary=Summary(value=[value]))


def written(events: Iterable[Any]) -> bytes:
    """As TensorBoard writes them, checksums included."""
    file = io.BytesIO()
    writer = RecordWriter(file)
    for event in events:
        writer.write(event.SerializeToString())
    return file.getvalue()


def twin(data: bytes) -> dict[str, Curve]:
    """The scalars one by one, through TensorBoard's own classes."""
    found: dict[str, Curve] = {}
    plugins: dict[str, str] = {}
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if at + 16 + length > len(data):
            break
        event = Event.FromString(data[at + 12 : at + 12 + length])
        at += 16 + length
        if event.session_log.status == SessionLog.START:
            found = {tag: [p for p in c if p[0] < event.step] for tag, c in found.items()}
        for value in event.summary.value:
            plugin = plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
            if value.WhichOneof("value") == "simple_value":
                found.setdefault(value.tag, []).append((event.step, repr(value.simple_value)))
            elif value.WhichOneof("value") == "tensor" and plugin in ("", "scalars"):
                array = make_ndarray(value.tensor)
                if array.ndim == 0 and array.dtype.kind in "fiub":
                    found.setdefault(value.tag, []).append((event.step, repr(float(array))))
    return {tag: curve for tag, curve in found.items() if curve}


def points(data: bytes) -> dict[str, Curve]:
    """The same through our reader."""
    found = Points()
    read_file(io.BytesIO(data), found)
    curves = {}
    for tag in list(found.sizes):
        steps, values, _ = found.take(tag)
        curves[tag] = [(int(s), repr(float(v))) for s, v in zip(steps, values, strict=True)]
    return {tag: curve for tag, curve in curves.items() if curve}


def read(events: Iterable[Any]) -> Trace:
    return read_source(Source(written([VERSION, *events]), "log"))


def rows(trace: Trace, name: str = "loss") -> list[tuple[int, float]]:
    series = trace.series[name]
    return [(int(s), float(v)) for s, v in zip(series.steps, series.values, strict=True)]


def test_curves_of_both_tensorflows_are_read() -> None:
    trace = read(
        [scalar("train/loss", step, 2.5 - step) for step in (1, 2, 3)]
        + [tensor("eval/loss", 3, make_tensor_proto(np.float32(1.5)))]
    )
    assert trace.reader == "tensorboard"
    assert rows(trace) == [(1, 1.5), (2, 0.5), (3, -0.5)]
    assert rows(trace, "eval_loss") == [(3, 1.5)]
    assert trace.facts["loss_kind"] == "falling"
    assert trace.lines_skipped == 0


def test_a_file_of_tensorboards_own_writer_is_read(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path))
    for step in range(5):
        writer.add_scalar("loss", 2.5 - 0.25 * step, step=step)
    writer.close()
    (path,) = tmp_path.iterdir()
    trace = read_source(Source(path.read_bytes(), "log"))
    # A step of 0 is not written, and a run that begins there counts from 0.
    assert rows(trace) == [(s + 1, 2.5 - 0.25 * s) for s in range(5)]


def test_a_file_of_torch_is_read_with_its_histograms_and_texts_passed_over(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(1, 40):
            writer.add_scalar("train/loss", 1 / step, step)
            writer.add_histogram("weights", np.arange(step), step)
            writer.add_text("note", "loss 5.0", step)
            writer.add_scalar("lr-AdamW", 1e-3, step)
        writer.add_hparams({"lr": 0.1}, {"hp_metric": 1.0}, run_name=".")
    (path, *_) = sorted(tmp_path.iterdir())
    trace = read_source(Source(path.read_bytes(), "log"))
    assert rows(trace) == [(s, float(np.float32(1 / s))) for s in range(1, 40)]
    assert set(trace.series) == {"loss", "lr"}
    assert trace.lines_skipped == 0


def is_equal_to_the_accumulator(data: bytes, folder: Path) -> bool:
    path = folder / "events.out.tfevents.1"
    path.write_bytes(data)
    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
    expected = {
        tag: [(e.step, repr(e.value)) for e in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }
    return points(data) == expected == twin(data)


def test_every_point_is_that_of_tensorboards_reader(tmp_path: Path) -> None:
    """Past 127 and 16383, where a step takes one byte more; and past 10000 points."""
    events = [scalar(tag, s, math.sin(s)) for s in range(16_500) for tag in ("loss", "lr")]
    assert is_equal_to_the_accumulator(written([VERSION, *events]), tmp_path)
    rare = [
        scalar(tag, step, math.cos(step + i))
        for step in range(9_000)
        for i, tag in enumerate(("train/loss", "train/norm", "lr", "eval/loss", "eval/acc"))
        if step % (1, 1, 3, 50, 70)[i] == 0
    ]
    assert is_equal_to_the_accumulator(written([VERSION, *rare]), tmp_path)


def test_regular_files_are_taken_by_rounds_and_others_by_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else both would be as slow as the record by record reading they fall back to."""
    parsed = 0
    record_at = event_file.Piece.record

    def counted(self: Any, at: int) -> Any:
        nonlocal parsed
        parsed += 1
        return record_at(self, at)

    in_rounds = 0
    take_rounds = event_file.take_rounds

    def measured(piece: Any, start: int) -> int:
        nonlocal in_rounds
        end = take_rounds(piece, start)
        in_rounds += end - start
        return end

    monkeypatch.setattr(event_file.Piece, "record", counted)
    monkeypatch.setattr(event_file, "take_rounds", measured)
    regular = [scalar(tag, s, s) for s in range(1, 6_000) for tag in ("loss", "lr", "norm")]
    data = written([VERSION, *regular])
    points(data)
    assert in_rounds > 0.9 * len(data)
    assert parsed < 400
    parsed = 0
    mixed = [
        scalar(tag, step, step)
        for step in range(1, 6_000)
        for i, tag in enumerate(("loss", "lr", "norm", "acc"))
        if (step * (i + 7)) % 11 < 6
    ]
    points(written([VERSION, *mixed]))
    assert parsed < len(mixed) / 10


DTYPES = (np.float32, np.float64, np.float16, np.int32, np.int64, np.int8, np.uint8, np.bool_)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["field", "content"])
def test_a_scalar_tensor_of_any_type_is_a_number(dtype: Any, form: str) -> None:
    def proto(value: float) -> Any:
        made = make_tensor_proto(np.array(value, dtype))
        if form == "content":
            made = TensorProto(dtype=made.dtype, tensor_shape=made.tensor_shape)
            made.tensor_content = np.array(value, dtype).tobytes()
        return made

    data = written(tensor("loss", step, proto(step % 5)) for step in range(1, 60))
    assert points(data) == twin(data)
    assert len(points(data)["loss"]) == 59


def test_a_bfloat16_is_a_number() -> None:
    content = TensorProto(dtype=14, tensor_content=struct.pack("<f", 1.5)[2:])
    field = TensorProto(dtype=14, half_val=[0xC020])
    data = written([tensor("loss", 1, content), tensor("loss", 2, field)])
    assert points(data) == {"loss": [(1, "1.5"), (2, "-2.5")]}


def test_a_zero_that_was_left_out_is_one_only_where_the_plugin_says_scalar() -> None:
    empty = TensorProto(dtype=1)
    assert points(written([tensor("loss", 1, empty)])) == {"loss": [(1, "0.0")]}
    assert points(written([tensor("loss", 1, empty, plugin="")])) == {}
    packed = tensor("loss", 1, TensorProto(dtype=1, float_val=[1.5])).SerializeToString()
    of_nothing = packed.replace(b"\x2a\x04" + struct.pack("<f", 1.5), b"\x2a\x00\x18\x80\x80\x00")
    assert of_nothing != packed
    data = struct.pack("<QI", len(of_nothing), 0) + of_nothing + bytes(4)
    assert points(data) == {"loss": [(1, "0.0")]}


def test_the_plugin_need_stand_only_at_the_first_value_of_a_tag() -> None:
    one, none = make_tensor_proto(np.float32(1.5)), TensorProto(dtype=1)
    data = written([tensor("loss", 1, one), tensor("loss", 2, none, plugin="")])
    assert points(data) == {"loss": [(1, "1.5"), (2, "0.0")]}
    data = written([tensor("a", 1, one, "hparams"), tensor("a", 2, one, plugin="")])
    assert points(data) == {}


def test_tensors_that_are_no_scalars_are_passed_over() -> None:
    vector = make_tensor_proto(np.ones(1, np.float32))
    text = make_tensor_proto(np.array(b"loss", object))
    image = make_tensor_proto(np.float32(1))
    data = written(
        [tensor("a", 1, vector), tensor("b", 1, text), tensor("c", 1, image, plugin="images")]
    )
    assert points(data) == twin(data) == {}


def test_numbers_that_are_not_finite_are_kept() -> None:
    values = [1.5, math.nan, math.inf, -math.inf, 1.25]
    trace = read(scalar("loss", step, value) for step, value in enumerate(values, start=1))
    np.testing.assert_array_equal(trace.series["loss"].values, values)
    assert trace.series["loss"].bad.sum() == 3


def test_steps_that_nobody_gave_are_counted() -> None:
    trace = read(scalar("loss", 0, value) for value in (2.5, 2.25, 2.0))
    assert rows(trace) == [(1, 2.5), (2, 2.25), (3, 2.0)]
    assert trace.facts["step_source"] == "counted rows"


@pytest.mark.parametrize("step", [-1, -(2**63), 2**53, 2**63 - 1])
def test_a_step_out_of_all_bounds_costs_no_other_row(step: int) -> None:
    trace = read([scalar("loss", 1, 2.5), scalar("loss", 2, 2.25), scalar("lr", step, 0.5)])
    assert rows(trace) == [(1, 2.5), (2, 2.25)]


def test_a_tag_that_lags_behind_is_no_resume() -> None:
    events = []
    for step in range(10, 200, 10):
        events += [scalar("loss", step, 1 / step), scalar("eval/loss", step - 9, 2 / step)]
    trace = read(events)
    assert trace.series["loss"].rows == trace.series["eval_loss"].rows == 19
    assert [event for event in trace.events if event.kind == "resume"] == []


def test_a_loss_whose_steps_go_back_is_a_resume() -> None:
    events = [scalar("loss", s, 1) for s in (1, 2, 3, 4)] + [scalar("loss", s, 2) for s in (3, 4)]
    trace = read(events)
    assert rows(trace) == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert [(e.step, e.kind) for e in trace.events] == [(3, "resume")]


def started(step: int) -> Any:
    return Event(wall_time=1.5e9, step=step, session_log=SessionLog(status=SessionLog.START))


def test_a_session_that_begins_voids_what_stood_at_its_step_and_later() -> None:
    events = [scalar(tag, s, 1) for s in range(1, 8) for tag in ("loss", "lr")]
    trace = read([*events, started(5), scalar("loss", 7, 2), scalar("loss", 8, 2)])
    assert rows(trace) == [(1, 1), (2, 1), (3, 1), (4, 1), (7, 2), (8, 2)]
    assert rows(trace, "lr") == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert [(e.step, e.kind) for e in trace.events] == [(5, "resume")]


def test_a_session_that_voids_nothing_is_no_resume() -> None:
    trace = read([started(0), scalar("loss", 1, 1), started(2), scalar("loss", 2, 1)])
    assert rows(trace) == [(1, 1), (2, 1)]
    assert trace.events == ()


def test_a_cut_anywhere_keeps_all_complete_records() -> None:
    data = written([VERSION, *(scalar(t, s, s) for s in range(1, 30) for t in ("loss", "lr"))])
    for cut in range(0, len(data), 7):
        assert points(data[:cut]) == twin(data[:cut])


@pytest.mark.parametrize("length", [2**20, 2**26 + 1, 2**40, 2**63, 2**64 - 1])
def test_a_hostile_length_ends_the_reading_and_takes_no_memory(length: int) -> None:
    import tracemalloc

    data = written([VERSION, scalar("loss", 1, 2.5), scalar("loss", 2, 2.25)])
    hostile = data + struct.pack("<Q", length) + bytes(100)
    tracemalloc.start()
    trace = read_source(Source(hostile, "log"))
    assert tracemalloc.get_traced_memory()[1] < 30 << 20
    tracemalloc.stop()
    assert rows(trace) == [(1, 2.5), (2, 2.25)]
    assert trace.lines_skipped == 1


def test_a_record_larger_than_a_piece_is_read_and_one_beyond_the_limit_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_file, "PIECE", 100)
    monkeypatch.setattr(event_file, "MAX_RECORD", 5000)
    merged = scalar("loss", 2, 2)
    merged.summary.value.add(tag="x" * 3000, simple_value=1)
    data = written(
        [scalar("loss", 1, 1), merged, Event(graph_def=bytes(9000)), scalar("loss", 3, 3)]
    )
    assert points(data) == {"loss": [(1, "1.0"), (2, "2.0"), (3, "3.0")]}


def test_a_record_that_is_no_message_is_counted_and_costs_no_other() -> None:
    good = [written([scalar("loss", step, step)]) for step in range(1, 60)]
    bad = struct.pack("<QI", 14, 0) + b"\x09" + bytes(8) + b"\x2a\x7f\x0a\x02\x0a" + bytes(4)
    data = b"".join([written([VERSION]), *good[:30], bad, *good[30:], *[bad] * 20])
    trace = read_source(Source(data, "log"))
    assert trace.series["loss"].rows == 59
    assert trace.lines_skipped == 21


def test_other_files_are_not_claimed() -> None:
    for data in (b"", b"brain.Event:2", b"\x20" + bytes(40), b"step: 1 loss: 2.5\n" * 40):
        assert not READER.sniff(Source(data, "log").head)
    assert READER.sniff(Source(written([VERSION]), "log").head)


def test_an_event_file_without_scalars_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="no row"):
        read([Event(graph_def=b"graph")])


def test_records_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_shapes, "_groups", lambda words, mask: [np.arange(len(words))])
    events = [scalar(f"loss{s * s % 7 % 3}", s, s) for s in range(200)]
    data = written([VERSION, *events])
    assert points(data) == twin(data)


def test_records_of_one_length_and_several_layouts_are_told_apart() -> None:
    double = tensor("loss", 3, make_tensor_proto(np.float64(2.5)))
    spare = len(double.SerializeToString()) - len(scalar("x", 3, 2.5).SerializeToString())
    events = [
        scalar("x" * (1 + spare), 3, s)
        if s * s % 7 < 3
        else tensor("loss", 3, make_tensor_proto(np.float64(s / 3)))
        for s in range(300)
    ]
    assert len({len(event.SerializeToString()) for event in events}) == 1
    data = written([VERSION, *events])
    assert points(data) == twin(data)


def test_a_record_of_more_than_64_kib_costs_no_other() -> None:
    events = []
    for step in range(1, 60):
        events.append(scalar("loss", step, step))
        if step % 20 == 0:
            image = Summary.Image(encoded_image_string=bytes(70_000))
            events[-1].summary.value.add(tag="image", image=image)
    data = written([VERSION, *events])
    assert points(data) == twin(data)


def test_steps_beyond_32_bits_are_read() -> None:
    trace = read(scalar("loss", 2**40 + s, s) for s in range(5))
    assert rows(trace) == [(2**40 + s, s) for s in range(5)]


def test_a_step_stated_again_behind_the_summary_counts() -> None:
    def twice(step: int) -> bytes:
        data = scalar("loss", 3, step).SerializeToString() + bytes([16, 9 + step % 3])
        return struct.pack("<QI", len(data), 0) + data + bytes(4)

    data = written([VERSION]) + b"".join(map(twice, range(60)))
    assert points(data) == twin(data)


def test_bytes_in_a_tag_that_look_like_a_record_are_none() -> None:
    inner = written([scalar("x", 5, 5)]).decode("latin-1")
    data = written([VERSION, *(scalar(f"loss{inner}", s, s) for s in range(1, 50))])
    assert points(data) == twin(data)


tags = st.sampled_from(["loss", "train/loss", "aux", "é", "lr"])
numbers = st.one_of(st.floats(width=32), st.sampled_from([0.0, math.nan]))


@st.composite
def stretches(draw: st.DrawFn) -> list[Any]:
    """Some rounds of the same records, which differ in steps and numbers."""
    start = draw(st.sampled_from([0, 1, 120, 16_380, 2**31, 2**40, -5]))
    num_rounds = draw(st.integers(1, 40))
    forms = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["simple", "tensor", "pair", "text", "double", "int", "late"]),
                tags,
                st.integers(1, 3),
            ),
            max_size=4,
        )
    )
    events = []
    for i in range(num_rounds):
        for form, tag, every in forms:
            if i % every == 0:
                events.append(event_of(form, tag, start + i, draw(numbers)))
    if draw(st.booleans()):
        events.append(started(draw(st.integers(0, 200))))
    return events


def event_of(form: str, tag: str, step: int, value: float) -> Any:
    if form == "tensor":
        return tensor(tag, step, make_tensor_proto(np.float32(value)))
    if form == "double":
        return tensor(f"{tag}64", step, make_tensor_proto(np.float64(value)))
    if form == "int":
        return tensor(f"{tag}-int", step, make_tensor_proto(np.int64(step % 7)))
    if form == "text":
        return Event(wall_time=1.5e9, step=step, log_message={"message": tag})
    event = scalar(tag, step, value)
    if form == "pair":
        event.summary.value.add(tag=f"{tag}2", simple_value=-value)
    if form == "late":
        event.wall_time = 0  # which is left out
    return event


@given(parts=st.lists(stretches(), max_size=4), piece=st.sampled_from([64, 700, 5000, 1 << 20]))
@settings(deadline=None, max_examples=150)
def test_any_event_file_reads_as_record_by_record(parts: list[list[Any]], piece: int) -> None:
    data = written([VERSION, *(event for part in parts for event in part)])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(event_file, "PIECE", piece)
        patched.setattr(event_file, "_FIRST_SPAN", max(piece // 4, 1))
        patched.setattr(event_shapes, "_FEW", 2)
        patched.setattr(event_rounds, "_WORTH", 4)
        assert points(data) == twin(data)


@given(data=st.data())
@settings(deadline=None)
def test_damaged_bytes_are_at_most_unreadable(data: st.DataObject) -> None:
    events = [scalar(tag, s, s) for s in range(1, 40) for tag in ("loss", "lr")]
    sound = written([VERSION, *events])
    start = data.draw(st.integers(0, len(sound)))
    stop = data.draw(st.integers(start, min(start + 40, len(sound))))
    damaged = sound[:start] + data.draw(st.binary(max_size=40)) + sound[stop:]
    with suppress(Unreadable):
        read_source(Source(damaged, "log"), "tensorboard")


def place(folder: Path, name: str, events: Sequence[Any]) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(written([VERSION, *events]))


def test_the_files_of_a_folder_are_one_run_in_the_order_of_their_times(tmp_path: Path) -> None:
    place(tmp_path, "events.out.tfevents.1000.host.7", [scalar("loss", s, 2) for s in (3, 4)])
    place(
        tmp_path, "events.out.tfevents.999.host.9", [scalar("loss", s, 1) for s in (1, 2, 3, 4, 5)]
    )
    (tmp_path / "notes.txt").write_text("nothing")
    trace = read_folder(tmp_path)
    assert rows(trace) == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert [(e.step, e.kind) for e in trace.events] == [(3, "resume")]


def test_a_folder_is_read_whole_and_a_file_alone(tmp_path: Path) -> None:
    place(tmp_path, "events.out.tfevents.1", [scalar("loss", s, s) for s in (1, 2)])
    place(tmp_path, "events.out.tfevents.2", [scalar("loss", s, s) for s in (3, 4)])
    trace = readers.read(tmp_path)
    assert trace.reader == "tensorboard"
    assert rows(trace) == [(s, s) for s in (1, 2, 3, 4)]
    assert trace.reading is not None
    assert trace.reading.why == "2 event files in this folder"
    assert rows(readers.read(tmp_path / "events.out.tfevents.2")) == [(3, 3), (4, 4)]


def test_a_folder_above_is_the_runs_in_it_and_parts_are_none(tmp_path: Path) -> None:
    for name in ("one/events.out.tfevents.1", "two/train/events.out.tfevents.1"):
        place(tmp_path, name, [scalar("loss", 1, 1)])
    place(tmp_path, "two/validation/events.out.tfevents.1", [scalar("loss", 1, 1)])
    assert readers.runs_in(tmp_path) == [tmp_path / "one", tmp_path / "two"]
    assert readers.runs_in(tmp_path / "two") == [tmp_path / "two"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    place(tmp_path, "elsewhere/events.out.tfevents.1", [scalar("loss", 1, 1)])
    run = tmp_path / "run"
    place(tmp_path, "run/events.out.tfevents.1", [scalar("loss", 2, 2)])
    (run / "events.out.tfevents.2").symlink_to(tmp_path / "elsewhere/events.out.tfevents.1")
    (run / "train").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert event_files(run) == [("", run / "events.out.tfevents.1")]


def test_a_folder_of_empty_event_files_is_unreadable(tmp_path: Path) -> None:
    place(tmp_path, "events.out.tfevents.1", [])
    with pytest.raises(Unreadable, match="no event file with a curve"):
        readers.read(tmp_path)


def test_what_an_event_file_says_in_words_is_not_asked_of_readers_of_text() -> None:
    said = "".join(reader.sample for reader in readers.readers())
    words = [Event(wall_time=1.5e9, log_message={"message": said})] * 3
    assert read([*words, scalar("loss", 1, 2.5)]).reader == "tensorboard"


def test_keras_curves_lie_in_two_folders(tmp_path: Path) -> None:
    train = [scalar("epoch_loss", s, 2 - s) for s in (0, 1)]
    place(tmp_path, "train/events.out.tfevents.1.v2", train)
    evaluation = [scalar("epoch_loss", s, 3 - s) for s in (0, 1)]
    evaluation += [scalar("evaluation_loss_vs_iterations", s, 3) for s in (100, 200)]
    place(tmp_path, "validation/events.out.tfevents.1.v2", evaluation)
    trace = read_folder(tmp_path)
    assert rows(trace) == [(1, 2), (2, 1)]
    assert rows(trace, "eval_loss") == [(1, 3), (2, 2)]
    assert set(trace.series) == {"loss", "eval_loss"}


def test_batches_of_keras_go_with_the_evaluation_over_iterations(tmp_path: Path) -> None:
    train = [scalar("batch_loss", s, 1) for s in range(1, 6)] + [scalar("epoch_loss", 1, 1)]
    place(tmp_path, "train/events.out.tfevents.1.v2", train)
    evaluation = [scalar("epoch_loss", 1, 3), scalar("evaluation_loss_vs_iterations", 5, 3)]
    place(tmp_path, "validation/events.out.tfevents.1.v2", evaluation)
    trace = read_folder(tmp_path)
    assert trace.series["loss"].rows == 5
    assert rows(trace, "eval_loss") == [(5, 3)]


def test_folders_of_several_runs_are_no_run(tmp_path: Path) -> None:
    place(tmp_path, "run-1/events.out.tfevents.1", [scalar("loss", 1, 1)])
    place(tmp_path, "run-2/events.out.tfevents.1", [scalar("loss", 1, 1)])
    assert event_files(tmp_path) == []
    place(tmp_path, "eval/events.out.tfevents.1", [scalar("loss", 1, 1)])
    assert event_files(tmp_path) == []
    assert event_files(tmp_path / "absent") == []


CONVENTIONS: dict[str, dict[str, str]] = {
    "Hugging Face": {
        "train/loss": "loss",
        "eval/loss": "eval_loss",
        "train/learning_rate": "lr",
        "train/grad_norm": "grad_norm",
        "train/epoch": "epoch",
        "eval/runtime": "",
        "eval/accuracy": "metric:eval/accuracy",
    },
    "Lightning": {
        "train_loss_step": "loss",
        "train_loss_epoch": "metric:train_loss_epoch",
        "val_loss": "eval_loss",
        "lr-AdamW": "lr",
        "lr-AdamW-momentum": "metric:lr-AdamW-momentum",
        "epoch": "epoch",
        "hp_metric": "",
    },
    "a script": {
        "Loss/train": "loss",
        "Loss/test": "eval_loss",
        "Accuracy/test": "metric:Accuracy/test",
    },
    "TF-slim": {
        "total_loss_1": "loss",
        "losses/clone_0/mse_loss": "metric:losses/clone_0/mse_loss",
        "learning_rate_1": "lr",
    },
    "object detection": {
        "Losses/TotalLoss": "loss",
        "Losses/clone_0/Loss/RPNLoss": "metric:Losses/clone_0/Loss/RPNLoss",
    },
    "Megatron": {
        "lm loss": "loss",
        "lm loss vs samples": "",
        "lm loss validation": "eval_loss",
        "lm loss validation ppl": "metric:lm loss validation ppl",
        "learning-rate": "lr",
        "grad-norm": "grad_norm",
        "loss-scale": "loss_scale",
    },
    "torchtitan": {
        "loss_metrics/global_avg_loss": "loss",
        "loss_metrics/global_max_loss": "metric:loss_metrics/global_max_loss",
        "lr": "lr",
        "throughput(tps)": "",
    },
    "Composer": {"loss/train/total": "loss", "lr-DecoupledAdamW/group0": "lr", "time/batch": ""},
    "DeepSpeed": {"Train/Samples/train_loss": "loss", "Train/Samples/lr": "lr"},
    "OLMo": {
        "train/CrossEntropyLoss": "loss",
        "train/ZLoss": "metric:train/ZLoss",
        "optim/total_grad_norm": "grad_norm",
    },
    "names of channels that a user took": {
        "loss": "loss",
        "grad_norm_used": "metric:grad_norm_used",
        "step_time_s": "",
    },
    "the doctor alone": {
        "optdoctor/loss": "loss",
        "optdoctor/lr": "lr",
        "optdoctor/update_ratio/fc.weight": "",
        "optdoctor/metric/acc": "metric:acc",
    },
    "the doctor beside a framework": {
        "train/loss": "loss",
        "optdoctor/loss": "",
        "optdoctor/grad_norm": "",
        "optdoctor/update_ratio/fc.weight": "",
    },
}


@pytest.mark.parametrize("framework", CONVENTIONS)
def test_names_mean_what_their_framework_means(framework: str) -> None:
    names = CONVENTIONS[framework]
    meaning = meaning_of(dict.fromkeys(names, 10))
    assert meaning.aliases == names
    assert meaning.loss_kind == "falling"


@pytest.mark.parametrize(
    ("names", "loss", "kind"),
    [
        (["train/loss", "rollout/ep_rew_mean"], "train/loss", "reward"),
        (
            ["ray/tune/episode_reward_mean", "ray/tune/info/vf_loss"],
            "ray/tune/info/vf_loss",
            "reward",
        ),
        (["charts/episodic_return"], None, None),
        (["loss_G", "loss_D"], "loss_G", "adversarial"),
        (["train/box_loss", "val/box_loss"], "train/box_loss", "unknown"),
        (["objective/kl", "loss_scale", "lr"], None, None),
    ],
)
def test_what_a_loss_does_in_a_good_run_is_said(
    names: list[str], loss: str | None, kind: str | None
) -> None:
    meaning = meaning_of(dict.fromkeys(names, 10))
    assert (meaning.loss, meaning.loss_kind) == (loss, kind)
    assert "eval_loss" not in meaning.aliases.values()


def test_of_several_names_of_the_loss_the_finest_counts() -> None:
    assert meaning_of({"train/train_loss": 1, "train/loss": 40}).loss == "train/loss"
    assert meaning_of({"loss": 40, "total_loss": 40, "train_loss_epoch": 90}).loss == "total_loss"
    assert meaning_of({"train/nll_loss": 40, "train/loss": 40}).loss == "train/loss"


def test_curves_of_the_doctor_are_read_back(tmp_path: Path) -> None:
    from optdoctor.sinks import Place, Sample
    from optdoctor.sinks.tensorboard import SINK

    sink = SINK(Place(out=tmp_path))
    values: NDArray[np.float32] = np.array([0.5], np.float32)
    for step in range(1, 30):
        sink.row(step, {"loss": 1 / step, "lr": 0.5, "metric:acc": 0.25})
        sink.sample(Sample(step, ("fc.weight",), {"update_ratio": values}, {}))
    sink._writer.close()  # type: ignore[attr-defined]
    trace = read_folder(tmp_path / "tensorboard")
    assert set(trace.series) == {"loss", "lr", "metric:acc"}
    assert rows(trace) == [(s, float(np.float32(1 / s))) for s in range(1, 30)]
