"""Weights that stand still, weighed by their number."""

import math

import numpy as np
import pytest

from optdoctor.curves.stillness import mean_of_weights, share_still, stands_still, travel
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

TENSORS = small_gpt()
SIZES = np.array([tensor.num_elements for tensor in TENSORS], np.float64)


def beside(channel: str, rows: np.ndarray) -> Trace:
    return make_trace({channel: rows, "loss": np.ones(len(rows))}, tensors=TENSORS)


def test_a_share_is_one_of_weights_and_not_of_tensors() -> None:
    rows = np.zeros((4, SIZES.size))
    rows[:, 0] = 1.0
    rows[2, 1] = np.nan  # not measured: neither still nor moving
    _, share = share_still(beside("update_unchanged", rows), "update_unchanged")
    whole = SIZES[0] / SIZES.sum()
    without = SIZES[0] / (SIZES.sum() - SIZES[1])
    assert share == pytest.approx([whole, whole, without, whole])
    assert np.isnan(mean_of_weights(np.full((1, SIZES.size), np.nan), beside("loss", rows)))[0]


def test_weights_stand_still_only_up_to_the_last_sample_and_from_early_on() -> None:
    rows = np.full((10, SIZES.size), 0.9)
    assert stands_still(beside("update_unchanged", rows), 0.7, 5) is not None
    rows[3] = 0.1
    found = stands_still(beside("update_unchanged", rows), 0.7, 5)
    assert found is not None
    assert found.first == 5
    assert stands_still(beside("update_unchanged", rows), 0.7, 4) is None
    rows[9] = 0.1
    assert stands_still(beside("update_unchanged", rows), 0.7, 10) is None


@pytest.mark.parametrize(("ratio", "said"), [(0.0, "no update at all"), (1e-9, "float32")])
def test_no_update_is_told_apart_from_one_that_float32_loses(ratio: float, said: str) -> None:
    found = stands_still(beside("update_ratio", np.full((10, SIZES.size), ratio)), 0.7, 5)
    assert found is not None
    assert said in found.said


def test_travel_is_the_sum_of_the_updates() -> None:
    rows = np.full((101, SIZES.size), 1e-4)
    assert travel(beside("update_ratio", rows), 51, 101) == pytest.approx(50e-4)
    assert travel(beside("update_unchanged", rows), 51, 101) == math.inf
