"""Compensated weights: weight and remainder together follow the float32 weights."""

import pytest
import torch
from halves import network, step
from torch import nn

from optdoctor.treatments.kahan_compensation import KahanCompensation


def test_weight_and_remainder_follow_float32_within_their_16_bits() -> None:
    half, wide = network(torch.bfloat16), network(torch.bfloat16).float()
    optimizer = torch.optim.AdamW(half.parameters(), lr=1e-4)
    twin = torch.optim.AdamW(wide.parameters(), lr=1e-4)
    treatment = KahanCompensation().apply(optimizer)
    for number in range(40):
        step(half, optimizer, number)
        for p, q in zip(half.parameters(), wide.parameters(), strict=True):
            q.grad = p.grad.float()
        twin.step()
    rests = treatment.state_dict()["remainders"]
    for place, (p, q) in enumerate(zip(half.parameters(), wide.parameters(), strict=True)):
        both = p.detach().double() + rests[str(place)].double()
        alone = (p.detach().double() - q.double()).abs().max()
        error = (both - q.double()).abs().max()
        assert error < 40 * 2.0**-17 * float(q.detach().abs().max())
        assert error < alone / 4


def test_remainders_are_of_bfloat16_and_at_most_half_a_place() -> None:
    model = network(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    treatment = KahanCompensation().apply(optimizer)
    for number in range(5):
        step(model, optimizer, number)
    rests = treatment.state_dict()["remainders"]
    assert len(rests) == 4
    for place, p in enumerate(model.parameters()):
        rest = rests[str(place)]
        assert rest.dtype == torch.bfloat16
        assert (rest.float().abs() <= p.float().abs() * 2.0**-8).all()
        assert rest.any()


def test_the_remainder_of_a_weight_that_was_set_to_zero_is_dropped() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    treatment = KahanCompensation().apply(optimizer)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert treatment.state_dict()["remainders"]["0"].tolist() == pytest.approx(
        [-1e-3] * 3, rel=0.01
    )
    with torch.no_grad():
        weight.zero_()
    weight.grad.zero_()
    optimizer.step()
    assert weight.detach().tolist() == [0.0] * 3


def test_infinity_leaves_no_remainder_of_nan() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    treatment = KahanCompensation().apply(optimizer)
    weight.grad = torch.tensor([torch.inf, 1.0], dtype=torch.bfloat16)
    optimizer.step()
    assert weight.detach().tolist() == [-torch.inf, 0.0]
    assert treatment.state_dict()["remainders"]["0"].tolist() == [0.0, 0.0]
