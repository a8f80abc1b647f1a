"""The measured update within a number of bytes: round by round, and exact where it is told."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_training import fingerprint
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from optdoctor.live.collector import Collector
from optdoctor.live.snapshot import LEAST_BYTES, Snapshot
from optdoctor.live.tensors import track
from optdoctor.live.units import STACKED, units_of
from optdoctor.optimizers import probe_of

SIZES: tuple[tuple[int, ...], ...] = ((3, 5),) * 6 + ((), (7,), (64, 64), (300, 300), (700, 100))
BIG = (1000, 130)
"""520 000 bytes in float32, 520 a row."""


def training(
    sizes: Sequence[tuple[int, ...]], room: int | None, *dtypes: torch.dtype
) -> tuple[nn.Module, Any, Collector]:
    """Of tensors of these dtypes in turn."""
    torch.manual_seed(0)
    model = nn.ParameterList(
        [
            nn.Parameter(torch.randn(size).to(dtype))
            for size, dtype in zip(sizes, itertools.cycle(dtypes or (torch.float32,)))
        ]
    )
    optimizer = AdamW(model.parameters(), lr=1e-2)
    probe = probe_of(optimizer)
    tracked = track(model, optimizer, probe)
    return model, optimizer, Collector(optimizer, probe, tracked, room)


def updates(
    model: nn.Module, optimizer: Any, collector: Collector, step: int
) -> tuple[list[float], list[Tensor]]:
    """(update_rms that the sample tells, the true changes) of each tensor."""
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    before = [p.detach().double() for p in parameters]
    collector.before()
    optimizer.step()
    (reading,) = collector.after(step)
    told = reading.tensors.get("update_rms", np.full(len(parameters), np.nan)).tolist()
    return told, [p.detach().double() - b for p, b in zip(parameters, before, strict=True)]


def rms(change: Tensor) -> float:
    return float(change.square().mean().sqrt())


def kept_bytes(snapshot: Snapshot) -> int:
    """Of the storages that it keeps at this moment, each once."""
    kept = [*snapshot._kept.values(), *snapshot._room.values()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    return sum(storages.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("room", [100_000, 400_000, 600_000])
def test_every_update_is_measured_once_a_round_and_exactly(room: int, dtype: torch.dtype) -> None:
    model, optimizer, collector = training([*SIZES, BIG], room, dtype)
    num_turns = len(collector._before.snapshot.turns)
    assert (num_turns > 1) == (room < sum(p.numel() * p.itemsize for p in model.parameters()))
    for first in range(2):
        seen = [0] * len(list(model.parameters()))
        for turn in range(num_turns):
            told, true = updates(model, optimizer, collector, first * num_turns + turn)
            for i, (value, change) in enumerate(zip(told, true, strict=True)):
                if math.isnan(value):
                    continue
                seen[i] += 1
                if i not in collector.rows_only:
                    assert value == pytest.approx(rms(change), rel=1e-6)
        assert seen == [1] * len(seen)


@pytest.mark.parametrize("shape", [BIG, (65537,), (40, 3, 30, 30), (70, 1000)])
@pytest.mark.parametrize("room", [30_000, 100_000, 250_000])
def test_a_tensor_that_is_larger_than_the_room_keeps_the_same_rows_every_time(
    room: int, shape: tuple[int, ...]
) -> None:
    model, optimizer, collector = training([shape], room)
    assert collector.rows_only == {0}
    parameter_bytes = 4 * math.prod(shape)
    chosen = set()
    for step in range(4):
        (told,), (change,) = updates(model, optimizer, collector, step)
        fitting = [
            stride for stride in range(2, 2 + 4 * parameter_bytes // room)
            if told == pytest.approx(rms(change[::stride]), rel=1e-6)
        ]  # fmt: skip
        assert fitting, "the root mean square of evenly spaced rows"
        rows = change[:: fitting[0]]
        assert rows.numel() * 4 <= max(room, 4 * change[0].numel())
        assert 2 * rows.numel() * 4 >= min(room, 4 * change[0].numel()), "the room is used"
        chosen.add(fitting[0])
    assert len(chosen) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("shape", [(1, 131_072), (2, 256, 256), (3, 1, 65_536), (1, 1, 70_001)])
@pytest.mark.parametrize("room", [3, 30_000, 100_000])
def test_of_a_tensor_of_which_one_row_is_larger_than_the_room_the_same_elements_are_kept(
    room: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    model, optimizer, collector = training([shape], room, dtype)
    assert collector.rows_only == {0}
    itemsize = torch.finfo(dtype).bits // 8
    num_elements = math.prod(shape) * (2 if dtype.is_complex else 1)
    most = max(1, room // itemsize)
    assert collector.snapshot_bytes <= most * itemsize
    stride = -(-num_elements // most)
    stride += stride % 2 == 0
    for step in range(3):
        parameter = next(model.parameters())
        parameter.grad = torch.randn_like(parameter)
        before = flat(parameter).clone()
        collector.before()
        optimizer.step()
        (reading,) = collector.after(step)
        change = (flat(parameter) - before)[::stride]
        assert float(reading.tensors["update_rms"][0]) == pytest.approx(rms(change), rel=1e-6)
        collector.forget()


def flat(parameter: Tensor) -> Tensor:
    """Real numbers in float64."""
    here = parameter.detach()
    return (torch.view_as_real(here) if here.is_complex() else here).reshape(-1).double()


def test_every_column_is_met_where_elements_are_kept() -> None:
    unit = meta_units_of((2, 256, 1024))
    (piece,) = Snapshot([unit], 4 * unit.num_elements // 8).turns[0]
    assert piece.of_elements
    columns = piece.of(torch.arange(unit.num_elements).view(2, 256, 1024) % 1024)
    assert len(columns.unique()) == 1024
    assert len(columns) == piece.num_elements


def meta_units_of(shape: tuple[int, ...]) -> Any:
    """The unit of one tensor that takes no memory."""
    parameter = nn.Parameter(torch.empty(shape, device="meta"))
    optimizer = SGD([parameter], lr=1.0)
    (unit,) = units_of(track(nn.ParameterList([parameter]), optimizer, probe_of(optimizer)))
    return unit


def test_the_ratio_of_an_update_of_rows_is_over_all_weights() -> None:
    model, optimizer, collector = training([BIG], 100_000)
    parameter = next(model.parameters())
    parameter.grad = torch.randn_like(parameter)
    collector.before()
    optimizer.step()
    (reading,) = collector.after(1)
    size = rms(parameter.detach().double())
    told = {name: float(row[0]) for name, row in reading.tensors.items()}
    assert told["param_rms"] == pytest.approx(size, rel=1e-6)
    assert told["update_ratio"] == pytest.approx(told["update_rms"] / size, rel=1e-6)


@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.float32, torch.bfloat16)], ids=str)
@pytest.mark.parametrize("room", [30_000, 100_000, 400_000, 600_000, None])
def test_copies_stay_within_the_room(room: int | None, dtypes: tuple[torch.dtype, ...]) -> None:
    model, optimizer, collector = training([*SIZES, BIG, (65537,)], room, *dtypes)
    snapshot = collector._before.snapshot
    total = sum(p.numel() * p.itemsize for p in model.parameters())
    assert collector.snapshot_bytes <= (total if room is None else room)
    largest = 0
    for step in range(2 * len(snapshot.turns)):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        collector.before()
        largest = max(largest, kept_bytes(snapshot))
        optimizer.step()
        collector.after(step)
    assert largest <= collector.snapshot_bytes
    assert largest >= collector.snapshot_bytes / 2, "what is told is what is taken"
    assert not snapshot._kept, "between samples only the place of big ones stays"


def test_without_a_room_all_updates_are_measured_at_every_sample() -> None:
    model, optimizer, collector = training([*SIZES, BIG], None)
    for step in range(3):
        told, true = updates(model, optimizer, collector, step)
        assert told == pytest.approx([rms(change) for change in true], rel=1e-6)
    assert collector.rows_only == set()


def meta_units(num_bytes: int) -> list[Any]:
    """Of a model of so many bytes that takes none."""
    size = num_bytes // 4 // 64
    model = nn.ParameterList(
        [nn.Parameter(torch.empty(size, dtype=torch.float32, device="meta")) for _ in range(64)]
    )
    optimizer = SGD(model.parameters(), lr=1.0)
    return units_of(track(model, optimizer, probe_of(optimizer)))


def test_the_room_is_the_larger_of_64_mebibytes_and_an_eighth_of_the_parameters() -> None:
    assert LEAST_BYTES == 64 << 20
    assert len(Snapshot(meta_units(64 << 20)).turns) == 1, "a small model is measured whole"
    assert len(Snapshot(meta_units(256 << 20)).turns) == 4
    large = Snapshot(meta_units(2 << 30))
    assert len(large.turns) == 8
    assert large.num_bytes == (2 << 30) // 8


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), min_size=1, max_size=12),
    st.integers(1, 2_000_000),
)
def test_any_tensors_fit_into_any_room(shapes: list[tuple[int, int]], room: int) -> None:
    model = nn.ParameterList([nn.Parameter(torch.empty(s, device="meta")) for s in shapes])
    optimizer = SGD(model.parameters(), lr=1.0)
    units = units_of(track(model, optimizer, probe_of(optimizer)))
    snapshot = Snapshot(units, room)
    served = [p for turn in snapshot.turns for piece in turn for p in piece.unit.positions]
    assert sorted(served) == list(range(len(shapes))), "each once a round"
    # One row of a big tensor and one stack of small ones are the least that there is.
    least = max(unit.num_bytes if unit.stacked else unit.num_bytes // unit.rows for unit in units)
    assert snapshot.num_bytes <= max(room, least)


def test_what_is_frozen_takes_no_room() -> None:
    model = nn.ParameterList([nn.Parameter(torch.zeros(BIG)), nn.Parameter(torch.zeros(3))])
    model[0].requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=1.0)
    probe = probe_of(optimizer)
    collector = Collector(optimizer, probe, track(model, optimizer, probe), None)
    assert collector.snapshot_bytes == 12


@pytest.mark.parametrize("room", [None, 100_000])
def test_a_sample_leaves_state_weights_and_generators_alone(room: int | None) -> None:
    prints = []
    for watched in (False, True):
        model, optimizer, collector = training([*SIZES, BIG, (STACKED + 1,)], room)
        for step in range(4):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            if watched:
                collector.before_clip([0, 3])
                collector.before()
            optimizer.step()
            if watched:
                collector.after(step)
                collector.histograms()
        prints.append(fingerprint(model, optimizer))
    assert prints[0] == prints[1]
