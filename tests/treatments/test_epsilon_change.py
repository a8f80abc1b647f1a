"""Epsilon change: one for every step, the user's between them."""

import math

import bitsandbytes
import pytest
import torch
from halves import network
from halves import train as train_halves
from torch import nn
from treated import MAKERS, check_undo, odd_gradients, small, train

from optdoctor.treatments import Refused
from optdoctor.treatments.epsilon_change import EpsilonChange


def test_steps_are_those_of_an_optimizer_with_that_epsilon() -> None:
    first, second = small(), small()
    one = torch.optim.AdamW(first.parameters(), lr=1e-2)
    two = torch.optim.AdamW(second.parameters(), lr=1e-2, eps=1e-3)
    treatment = EpsilonChange(1e-3).apply(one)
    train(first, one, range(20))
    train(second, two, range(20))
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert one.param_groups[0]["eps"] == 1e-8
    assert list(treatment.notes) == ["epsilon-change: eps 1e-08 -> 0.001 in every step"]


def test_a_run_in_float16_lives_with_an_epsilon_that_float16_holds() -> None:
    last = {}
    for eps in (None, 1e-4):
        model = network(torch.float16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if eps is not None:
            EpsilonChange(eps).apply(optimizer)
        last[eps] = train_halves(model, optimizer, range(30))[-1]
    assert math.isnan(last[None])
    assert math.isfinite(last[1e-4])


def test_an_epsilon_that_is_zero_in_the_dtype_of_the_step_is_refused() -> None:
    for dtype, refused in (
        (torch.float16, True),
        (torch.bfloat16, False),
        (torch.float32, False),
    ):
        optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(2, dtype=dtype))], eps=1e-6)
        if not refused:
            EpsilonChange(1e-8).apply(optimizer)
            continue
        with pytest.raises(Refused, match="1e-08 is 0 in float16"):
            EpsilonChange(1e-8).apply(optimizer)
        fused = torch.optim.AdamW([nn.Parameter(torch.zeros(2, dtype=dtype))], fused=True, eps=1e-6)
        EpsilonChange(1e-8).apply(fused)


def test_optimizers_without_one_epsilon_are_refused() -> None:
    for name in ("SGD", "sign", "Adafactor"):
        with pytest.raises(Refused, match="the one eps"):
            EpsilonChange().apply(MAKERS[name](small().parameters()))
    unused = bitsandbytes.optim.Lion(small().parameters())
    assert "eps" in unused.param_groups[0]
    with pytest.raises(Refused, match="the one eps"):
        EpsilonChange().apply(unused)


def test_the_epsilon_that_is_there_already_is_refused() -> None:
    with pytest.raises(Refused, match="already"):
        EpsilonChange(1e-8).apply(MAKERS["AdamW"](small().parameters()))


@pytest.mark.parametrize("name", ["AdamW", "fused AdamW"])
def test_undone_a_run_goes_on_untreated(name: str) -> None:
    check_undo(MAKERS[name], EpsilonChange(1e-3))


def test_groups_of_their_own_and_those_without_tensors_get_it_too() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [
        {"params": weights[:1], "eps": 1e-6},
        {"params": weights[1:], "eps": torch.tensor(1e-5)},
        {"params": []},
    ]
    seen = []

    class Looks(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            seen.extend(float(group["eps"]) for group in self.param_groups)

    optimizer = Looks(groups[:2], lr=0.1)
    optimizer.add_param_group({**groups[2], "eps": 1e-8})
    treatment = EpsilonChange(0.5).apply(optimizer)
    optimizer.step()
    assert seen == [0.5] * 3
    assert [float(g["eps"]) for g in optimizer.param_groups] == pytest.approx([1e-6, 1e-5, 1e-8])
    assert "1e-08, 1e-06, 1e-05 -> 0.5" in treatment.notes[0]


def test_tensors_of_every_kind_pass() -> None:
    optimizer, _ = odd_gradients(lambda ps: torch.optim.AdamW(ps, foreach=False))
    treatment = EpsilonChange().apply(optimizer)
    optimizer.step()
    assert treatment.applied


def test_numbers_are_checked() -> None:
    with pytest.raises(ValueError, match="eps"):
        EpsilonChange(0.0)
