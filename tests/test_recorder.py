"""The recorder's promise: nothing that matters is lost in a million rows, in bounded memory."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from optdoctor.trace import Recorder, TensorInfo, Vitals

ROWS = 1_000_000
BLOCK = 50_000
TOGETHER = 26  # channels of one recorder: 302 at once would need 3 GB
TENSORS = tuple(TensorInfo(f"t{i}") for i in range(302))


def planted() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Steps of the one NaN and of the one outlier of each of 302 channels: 300 at random, the first
    and the last, each kind in another channel."""
    rng = np.random.default_rng(7)
    steps = np.concatenate(([1, ROWS], rng.choice(np.arange(2, ROWS), 300, replace=False)))
    return steps, np.roll(steps, 5)


def blocks() -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Steps and healthy values of a million rows, bit by bit."""
    rng = np.random.default_rng(0)
    for start in range(1, ROWS + 1, BLOCK):
        yield np.arange(start, start + BLOCK), np.exp(0.2 * rng.standard_normal(BLOCK))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 302, TOGETHER))
def test_one_nan_and_one_outlier_of_a_million_rows_keep_their_steps(start: int) -> None:
    nan_steps, top_steps = (steps[start : start + TOGETHER] for steps in planted())
    names = [f"metric:m{i}" for i in range(len(nan_steps))]
    recorder = Recorder()
    for steps, normal in blocks():
        for name, nan_step, top_step in zip(names, nan_steps, top_steps, strict=True):
            rows = normal.copy()
            rows[steps == nan_step] = math.nan
            rows[steps == top_step] *= 20
            recorder.extend(name, steps, rows)
    trace = recorder.trace({})
    for name, nan_step, top_step in zip(names, nan_steps, top_steps, strict=True):
        series = trace.series[name]
        assert (series.rows, series.num_finite) == (ROWS, ROWS - 1)
        assert len(series.steps) <= 65_536
        assert series.first_bad[series.bad > 0].tolist() == [nan_step]
        assert series.high_step[np.nanargmax(series.high)] == top_step


@pytest.mark.slow
def test_one_nan_and_one_outlier_of_a_million_samples_keep_their_steps() -> None:
    nan_steps, top_steps = planted()
    nans = {int(step): p for p, step in enumerate(nan_steps)}
    tops = {int(step): p for p, step in enumerate(top_steps)}
    normal = np.exp(0.2 * np.random.default_rng(0).standard_normal((512, 302))).astype(np.float32)
    recorder = Recorder(TENSORS)
    for step in range(1, ROWS + 1):
        row = normal[step % 512]
        if step in nans or step in tops:
            row = row.copy()
            if step in nans:
                row[nans[step]] = np.nan
            if step in tops:
                row[tops[step]] *= 20
        recorder.sample("grad_rms", step, row)
    series = recorder.trace({}).series["grad_rms"]
    assert series.first_bad.tolist() == nan_steps.tolist()
    assert series.high_step.tolist() == top_steps.tolist()
    assert (series.bad == 1).all()
    assert (series.count == ROWS).all()
    assert len(series.steps) <= 448 + 64
    assert series.steps[-64:].tolist() == list(range(ROWS - 63, ROWS + 1))
    gaps = np.diff(series.steps[:-64])
    assert gaps.max() <= 2 * gaps.min()


def test_rows_of_a_step_are_split_by_channel() -> None:
    recorder = Recorder(TENSORS[:2])
    recorder.add(Vitals(1, {"loss": 2.0}, {"grad_rms": np.ones(2, np.float32)}))
    recorder.add(Vitals(2, {"loss": 1.0, "lr": 0.1}))
    trace = recorder.trace({"eps": 1e-8})
    assert trace.series["loss"].values.tolist() == [2.0, 1.0]
    assert trace.series["lr"].steps.tolist() == [2]
    assert trace.series["grad_rms"].values.tolist() == [[1.0, 1.0]]
    assert (trace.steps, trace.facts) == ((1, 2), {"eps": 1e-8})


@pytest.mark.parametrize("step", [5, 4])
def test_a_step_that_does_not_rise_is_refused(step: int) -> None:
    recorder = Recorder(TENSORS[:1])
    row = np.ones(1, np.float32)
    recorder.add(Vitals(5, {"loss": 1.0}, {"grad_rms": row}))
    with pytest.raises(ValueError, match="does not come after 5"):
        recorder.add(Vitals(step, {"loss": 1.0}))
    with pytest.raises(ValueError, match="does not come after 5"):
        recorder.sample("grad_rms", step, row)
    with pytest.raises(ValueError, match="does not come after 5"):
        recorder.extend("loss", np.array([step, 6]), np.ones(2))
    assert recorder.trace({}).series["loss"].rows == 1


def test_steps_of_a_block_must_rise() -> None:
    with pytest.raises(ValueError, match="must rise"):
        Recorder().extend("loss", np.array([1, 3, 3]), np.ones(3))


def test_channels_rise_independently() -> None:
    recorder = Recorder()
    recorder.add(Vitals(9, {"loss": 1.0}))
    recorder.add(Vitals(3, {"eval_loss": 1.0}))
    assert recorder.trace({}).steps == (3, 9)


@pytest.mark.parametrize("name", ["los", "eps", "grad_rms", "metric:"])
def test_what_is_no_step_channel_is_refused(name: str) -> None:
    with pytest.raises(KeyError):
        Recorder().add(Vitals(1, {name: 1.0}))
    with pytest.raises(KeyError):
        Recorder().extend(name, np.array([1]), np.ones(1))


@pytest.mark.parametrize("name", ["los", "eps", "loss"])
def test_what_is_no_tensor_channel_is_refused(name: str) -> None:
    with pytest.raises(KeyError):
        Recorder(TENSORS[:1]).sample(name, 1, np.ones(1, np.float32))


@pytest.mark.parametrize("width", [0, 1, 3])
def test_a_row_of_the_wrong_width_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match="of 2 tensors"):
        Recorder(TENSORS[:2]).sample("grad_rms", 1, np.ones(width, np.float32))


def test_no_rows_are_no_series() -> None:
    recorder = Recorder()
    recorder.extend("loss", np.empty(0, np.int64), np.empty(0))
    assert recorder.trace({}).series == {}


def test_tensors_that_join_later_were_not_measured_before() -> None:
    recorder = Recorder(TENSORS[:1])
    recorder.sample("grad_rms", 1, np.ones(1, np.float32))
    recorder.widen(TENSORS[:3])
    recorder.sample("grad_rms", 2, np.ones(3, np.float32))
    recorder.sample("param_rms", 2, np.ones(3, np.float32))
    trace = recorder.trace({})
    assert trace.tensors == TENSORS[:3]
    assert np.isnan(trace.series["grad_rms"].values).tolist() == [[0, 1, 1], [0, 0, 0]]
    assert trace.series["grad_rms"].bad.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="of 3 tensors"):
        recorder.sample("grad_rms", 3, np.ones(1, np.float32))


def test_a_row_may_be_reused_by_its_owner() -> None:
    recorder, row = Recorder(TENSORS[:1]), np.ones(1, np.float32)
    for step in (1, 2, 3):
        row[0] = step
        recorder.sample("grad_rms", step, row)
    assert recorder.trace({}).series["grad_rms"].values.tolist() == [[1], [2], [3]]
