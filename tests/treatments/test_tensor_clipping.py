"""Tensor clipping: each tensor as adaptive clipping does it with that tensor alone."""

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
    train,
)

from optdoctor.treatments import Refused
from optdoctor.treatments.adaptive_clipping import AdaptiveClipping
from optdoctor.treatments.tensor_clipping import TensorClipping

SHAPES = ((4,), (), (2, 3))


def test_each_tensor_is_clipped_as_if_it_were_alone() -> None:
    together = Fed(TensorClipping(1.5, memory=10), *SHAPES)
    alone = [Fed(AdaptiveClipping(1.5, memory=10), shape) for shape in SHAPES]
    torch.manual_seed(0)
    rows = torch.randn(150, 3).exp()
    rows[40, 0], rows[50, 1], rows[60, 2], rows[70, 2] = 1e6, math.inf, math.nan, 0.0
    clipped = 0
    for row in rows.tolist():
        used = together.used(*row)
        expected = [one.used(norm)[0] for one, norm in zip(alone, row, strict=True)]
        assert used == pytest.approx(expected, rel=1e-4, nan_ok=True)
        clipped += sum(
            math.isfinite(n) and u < n * (1 - 1e-4) for n, u in zip(row, used, strict=True)
        )
    together.treatment.undo()
    told = together.treatment.notes[-1]
    assert told.startswith(f"tensor-clipping clipped {clipped} gradients of single tensors: param")


def test_a_spike_of_one_tensor_leaves_every_bit_of_the_others() -> None:
    fed = Fed(TensorClipping(memory=3), *SHAPES)
    for _ in range(6):
        fed.used(1.0, 1.0, 1.0)
    used = fed.used(50.0, 1.3, 1.9)
    assert used == pytest.approx([2.0, 1.3, 1.9])
    assert torch.equal(fed.weights[2].grad, torch.full((2, 3), 1.9 / 6**0.5))


def test_a_tensor_without_a_gradient_keeps_its_place_and_its_mean() -> None:
    fed = Fed(TensorClipping(memory=3), *SHAPES)
    for _ in range(4):
        fed.used(1.0, 10.0, 100.0)
    assert fed.used(None, 1000.0, None) == pytest.approx([20.0])
    assert fed.used(1000.0, None, None) == pytest.approx([2.0])
    assert fed.used(None, None, None) == []
    assert fed.used(1000.0, 1000.0, 1000.0) == pytest.approx([2.0, 20.0, 200.0])


def test_gradients_of_every_kind_are_clipped_each_alone() -> None:
    optimizer, weights = odd_gradients(lambda ps: torch.optim.SGD(ps, lr=0.1))
    clip = TensorClipping(memory=2).apply(optimizer)
    for scale in (1.0, 1.0, 1.0, 100.0):
        for weight in weights[:-2]:
            weight.grad = torch.full_like(weight, 0.5 * scale)
        optimizer.step()
    for weight in weights[:-2]:
        if weight.numel():
            assert weight.grad.flatten()[0].item() == pytest.approx(1.0, rel=1e-2)
    clip.undo()
    assert clip.notes[-1].startswith("tensor-clipping clipped 5 gradients")


def test_the_note_names_the_tensors_that_were_clipped_most() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clip = TensorClipping(memory=2).apply(optimizer, model)
    for norm in (1.0, 1.0, 1.0, 9.0):
        for name, p in model.named_parameters():
            p.grad = torch.full_like(p, norm if name == "0.weight" else 1.0)
        optimizer.step()
    clip.undo()
    expected = "tensor-clipping clipped 1 gradients of single tensors: 0.weight 1 times"
    assert clip.notes[-1] == expected


def test_under_a_scale_that_grows_it_clips_in_true_units() -> None:
    notes = check_true_units(*(TensorClipping(1.2, memory=4) for _ in range(2)))
    assert notes[0] == notes[1]
    assert "clipped 0" not in notes[0]


@pytest.mark.parametrize(
    ("options", "why"),
    [({"factor": 1.0}, "factor"), ({"memory": 1}, "memory"), ({"floor": -1.0}, "no range")],
)
def test_arguments_that_cannot_be_meant_are_refused(options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TensorClipping(**options)


def test_it_is_refused_where_the_loop_clips() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(Refused, match="this run clips at 2"):
        TensorClipping().apply(optimizer, facts={"max_grad_norm": 2.0})


def test_a_resumed_run_clips_as_one_that_never_stopped() -> None:
    model, other = small(), small()
    optimizer, resumed = (MAKERS["SGD"](m.parameters()) for m in (model, other))
    clip = TensorClipping(1.1, memory=5).apply(optimizer)
    train(model, optimizer, range(20))
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again = TensorClipping(1.1, memory=5).apply(resumed)
    again.load_state_dict(clip.state_dict())
    train(model, optimizer, range(20, 40))
    train(other, resumed, range(20, 40))
    assert same(model, optimizer, other, resumed)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_undone_it_is_as_if_it_had_never_been_from_there(make: Make) -> None:
    notes = check_undo(make, TensorClipping(1.2, memory=5))
    assert "clipped 0" not in notes[-1]
