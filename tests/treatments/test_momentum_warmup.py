"""Momentum that rises: against SGD by hand, and with everything that holds momentum elsewhere."""

from typing import Any

import pytest
import pytorch_optimizer
import schedulefree
import torch
from rated_runs import (
    MAKERS,
    Seen,
    goes_on_untreated,
    leaves_schedules_alone,
    plain,
    pushed,
)
from torch import nn

from optdoctor.treatments import Refused
from optdoctor.treatments.momentum_warmup import MomentumWarmup

WITH_MOMENTUM = {name: make for name, make in MAKERS.items() if name != "Adafactor"}
each_with_momentum = pytest.mark.parametrize("make", WITH_MOMENTUM.values(), ids=WITH_MOMENTUM)


def test_a_momentum_warmup_is_available() -> None:
    """H72: A momentum warmup and cosine/slow warmup scheduler is available."""
    weight, optimizer = plain(1.0, momentum=0.9)
    seen = Seen(optimizer)
    MomentumWarmup(10).apply(optimizer)
    moved = [pushed(weight, optimizer) for _ in range(15)]
    momenta = [0.9 * min(k / 10, 1.0) for k in range(1, 16)]
    assert seen.of("momentum") == pytest.approx(momenta)
    buffer, expected = 0.0, []
    for momentum in momenta:
        buffer = momentum * buffer + 1.0
        expected.append(buffer)
    assert moved == pytest.approx(expected, rel=1e-5)
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_it_may_begin_above_zero() -> None:
    weight, optimizer = plain(1.0, momentum=0.8)
    seen = Seen(optimizer)
    MomentumWarmup(4, low=0.5).apply(optimizer)
    for _ in range(5):
        pushed(weight, optimizer)
    assert seen.of("momentum") == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.8])


def test_of_several_betas_only_the_first_rises() -> None:
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.AdamW([weight], betas=(0.8, 0.99))
    seen = Seen(optimizer)
    MomentumWarmup(4).apply(optimizer)
    for _ in range(5):
        pushed(weight, optimizer)
    assert [betas[0] for betas in seen.of("betas")] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert {betas[1] for betas in seen.of("betas")} == {0.99}
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.99)


@pytest.mark.parametrize(("steps", "beyond"), [(10, 1.53), (20, 1.14), (50, 1.01)])
def test_adam_at_its_very_beginning_steps_further_by_what_the_text_says(
    steps: int, beyond: float
) -> None:
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = torch.optim.Adam([weight], lr=1.0, betas=(0.9, 0.999), eps=0.0)
    MomentumWarmup(steps).apply(optimizer)
    moved = [pushed(weight, optimizer) for _ in range(steps)]
    assert max(moved) == pytest.approx(beyond, abs=0.01)


def test_it_is_above_what_a_cycle_of_the_user_gives_at_no_step() -> None:
    weight, optimizer = plain(1.0, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=30)
    seen = Seen(optimizer)
    MomentumWarmup(10).apply(optimizer)
    own = []
    for _ in range(20):
        own.append(optimizer.param_groups[0]["momentum"])
        pushed(weight, optimizer)
        schedule.step()
    shares = [min(k / 10, 1.0) for k in range(1, 21)]
    expected = [share * momentum for share, momentum in zip(shares, own, strict=True)]
    assert seen.of("momentum") == pytest.approx(expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: torch.optim.SGD(ps, lr=0.1),
        lambda ps: torch.optim.Adafactor(ps),
        lambda ps: torch.optim.Adagrad(ps),
        lambda ps: torch.optim.AdamW(ps, betas=(0.0, 0.99)),
    ],
)
def test_an_optimizer_without_momentum_is_refused(make: Any) -> None:
    with pytest.raises(Refused, match="has none"):
        MomentumWarmup().apply(make([nn.Parameter(torch.zeros(4))]))


@pytest.mark.parametrize(
    "make", [schedulefree.AdamWScheduleFree, pytorch_optimizer.ScheduleFreeSGD]
)
def test_a_momentum_that_is_needed_between_steps_is_refused(make: Any) -> None:
    with pytest.raises(Refused, match="needs it between them too"):
        MomentumWarmup().apply(make([nn.Parameter(torch.zeros(4))], lr=0.1))


@pytest.mark.parametrize("low", [-0.1, 1.0, float("nan")])
def test_a_low_end_that_is_no_share_is_refused(low: float) -> None:
    with pytest.raises(ValueError, match="low must be a share"):
        MomentumWarmup(low=low)


@each_with_momentum
def test_after_undo_the_run_is_bit_identical_to_one_that_goes_on_untreated(make: Any) -> None:
    goes_on_untreated(MomentumWarmup(50), make)


def test_schedules_are_left_alone() -> None:
    leaves_schedules_alone(lambda: MomentumWarmup(20), WITH_MOMENTUM["SGD"])
    leaves_schedules_alone(lambda: MomentumWarmup(20), WITH_MOMENTUM["AdamW"])
