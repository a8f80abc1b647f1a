"""The variance ratio of gradient norms against numpy, of any run of norms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_training import net, quiet, rows, train
from torch import nn
from torch.optim import AdamW

from optdoctor.live.variance import WINDOW, GradVarianceRatio

norms = st.lists(
    st.floats(1e-12, 1e12) | st.sampled_from([0.0, math.nan, math.inf]), min_size=60, max_size=250
)


@given(norms)
def test_the_ratio_is_numpys_of_the_last_finite_norms(several: list[float]) -> None:
    ratio, known = GradVarianceRatio(), list[float]()
    for norm in several:
        told = ratio(norm)
        if not math.isfinite(norm):
            assert told is None
            continue
        known.append(norm)
        last = np.array(known[-WINDOW:])
        if len(last) < WINDOW or not last.any():
            assert told is None
            continue
        # What was subtracted may have been far larger than what is left.
        slack = 1e-9 * (np.max(known[-3 * WINDOW :]) / last.mean()) ** 2
        assert told == pytest.approx(last.var() / last.mean() ** 2, rel=1e-9, abs=slack)


def test_norms_far_smaller_than_those_before_are_not_lost_in_their_rounding() -> None:
    ratio = GradVarianceRatio()
    for norm in [6e11, 8e11, *[1e-12] * 110]:
        told = ratio(norm)
    assert told == pytest.approx(0.0, abs=1e-9)


def test_a_clipped_run_has_it_of_norms_before_the_clip_and_knows_its_pace() -> None:
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    doctor = quiet(model, optimizer)
    real = optimizer.step

    def step() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        real()

    optimizer.step = step  # type: ignore[method-assign]
    train(model, optimizer, 60, doctor)
    doctor.close()
    before = rows(doctor, "grad_norm")
    told = rows(doctor, "grad_variance_ratio")
    assert list(told) == list(range(WINDOW, 61))
    last = np.array([before[i] for i in range(11, 61)])
    assert told[60] == pytest.approx(last.var() / last.mean() ** 2, rel=1e-9)
    pace = rows(doctor, "step_time_s")
    assert list(pace) == list(range(2, 61))
    assert all(0 < seconds < 60 for seconds in pace.values())
