"""The step guard under scalers, with gradients of every kind, and when it has said enough."""

import math

import pytest
import torch
from torch import nn
from treated import MAKERS, Make, check_undo, odd_gradients, small, step

from optdoctor.treatments import Refused
from optdoctor.treatments.left_out import MARK
from optdoctor.treatments.step_guard import StepGuard


def test_a_fused_step_that_a_scaler_leaves_out_is_not_told_as_the_guards() -> None:
    model = small()
    optimizer = MAKERS["fused AdamW"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    guard = StepGuard().apply(optimizer)
    for number in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum() * (torch.inf if number == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0
    assert not guard.notes
    assert torch.isfinite(model[0].weight).all()


def test_numbers_whose_squares_are_infinite_are_no_reason() -> None:
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1e-30)
    guard = StepGuard().apply(optimizer)
    weight.grad = torch.full((3,), 1e30)
    optimizer.step()
    assert not guard.notes
    assert weight.detach().tolist() == pytest.approx([-1.0] * 3)


@pytest.mark.parametrize("place", range(6))
def test_a_nan_in_a_gradient_of_any_kind_is_seen(place: int) -> None:
    optimizer, weights = odd_gradients(lambda ps: torch.optim.SGD(ps, lr=0.1))
    guard = StepGuard().apply(optimizer)
    optimizer.step()
    assert not guard.notes
    if not weights[place].numel():
        return
    weights[place].grad.view(-1)[0] = math.nan
    before = [w.detach().clone() for w in weights]
    optimizer.step()
    assert list(guard.notes) == [
        f"step-guard left out a step: the gradient of parameter {place} is not finite"
    ]
    assert all(map(torch.equal, before, weights))
    assert not hasattr(optimizer, MARK)


def test_beyond_its_patience_it_counts_and_says_nothing() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    guard = StepGuard(patience=3).apply(optimizer)
    weight.grad = torch.tensor([math.nan])
    for _ in range(10):
        optimizer.step()
    assert len(guard.notes) == 4
    assert guard.state_dict() == {"total": 10, "in_a_row": 10}
    weight.grad = torch.ones(1)
    optimizer.step()
    weight.grad = torch.tensor([math.nan])
    optimizer.step()
    assert len(guard.notes) == 5
    assert weight.item() == -1.0


def test_a_step_that_takes_its_own_gradients_is_refused() -> None:
    with pytest.raises(Refused, match="LBFGS takes them within it"):
        StepGuard().apply(torch.optim.LBFGS(small().parameters()))


def test_where_gradients_add_up_the_step_of_them_all_is_left_out() -> None:
    model = small()
    optimizer = MAKERS["SGD"](model.parameters())
    guard = StepGuard().apply(optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    for number in range(4):
        loss = model(torch.ones(2, 4)).sum() * (math.nan if number == 1 else 1.0)
        loss.backward()
    optimizer.step()
    assert len(guard.notes) == 1
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_undone_it_is_as_if_it_had_never_been_from_there(make: Make) -> None:
    assert check_undo(make, StepGuard()) == []


def test_it_never_acts_on_a_sound_run() -> None:
    model = small()
    optimizer = MAKERS["AdamW"](model.parameters())
    guard = StepGuard().apply(optimizer)
    for number in range(20):
        step(model, optimizer, number)
    assert not guard.notes
