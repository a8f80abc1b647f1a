"""The rate that follows the first moment, against plain numbers."""

import math
from typing import Any

import pytest
import torch
from rated_runs import MAKERS, Seen, goes_on_untreated, leaves_schedules_alone, plain, pushed
from torch import nn

from optdoctor.treatments import Refused
from optdoctor.treatments.momentum_aware_rate import MomentumAwareRate, moment_size

WITH_MOMENT = {name: make for name, make in MAKERS.items() if name != "Adafactor"}
each_with_moment = pytest.mark.parametrize("make", WITH_MOMENT.values(), ids=WITH_MOMENT)


def slow_twin(sizes: list[float], decay: float, floor: float, memory: int) -> list[float]:
    """What the docstring says: the factor after each of these sizes of the moment."""
    past: list[float] = []
    mean, found = 0.0, []
    for size in sizes:
        factor = 1.0
        if len(past) >= memory:
            factor = max(floor, decay ** max(size / math.exp(mean) - 1, 0))
        past.append(size)
        mean += (math.log(size) - mean) / min(len(past), memory)
        found.append(factor)
    return found


def run(pushes: list[float], **options: Any) -> tuple[list[float], list[float], MomentumAwareRate]:
    """The rate of each step, and the size of the moment after it."""
    weight, optimizer = plain(0.5, momentum=0.8)
    seen = Seen(optimizer)
    rate = MomentumAwareRate(every=1, **options).apply(optimizer)
    sizes, buffer = [], None
    for push in pushes:
        pushed(weight, optimizer, push)
        buffer = push if buffer is None else 0.8 * buffer + push
        sizes.append(abs(buffer))
    return seen.of("lr"), sizes, rate


def test_a_corrected_optimizer_aware_scheduler_never_exceeds_base_lr_or_goes_below_a_floor() -> (
    None
):
    """H66: An optimizer-aware scheduler exists in a corrected form and never exceeds base_lr or
    goes below a floor."""
    generator = torch.Generator().manual_seed(0)
    pushes = torch.randn(400, generator=generator, dtype=torch.float64).exp().tolist()
    pushes[200:210] = [1e4] * 10
    pushes[300:310] = [1e-6] * 10
    rates, sizes, _ = run(pushes, memory=20)
    expected = [0.5 * f for f in [1.0, *slow_twin(sizes, 0.9, 0.5, 20)]][:-1]
    assert rates == pytest.approx(expected, rel=1e-5)
    assert min(rates) == 0.25
    assert max(rates) == 0.5
    assert len(set(rates)) > 50


def test_a_larger_moment_gives_a_smaller_rate() -> None:
    found = []
    for last in (1.0, 2.0, 3.0, 5.0, 9.0):
        rates, _, _ = run([1.0] * 100 + [last, 1.0], memory=20)
        found.append(rates[-1])
    assert found == sorted(found, reverse=True)
    assert found[0] == pytest.approx(0.5, rel=1e-3), "it is not quite level yet"
    assert found[-1] < 0.45


def test_twice_the_usual_moment_gives_the_decay() -> None:
    rates, sizes, _ = run([1.0] * 200 + [6.0, 1.0], memory=20)
    assert sizes[-2] == pytest.approx(2 * sizes[-3])
    assert rates[-1] == pytest.approx(0.5 * 0.9, rel=1e-5)


def test_the_number_of_weights_does_not_matter() -> None:
    found = []
    for number in (4, 4000):
        weight = nn.Parameter(torch.zeros(number))
        optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
        weight.grad = torch.full((number,), 3.0)
        optimizer.step()
        found.append(float(moment_size(optimizer)))
    assert found == pytest.approx([3.0, 3.0])


def test_nothing_is_done_until_the_usual_size_is_known() -> None:
    rates, _, _ = run([10.0**k for k in range(20)], memory=20)
    assert set(rates) == {0.5}


def test_the_lowest_factors_are_told() -> None:
    _, _, rate = run([1.0] * 100 + [100.0] + [1.0] * 50, memory=20)
    assert len(rate.notes) == 1
    assert "rates go to 0.5 of what is set" in rate.notes[0]


def test_it_looks_only_every_so_many_steps() -> None:
    weight, optimizer = plain(1.0, momentum=0.5)
    seen = Seen(optimizer)
    MomentumAwareRate(every=5, memory=2).apply(optimizer)
    for number in range(20):
        pushed(weight, optimizer, 1.0 if number < 12 else 20.0)
    assert set(seen.of("lr")[:15]) == {1.0}
    assert set(seen.of("lr")[15:]) == {0.5}


def test_moments_of_other_kinds_are_measured_too() -> None:
    weights = [
        nn.Parameter(torch.zeros(5000, dtype=torch.bfloat16)),
        nn.Parameter(torch.zeros((), dtype=torch.complex64)),
    ]
    optimizer = torch.optim.SGD(weights, lr=1.0, momentum=0.9)
    assert moment_size(optimizer) is None
    weights[0].grad = torch.full_like(weights[0], 3.0)
    optimizer.step()
    assert float(moment_size(optimizer)) == pytest.approx(3.0)
    weights[1].grad = torch.full_like(weights[1], 3 + 4j)
    optimizer.zero_grad()
    weights[1].grad = torch.full((), 3 + 4j, dtype=torch.complex64)
    optimizer.step()
    assert math.isfinite(float(moment_size(optimizer)))


def test_a_moment_in_8_bits_is_decoded() -> None:
    import bitsandbytes

    weight = nn.Parameter(torch.zeros(8192))
    optimizer = bitsandbytes.optim.Lion8bit([weight], lr=1e-3)
    weight.grad = torch.full_like(weight, 2.0)
    optimizer.step()
    assert float(moment_size(optimizer)) == pytest.approx(0.02, rel=0.05)


def test_a_moment_that_is_not_finite_leaves_the_rate_alone() -> None:
    weight, optimizer = plain(1.0, momentum=0.9)
    rate = MomentumAwareRate(every=1, memory=2).apply(optimizer)
    for push in (1.0, 1.0, 1.0, math.nan, 1.0):
        pushed(weight, optimizer, push)
    assert rate.factor_now() == 1.0
    assert rate.applied


def test_a_resumed_one_goes_on_where_it_was() -> None:
    _, _, first = run([1.0] * 40 + [9.0], memory=20)
    second = MomentumAwareRate(every=1, memory=20).apply(plain(0.5, momentum=0.8)[1])
    second.load_state_dict(first.state_dict())
    assert second.factor_now() == first.factor_now() < 1
    assert second.state_dict() == first.state_dict()


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: torch.optim.SGD(ps, lr=0.1),
        lambda ps: torch.optim.Adafactor(ps),
        lambda ps: torch.optim.RMSprop(ps),
        lambda ps: torch.optim.Adagrad(ps),
    ],
)
def test_an_optimizer_without_a_first_moment_is_refused(make: Any) -> None:
    with pytest.raises(Refused, match="keeps none here"):
        MomentumAwareRate().apply(make([nn.Parameter(torch.zeros(4))]))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"decay": 1.0}, "decay must be between 0 and 1"),
        ({"floor": 0.0}, "floor must be between 0 and 1"),
        ({"memory": 1}, "memory must be at least 2"),
        ({"every": 0}, "every must be at least 1"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        MomentumAwareRate(**options)


@each_with_moment
def test_after_undo_the_run_is_bit_identical_to_one_that_goes_on_untreated(make: Any) -> None:
    goes_on_untreated(MomentumAwareRate(memory=2, every=1), make)


def test_schedules_are_left_alone() -> None:
    leaves_schedules_alone(lambda: MomentumAwareRate(memory=2, every=1), torch.optim.AdamW)
