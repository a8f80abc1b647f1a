"""The bounded memory of one channel: what is kept, against a slow and obvious twin."""

import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from optdoctor.store import NO_STEP, Series, StepStore, TensorStore

AWKWARD = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1.0, -7.5, 1e38])
VALUES = st.lists(AWKWARD | st.floats(width=32), max_size=80)
CAPACITIES = st.integers(2, 17)


def same(one: Series, other: Series) -> bool:
    return all(
        np.array_equal(getattr(one, f.name), getattr(other, f.name), equal_nan=True)
        for f in fields(Series)
    )


def step_series(values: Sequence[float], capacity: int, cuts: Sequence[int] = ()) -> Series:
    """The values at steps 3, 6, ...: blocks end at the cuts; a block of one row is appended."""
    store = StepStore(capacity)
    steps = 3 * np.arange(1, len(values) + 1)
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(values)}), len(values)]
    for start, end in pairwise(edges):
        if end - start == 1:
            store.append(int(steps[start]), values[start])
        elif end > start:
            store.extend(steps[start:end], np.array(values[start:end], np.float64))
    return store.series()


def bucket(rows: list[tuple[int, float]]) -> dict[str, float]:
    """What a bucket of these rows has to say, row by row."""
    said: dict[str, float] = {
        "starts": rows[0][0],
        "steps": rows[-1][0],
        "values": rows[-1][1],
        "low": math.nan,
        "high": math.nan,
        "high_step": NO_STEP,
        "bad": 0,
        "first_bad": NO_STEP,
        "last_bad": NO_STEP,
        "count": len(rows),
    }
    for step, value in rows:
        if not math.isfinite(value):
            said["bad"] += 1
            said["last_bad"] = step
            if said["first_bad"] == NO_STEP:
                said["first_bad"] = step
            continue
        if not said["low"] <= value:
            said["low"] = value
        if not said["high"] >= value:
            said["high"], said["high_step"] = value, step
    return said


class SlowTwin:
    """One bucket per row, all pairs merged whenever another does not fit."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.width = capacity - capacity % 2, 1
        self.buckets: list[list[tuple[int, float]]] = []

    def append(self, step: int, value: float) -> None:
        if not self.buckets or len(self.buckets[-1]) == self.width:
            if len(self.buckets) == self.capacity:
                pairs = range(0, self.capacity, 2)
                self.buckets = [self.buckets[i] + self.buckets[i + 1] for i in pairs]
                self.width *= 2
            self.buckets.append([])
        self.buckets[-1].append((step, value))

    def cut(self, step: int) -> None:
        self.buckets = [rows for rows in self.buckets if rows[-1][0] < step]


def assert_is_slow_twin(series: Series, values: Sequence[float], capacity: int) -> None:
    twin = SlowTwin(capacity)
    for place, value in enumerate(values, 1):
        twin.append(3 * place, value)
    assert_holds(series, twin)


def assert_holds(series: Series, slow: SlowTwin) -> None:
    twin = [bucket(rows) for rows in slow.buckets]
    for name in (field.name for field in fields(Series)):
        expected = np.array([row[name] for row in twin])
        np.testing.assert_array_equal(getattr(series, name), expected, err_msg=name)


@given(values=VALUES, capacity=CAPACITIES, cuts=st.lists(st.integers(1, 79)))
def test_blocks_of_rows_leave_what_the_slow_twin_leaves(
    values: list[float], capacity: int, cuts: list[int]
) -> None:
    assert_is_slow_twin(step_series(values, capacity, cuts), values, capacity)


@pytest.mark.parametrize("capacity", range(2, 10))
def test_blocks_of_every_size_leave_what_the_slow_twin_leaves(capacity: int) -> None:
    values = [math.nan if i % 7 == 3 else float(i * 37 % 11) for i in range(100)]
    for block in range(1, 40):
        series = step_series(values, capacity, range(block, 100, block))
        assert_is_slow_twin(series, values, capacity)


@given(
    values=VALUES,
    capacity=CAPACITIES,
    one=st.lists(st.integers(1, 79)),
    other=st.lists(st.integers(1, 79)),
)
def test_the_same_rows_in_other_blocks_leave_the_same_series(
    values: list[float], capacity: int, one: list[int], other: list[int]
) -> None:
    assert same(step_series(values, capacity, one), step_series(values, capacity, other))


@pytest.mark.parametrize("capacity", [4, 40, 400])
@pytest.mark.parametrize("bad", [(), (1234, 7000, 7001)])
def test_wide_buckets_of_several_blocks_leave_what_the_slow_twin_leaves(
    capacity: int, bad: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optdoctor.store._CACHED", 100)
    values = np.random.default_rng(0).integers(-9, 9, 9000) * 1.0
    values[list(bad)] = [math.nan, math.inf, -math.inf][: len(bad)]
    store, steps = StepStore(capacity), 3 * np.arange(1, 9001)
    for edges in ([0, 1, 700, 1400, 1403], [1403, 1404, 5000], [5000, 8990, 9000]):
        store.extend_by([(steps[i:j], values[i:j]) for i, j in pairwise(edges)])
    assert store.last_step == 27_000
    assert_is_slow_twin(store.series(), list(values), capacity)


@pytest.mark.parametrize("rows", [4095, 4096, 4097, 8192, 10_000])
def test_rows_one_by_one_leave_what_one_block_leaves(rows: int) -> None:
    values = np.random.default_rng(0).standard_normal(rows)
    store = StepStore(512)
    for step, value in enumerate(values, 1):
        store.append(3 * step, float(value))
    assert same(store.series(), step_series(list(values), 512))


@given(
    blocks=st.lists(st.tuples(st.integers(0, 40), VALUES), max_size=5),
    capacity=CAPACITIES,
    one_by_one=st.booleans(),
)
def test_a_cut_store_keeps_the_buckets_before_the_cut_and_goes_on(
    blocks: list[tuple[int, list[float]]], capacity: int, one_by_one: bool
) -> None:
    store, twin = StepStore(capacity), SlowTwin(capacity)
    for back, values in blocks:
        step = max(store.last_step + 1 - back, 0)
        store.cut(step)
        twin.cut(step)
        steps = np.arange(step, step + len(values))
        if values and not one_by_one:
            store.extend(steps, np.array(values, np.float64))
        for at, value in zip(steps.tolist(), values, strict=True):
            twin.append(at, value)
            if one_by_one:
                store.append(at, value)
        rows = [row for bucket in twin.buckets for row in bucket]
        assert store.rows == len(rows)
        assert store.first_step == (rows[0][0] if rows else NO_STEP)
        assert store.last_step == (rows[-1][0] if rows else NO_STEP)
    assert_holds(store.series(), twin)


def test_a_copy_of_a_store_and_the_store_itself_go_on_apart() -> None:
    store = StepStore(8)
    for step in range(1, 7):
        store.append(step, float(step))
    copy = store.copy()
    copy.append(9, 9.0)
    assert (copy.last_step, copy.series().steps.tolist()) == (9, [1, 2, 3, 4, 5, 6, 9])
    store.extend(np.arange(7, 30), np.zeros(23))
    assert (store.last_step, store.rows, store.series().rows) == (29, 29, 29)
    store.cut(5)
    assert copy.series().rows == 7


def test_a_moved_series_has_later_steps_and_where_none_is_meant_still_none() -> None:
    series = step_series([1.0, math.nan, 5.0], 8)
    moved = series.moved(1)
    assert moved.steps.tolist() == moved.starts.tolist() == [4, 7, 10]
    assert moved.high_step.tolist() == [4, NO_STEP, 10]
    assert moved.first_bad.tolist() == moved.last_bad.tolist() == [NO_STEP, 7, NO_STEP]
    assert same(series.moved(0), series)
    with pytest.raises(ValueError, match="read-only"):
        moved.steps[:] = 0


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
def test_extremes_do_not_depend_on_which_zero_came_first(zeros: tuple[float, float]) -> None:
    together = step_series([*zeros, 1.0, 1.0, 1.0], 2, [])
    apart = step_series([*zeros, 1.0, 1.0, 1.0], 2, [1, 2, 3, 4])
    assert together.low.tobytes() == apart.low.tobytes()
    assert not np.signbit(together.low).any()


def test_many_small_blocks_are_joined_now_and_then() -> None:
    store = StepStore()
    for start in range(0, 20_000, 2):
        store.extend(np.arange(start, start + 2), np.zeros(2))
    assert len(store._parts) < 20
    assert store.rows == 20_000


def test_a_snapshot_does_not_change_what_is_kept_later() -> None:
    looked, not_looked = StepStore(8), StepStore(8)
    for step in range(1, 40):
        looked.append(step, float(step))
        not_looked.append(step, float(step))
        looked.series()
    assert same(looked.series(), not_looked.series())


def test_a_step_store_is_bounded_and_counts_every_row() -> None:
    for rows in (63, 64, 65, 1000, 4097):
        series = step_series([1.0] * rows, 64)
        assert min(rows, 32) <= len(series.steps) <= 64
        assert (series.rows, series.num_finite) == (rows, rows)


def test_the_first_of_equal_tops_names_the_step() -> None:
    series = step_series([5.0, 1.0, 5.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0], 2)
    assert (series.high[0], series.high_step[0]) == (5.0, 3)


def test_arrays_of_a_series_are_read_only() -> None:
    store = TensorStore(2)
    store.append(1, np.ones(2, np.float32))
    for series in (step_series([1.0, 2.0], 8), store.series()):
        for field in fields(Series):
            with pytest.raises(ValueError, match="read-only"):
                getattr(series, field.name)[:] = 0


def test_an_old_snapshot_does_not_change_with_later_rows() -> None:
    store = TensorStore(2)
    store.append(1, np.ones(2, np.float32))
    before = store.series()
    store.append(2, np.full(2, np.nan, np.float32))
    assert before.bad.tolist() == [0, 0]
    assert before.high.tolist() == [1.0, 1.0]


def tensor_store(rows: int, capacity: int, recent: int) -> TensorStore:
    store = TensorStore(1, capacity, recent)
    for i in range(rows):
        store.append(7 * i + 7, np.array([i], np.float32))
    return store


@pytest.mark.parametrize("capacity", [-2, 0, 1])
def test_a_capacity_from_a_damaged_record_neither_hangs_nor_grows(capacity: int) -> None:
    assert len(step_series([1.0] * 100, capacity).steps) <= 2
    assert len(tensor_store(1000, capacity, recent=capacity).series().steps) <= 3


@given(rows=st.integers(1, 700), capacity=st.integers(2, 33), recent=st.integers(1, 20))
def test_history_covers_the_run_evenly_and_the_newest_rows_are_kept(
    rows: int, capacity: int, recent: int
) -> None:
    kept = tensor_store(rows, capacity, recent).series().values[:, 0].astype(int)
    newest = list(range(max(0, rows - recent), rows))
    assert kept[-len(newest) :].tolist() == newest
    assert len(kept) <= capacity + recent
    history = [i for i in kept if i < newest[0]]
    if not history:
        assert newest[0] == 0
        return
    stride = max(1, 2 ** math.ceil(math.log2(rows / capacity)))
    assert history[0] == 0
    assert set(np.diff(history)) <= {stride, 2 * stride}
    assert newest[0] - history[-1] <= 2 * stride


@given(
    table=st.lists(st.lists(AWKWARD, min_size=3, max_size=3), min_size=1, max_size=60),
    capacity=st.integers(2, 8),
)
def test_the_ledger_of_a_tensor_is_that_of_one_bucket_over_the_run(
    table: list[list[float]], capacity: int
) -> None:
    rows = np.array(table, np.float32)
    store = TensorStore(3, capacity, recent=2)
    for step, row in enumerate(rows, 1):
        store.append(step, row)
    series = store.series()
    for p in range(3):
        said = bucket([(step, float(value)) for step, value in enumerate(rows[:, p], 1)])
        for name in ("low", "high", "high_step", "bad", "first_bad", "last_bad", "count"):
            np.testing.assert_equal(getattr(series, name)[p].item(), said[name], err_msg=name)


def test_a_widened_store_has_not_measured_the_new_tensors_before() -> None:
    store = TensorStore(1, 4, 2)
    for step in range(1, 11):
        store.append(step, np.array([step], np.float32))
    store.widen(3)
    store.append(11, np.array([np.nan, 5, 6], np.float32))
    series = store.series()
    assert np.isnan(series.values[:-1, 1:]).all()
    assert series.values[-1].tolist()[1:] == [5, 6]
    assert series.high.tolist() == [10, 5, 6]
    assert series.high_step.tolist() == [10, 11, 11]
    assert (series.bad.tolist(), series.first_bad.tolist()) == ([1, 0, 0], [11, -1, -1])


def test_widening_to_fewer_changes_nothing() -> None:
    store = TensorStore(2)
    store.append(1, np.ones(2, np.float32))
    store.widen(1)
    assert store.series().values.shape == (1, 2)


def nan_row(width: int) -> NDArray[np.float32]:
    return np.full(width, np.nan, np.float32)


def test_a_tensor_never_measured_has_no_extremes() -> None:
    store = TensorStore(2)
    store.append(1, nan_row(2))
    series = store.series()
    assert np.isnan(series.high).all()
    assert np.isnan(series.low).all()
    assert series.high_step.tolist() == [NO_STEP, NO_STEP]
