"""Stochastic rounding: lost updates of bfloat16 weights survive on average."""

import copy

import pytest
import torch
from halves import MAKERS, Make, check_undo_of_halves, network, train
from torch import nn
from treated import same, tensors

from optdoctor.treatments import Intervention, Refused
from optdoctor.treatments.float32_state import Float32State
from optdoctor.treatments.kahan_compensation import KahanCompensation
from optdoctor.treatments.stochastic_rounding import StochasticRounding, rounded


def walked(treatment: Intervention | None, steps: int = 200) -> float:
    """How far weights of 1 went down in steps of 1e-4; 0.02 where nothing is lost."""
    weight = nn.Parameter(torch.ones(2000, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([weight], lr=1e-4, weight_decay=0.0)
    if treatment is not None:
        treatment.apply(optimizer)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return 1 - float(weight.detach().double().mean())


def test_updates_that_nearest_rounding_loses_arrive_on_average() -> None:
    assert walked(None) == 0
    assert walked(StochasticRounding()) == pytest.approx(0.02, rel=0.03)


def test_compensated_and_with_float32_weights_they_arrive_everywhere() -> None:
    assert walked(KahanCompensation()) == pytest.approx(0.02, abs=2**-9)
    assert walked(Float32State()) == pytest.approx(0.02, abs=2**-9)


def test_rounding_is_up_or_down_with_the_chance_of_the_distance() -> None:
    gap = 2.0**-7
    numbers = torch.full((20000,), 1 + 0.25 * gap)
    found = rounded(numbers, torch.Generator().manual_seed(1))
    up = found.eq(1 + gap)
    assert (up | found.eq(1.0)).all()
    assert float(up.float().mean()) == pytest.approx(0.25, abs=0.015)
    assert rounded(-numbers, torch.Generator().manual_seed(1)).eq(-found).all()


def test_what_bfloat16_holds_and_what_is_not_finite_stays() -> None:
    held = torch.tensor([0.0, -0.0, 1.0, -3.5, 1e-38, torch.inf, -torch.inf, torch.nan])
    held = held.bfloat16().float()
    found = rounded(held, torch.Generator().manual_seed(0))
    assert torch.equal(found.nan_to_num(7.0), held.nan_to_num(7.0))
    assert torch.equal(found, found.bfloat16().float()) or found.isnan().any()


def test_each_step_lies_between_the_neighbours_of_the_float32_step() -> None:
    half, wide = network(torch.bfloat16), network(torch.bfloat16).float()
    optimizer = torch.optim.SGD(half.parameters(), lr=0.05)
    StochasticRounding().apply(optimizer)
    train(half, optimizer, range(1))
    for p, q in zip(half.parameters(), wide.parameters(), strict=True):
        exact = q.detach() - 0.05 * p.grad.float()
        assert ((p.float() - exact).abs() <= exact.abs() * 2**-7).all()


def test_random_numbers_are_the_same_in_every_process_and_nobody_elses() -> None:
    ends = []
    for elsewhere in (0, 5):
        torch.manual_seed(elsewhere)
        before = torch.get_rng_state()
        weight = nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
        optimizer = torch.optim.SGD([weight], lr=1e-3)
        StochasticRounding(seed=3).apply(optimizer)
        for _ in range(5):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        assert torch.equal(before, torch.get_rng_state())
        ends.append(weight.detach())
    assert torch.equal(*ends)
    assert len(set(ends[0].tolist())) > 1


@pytest.mark.parametrize("kind", [StochasticRounding, KahanCompensation])
def test_a_resumed_run_goes_on_to_the_bit(kind: type[Intervention]) -> None:
    model = network(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    treatment = kind().apply(optimizer)
    train(model, optimizer, range(10))
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict(), treatment.state_dict()))
    train(model, optimizer, range(10, 15))
    other = network(torch.bfloat16, seed=1)
    second = torch.optim.AdamW(other.parameters(), lr=1e-3)
    again = kind().apply(second)
    for one, state in zip((other, second, again), kept, strict=True):
        one.load_state_dict(state)
    train(other, second, range(10, 15))
    assert same(model, optimizer, other, second)
    assert {t.dtype for t in tensors(second)} == {torch.float32}


@pytest.mark.parametrize("kind", [StochasticRounding, KahanCompensation])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_undone_a_run_in_bfloat16_goes_on_untreated(make: Make, kind: type[Intervention]) -> None:
    check_undo_of_halves(make, kind(), torch.bfloat16)


@pytest.mark.parametrize("kind", [StochasticRounding, KahanCompensation])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_it_is_refused_where_no_weight_is_in_bfloat16(
    kind: type[Intervention], dtype: torch.dtype
) -> None:
    optimizer = torch.optim.SGD(network(dtype).parameters(), lr=0.1)
    with pytest.raises(Refused, match="no weight is"):
        kind().apply(optimizer)


def test_seeds_are_checked() -> None:
    with pytest.raises(ValueError, match="seed"):
        StochasticRounding(seed=-1)
