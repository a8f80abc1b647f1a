"""The curve shaper on made-up curves: noise, bends, falls, single bad batches."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from rated_runs import each_optimizer, goes_on_untreated, leaves_schedules_alone, plain, pushed
from torch import nn

from optdoctor.treatments import Refused
from optdoctor.treatments.curve_shaper import CurveShaper


def factors(losses: Any, **options: Any) -> list[float]:
    """The factor after each of these losses."""
    shaper = CurveShaper(**options).apply(plain(1.0)[1])
    found = []
    for loss in losses:
        shaper.observe({"loss": float(loss)})
        found.append(shaper.factor_now())
    return found


def noise(seed: int, number: int) -> Any:
    return np.random.default_rng(seed).normal(size=number)


BEND = np.concatenate([np.full(400, 2.0), np.full(400, 4.0)]) + 0.1 * noise(0, 800)
"""A level, then another one for good."""


def test_the_curve_shaper_lowers_rates_on_sharp_curvature_and_leaves_noise_alone() -> None:
    """H65: CurveShaper (smoothed second difference, bounded multipliers, hysteresis) lowers LR on
    sharp curvature and leaves noise alone."""
    for seed in range(3):
        assert set(factors(2.0 + 0.3 * noise(seed, 4000))) == {1.0}
    bent = factors(BEND)
    assert set(bent[:400]) == {1.0}
    assert min(bent[400:450]) == pytest.approx(0.7)
    assert bent[-1] == 1.0, "the new level is calm"


@pytest.mark.parametrize(
    "losses",
    [
        0.2 * np.random.default_rng(0).standard_t(3, 3000) + 3,
        np.exp(noise(1, 3000)),
        np.full(3000, 2.0),
        np.zeros(3000),
        3 * np.exp(-np.arange(3000) / 100) + 0.5 + 0.05 * noise(2, 3000),
        3 * np.exp(-np.arange(3000) / 100) + 0.5,
        3 * np.exp(-np.arange(3000) / 20) + 0.5 + 0.01 * noise(7, 3000),
        1 - np.arange(3000) / 1000,
        2 + 1e-3 * np.arange(3000) + 0.1 * noise(3, 3000),
    ],
    ids=["heavy", "skew", "level", "zero", "falling", "smooth", "steep", "below zero", "slow rise"],
)
def test_a_curve_without_a_sharp_rise_is_left_alone(losses: Any) -> None:
    assert set(factors(losses)) == {1.0}


def test_one_bad_batch_is_left_alone() -> None:
    losses = 2 + 0.1 * noise(4, 2000)
    losses[[500, 1000, 1500]] = [50.0, 1e6, 1e30]
    assert set(factors(losses)) == {1.0}


def test_a_loss_that_is_not_finite_is_left_out() -> None:
    losses = list(2 + 0.1 * noise(5, 1000))
    with_gaps = [v for loss in losses for v in (loss, math.nan, math.inf)]
    assert set(factors(with_gaps)) == {1.0}
    found = [v for loss in BEND for v in (loss, math.nan)]
    assert factors(found)[1::2] == factors(BEND)


def test_factors_stay_within_their_bounds_while_the_loss_runs_away() -> None:
    losses = 2 * np.exp(np.maximum(0, np.arange(600) - 200) / 20) + 0.05 * noise(6, 600)
    found = factors(losses)
    assert min(found) == 0.5
    assert max(found) == 1.0
    assert min(factors(losses, floor=0.8)) == 0.8


def test_one_change_is_taken_back_after_four_calm_looks_and_not_before() -> None:
    found = factors(BEND)
    down = next(i for i, f in enumerate(found) if f < 1)
    up = next(i for i in range(down, 800) if found[i] == 1)
    assert up - down >= 4 * 16


def test_the_step_uses_the_factor() -> None:
    weight, optimizer = plain(1.0)
    shaper = CurveShaper().apply(optimizer)
    used = set()
    for loss in BEND:
        used.add(round(pushed(weight, optimizer), 3))
        shaper.observe({"loss": float(loss), "eval_loss": 9.0})
        assert optimizer.param_groups[0]["lr"] == 1.0
    assert used == {1.0, 0.7}
    assert len(shaper.notes) == 2
    assert "rates go from 1 to 0.7 of what is set" in shaper.notes[0]
    assert "the loss has been calm" in shaper.notes[1]


def test_it_is_indifferent_to_the_unit_of_the_loss() -> None:
    assert factors(BEND) == factors(BEND * 1e-6) == factors(BEND * 1e6)


def test_a_resumed_one_sees_the_same_bend() -> None:
    whole = factors(BEND)
    first, second = (CurveShaper().apply(plain(1.0)[1]) for _ in range(2))
    for loss in BEND[:405]:
        first.observe({"loss": float(loss)})
    second.load_state_dict(first.state_dict())
    resumed = []
    for loss in BEND[405:]:
        second.observe({"loss": float(loss)})
        resumed.append(second.factor_now())
    assert resumed == whole[405:]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"window": 3}, "window must be at least 4"),
        ({"limit": 0.0}, "limit must be above 0"),
        ({"floor": 1.5}, "floor must be above 0 and at most 1"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        CurveShaper(**options)


def test_an_optimizer_with_a_rate_of_its_own_is_refused() -> None:
    with pytest.raises(Refused, match="curve-shaper multiplies"):
        CurveShaper().apply(torch.optim.Rprop([nn.Parameter(torch.zeros(4))]))


@each_optimizer
def test_after_undo_the_run_is_bit_identical_to_one_that_goes_on_untreated(make: Any) -> None:
    shaper = CurveShaper(window=4)

    def feed(number: int) -> None:
        shaper.observe({"loss": 1.0 if number < 20 else 5.0})

    goes_on_untreated(shaper, make, feed)
    assert len(shaper.notes) >= 2


def test_schedules_are_left_alone() -> None:
    leaves_schedules_alone(
        lambda: CurveShaper(window=4),
        torch.optim.AdamW,
        lambda treatment, number: treatment.observe({"loss": 1.0 + 9 * (number > 15)}),
    )
