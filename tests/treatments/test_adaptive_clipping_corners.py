"""Adaptive clipping where gradients are of odd kinds, jump for good, or are not the step's."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn
from treated import (
    MAKERS,
    Fed,
    Make,
    check_true_units,
    check_undo,
    odd_gradients,
    same,
    small,
    step,
    train,
)

from optdoctor.treatments import Refused
from optdoctor.treatments.adaptive_clipping import AdaptiveClipping


def test_a_gradient_that_is_not_finite_passes_as_it_is() -> None:
    fed = Fed(AdaptiveClipping(memory=2), (2,))
    for _ in range(3):
        fed.used(1.0)
    gradient = torch.tensor([math.inf, 1.0])
    fed.weights[0].grad = gradient.clone()
    fed.optimizer.step()
    assert torch.equal(fed.weights[0].grad, gradient), "clip_grad_norm_ makes [nan, 0] of it"


def test_gradients_of_every_kind_are_clipped_or_left_alone() -> None:
    optimizer, weights = odd_gradients(lambda ps: torch.optim.SGD(ps, lr=0.1))
    clip = AdaptiveClipping(memory=2).apply(optimizer)
    for scale in (1.0, 1.0, 1.0, 100.0):
        for weight in weights[:-2]:
            weight.grad = torch.full_like(weight, 0.5 * scale)
        optimizer.step()
    assert weights[2].grad[0].item() == pytest.approx(0.75, rel=1e-3)
    assert weights[3].grad[0].item() == pytest.approx(0.75, rel=1e-3)
    assert clip.applied
    clip.undo()
    assert clip.notes[-1] == "adaptive-clipping clipped 1 steps"


def test_a_sparse_gradient_stays_sparse_and_is_clipped() -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
    clip = AdaptiveClipping(memory=2).apply(optimizer)
    for scale in (1.0, 1.0, 1.0, 100.0):
        optimizer.zero_grad()
        (embedding(torch.tensor([1, 1, 2])).sum() * scale).backward()
        optimizer.step()
    assert embedding.weight.grad.is_sparse
    usual = math.sqrt(4 * (4 + 1))
    assert embedding.weight.grad.coalesce().values().norm().item() == pytest.approx(1.5 * usual)
    assert clip.applied


def test_a_jump_for_good_is_followed_however_far() -> None:
    fed = Fed(AdaptiveClipping(memory=5))
    for _ in range(10):
        fed.used(1.0)
    used = [fed.used(1000.0)[0] for _ in range(120)]
    assert used[4] == pytest.approx(1.5)
    assert used[-1] == pytest.approx(1000.0)


def test_a_resumed_run_clips_as_one_that_never_stopped() -> None:
    model, other = small(), small()
    optimizer, resumed = (MAKERS["SGD"](m.parameters()) for m in (model, other))
    clip = AdaptiveClipping(1.1, memory=5).apply(optimizer)
    train(model, optimizer, range(20))
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again = AdaptiveClipping(1.1, memory=5).apply(resumed)
    again.load_state_dict(clip.state_dict())
    train(model, optimizer, range(20, 40))
    train(other, resumed, range(20, 40))
    assert same(model, optimizer, other, resumed)
    assert clip.state_dict() == again.state_dict()


def test_a_step_that_takes_its_own_gradients_is_refused() -> None:
    optimizer = torch.optim.LBFGS(small().parameters())
    with pytest.raises(Refused, match="LBFGS takes them within it"):
        AdaptiveClipping().apply(optimizer)


def test_it_learns_nothing_from_a_step_that_a_scaler_leaves_out() -> None:
    model = small()
    optimizer = MAKERS["fused AdamW"](model.parameters())
    clip = AdaptiveClipping(memory=2).apply(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    states = []
    for number in range(4):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum() * (torch.inf if number == 2 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        states.append(clip.state_dict())
    assert states[2] == states[1]
    assert states[3] != states[2]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_undone_it_is_as_if_it_had_never_been_from_there(make: Make) -> None:
    notes = check_undo(make, AdaptiveClipping(1.2, memory=5))
    assert int(notes[-1].split()[-2]) > 2


def test_unclipped_steps_are_those_of_an_untreated_run_to_the_bit() -> None:
    model, other = small(), small()
    optimizer, plain = (MAKERS["AdamW"](m.parameters()) for m in (model, other))
    clip: Any = AdaptiveClipping(1e6, memory=2).apply(optimizer)
    for number in range(15):
        step(model, optimizer, number)
        step(other, plain, number)
    assert same(model, optimizer, other, plain)
    clip.undo()


def test_under_a_scale_that_grows_it_clips_in_true_units() -> None:
    notes = check_true_units(*(AdaptiveClipping(1.2, memory=4) for _ in range(2)))
    assert notes[0] == notes[1]
    assert "clipped 0" not in notes[0]
