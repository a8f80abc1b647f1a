"""The warm-ups in the shape of a cosine, number by number."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from rated_runs import (
    each_optimizer,
    goes_on_untreated,
    leaves_schedules_alone,
    plain,
    pushed,
)
from torch import nn

from optdoctor.treatments import Refused
from optdoctor.treatments.slow_warmup import SlowWarmup


def moved(number: int, **options: Any) -> list[float]:
    """What gradients of 1 move under a rate of 1."""
    weight, optimizer = plain(1.0)
    SlowWarmup(**options).apply(optimizer)
    return [pushed(weight, optimizer) for _ in range(number)]


def test_a_cosine_and_slow_warmup_is_available() -> None:
    """H72: A momentum warmup and cosine/slow warmup scheduler is available."""
    cosine = moved(25, steps=20)
    expected = [0.5 - 0.5 * math.cos(math.pi * k / 20) for k in range(1, 21)] + [1.0] * 5
    assert cosine == pytest.approx(expected, abs=1e-6)
    assert cosine[9] == pytest.approx(0.5, abs=1e-6)


def test_the_slow_form_rises_to_a_tenth_in_its_first_tenth() -> None:
    slow = moved(120, steps=100, shape="slow")
    assert slow[9] == pytest.approx(0.1, abs=1e-5)
    assert slow[4] == pytest.approx(0.05, abs=1e-5)
    assert slow[0] == pytest.approx(0.1 * (1 - math.cos(math.pi / 10)) / 2, abs=1e-5)
    assert slow[54] == pytest.approx(0.55, abs=1e-5)
    assert slow[99:] == pytest.approx([1.0] * 21, abs=1e-5)
    assert all(a <= b + 1e-5 for a, b in pairwise(slow))


def test_the_slow_form_is_below_a_straight_line_up_to_its_middle() -> None:
    slow = moved(99, steps=100, shape="slow")
    line = [k / 100 for k in range(1, 100)]
    assert all(a < b + 1e-5 for a, b in zip(slow[10:54], line[10:54], strict=True))
    assert all(a > b - 1e-5 for a, b in zip(slow[55:], line[55:], strict=True))


@pytest.mark.parametrize(
    ("facts", "steps"), [({"total_steps": 500}, 50), ({"total_steps": 3}, 1), ({}, 2000)]
)
def test_its_length_is_a_tenth_of_the_run_where_that_is_known(facts: Any, steps: int) -> None:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(4))])
    warmup = SlowWarmup().apply(optimizer, facts=facts)
    assert warmup.state_dict()["total"] == steps


@pytest.mark.parametrize(
    ("options", "why"),
    [({"steps": 0}, "steps must be at least 1"), ({"shape": "line"}, "shape must be 'cosine'")],
)
def test_arguments_that_cannot_be_meant_are_refused(options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SlowWarmup(**options)


def test_an_optimizer_with_a_rate_of_its_own_is_refused() -> None:
    with pytest.raises(Refused, match="slow-warmup multiplies"):
        SlowWarmup().apply(torch.optim.Rprop([nn.Parameter(torch.zeros(4))]))


@each_optimizer
@pytest.mark.parametrize("shape", ["cosine", "slow"])
def test_after_undo_the_run_is_bit_identical_to_one_that_goes_on_untreated(
    make: Any, shape: Any
) -> None:
    goes_on_untreated(SlowWarmup(60, shape=shape), make)


def test_schedules_are_left_alone() -> None:
    leaves_schedules_alone(lambda: SlowWarmup(20), torch.optim.AdamW)
