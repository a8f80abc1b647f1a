"""The outlier guard: what it leaves out is as if the batch had not been."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing, nn
from treated import MAKERS, Fed, Make, check_true_units, check_undo, same, small, step

from optdoctor.treatments import Refused
from optdoctor.treatments.outlier_guard import OutlierGuard


def ordinary(model: nn.Module, optimizer: Any, number: int, scale: float = 1.0) -> None:
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    ((model(inputs) - 1).square().mean() * scale).backward()
    optimizer.step()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_outlier_is_left_out_to_the_bit(make: Make) -> None:
    model, other = small(), small()
    optimizer, untouched = make(model.parameters()), make(other.parameters())
    guard = OutlierGuard(memory=5).apply(optimizer, model)
    bad = {8: 1000.0, 11: math.nan}
    for number in range(15):
        ordinary(model, optimizer, number, bad.get(number, 1.0))
        if number not in bad:
            ordinary(other, untouched, number)
    assert same(model, optimizer, other, untouched)
    first, second = guard.notes
    assert "the gradient's norm is" in first
    assert "lately it was" in first
    assert "of 0.weight, 0.bias, 2.weight and 1 more is not finite" in second


def test_it_learns_before_it_judges_and_never_from_what_it_leaves_out() -> None:
    fed = Fed(OutlierGuard(3.0, memory=4), lr=0.0)
    for norm in (100.0, 1.0, 1.0, 1.0):
        fed.used(norm)
    usual = 100**0.25
    before = fed.treatment.state_dict()["mean"]
    fed.used(3.1 * usual)
    assert fed.treatment.state_dict()["mean"] == before
    assert len(fed.treatment.notes) == 1
    fed.used(2.9 * usual)
    assert len(fed.treatment.notes) == 1
    assert fed.treatment.state_dict()["mean"] != before


def test_gradients_that_grew_for_good_are_taken_for_usual() -> None:
    fed = Fed(OutlierGuard(memory=4, patience=3))
    for _ in range(6):
        fed.used(1.0)
    moved = []
    for _ in range(8):
        before = fed.weights[0].detach().clone()
        fed.used(1000.0)
        moved.append(not torch.equal(before, fed.weights[0]))
    assert moved == [False] * 3 + [True] * 5
    assert sum("takes what comes for usual now" in note for note in fed.treatment.notes) == 1
    fed.treatment.undo()
    assert fed.treatment.notes[-1] == "outlier-guard left out 3 steps in all"


def test_it_goes_on_from_its_state() -> None:
    fed, other = (Fed(OutlierGuard(memory=3)) for _ in range(2))
    for _ in range(5):
        fed.used(1.0)
    other.treatment.load_state_dict(fed.treatment.state_dict())
    other.used(1000.0)
    assert not other.weights[0].any()


def test_what_cannot_be_meant_is_refused() -> None:
    for options in ({"factor": 1.0}, {"memory": 1}, {"patience": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            OutlierGuard(**options)
    with pytest.raises(Refused, match="LBFGS"):
        OutlierGuard().apply(torch.optim.LBFGS(small().parameters()))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_undone_it_is_as_if_it_had_never_been_from_there(make: Make) -> None:
    notes = check_undo(make, OutlierGuard(3.0, memory=5))
    assert "left out" in notes[-1]


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    model = small()
    optimizer = MAKERS["AdamW"](model.parameters())
    guard = OutlierGuard(memory=4).apply(optimizer, model)
    for number in range(10):
        ordinary(model, optimizer, number, 1e4 if number == 7 and rank == 1 else 1.0)
    torch.save([[p.detach() for p in model.parameters()], list(guard.notes)], f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_an_outlier_of_one_process_is_left_out_in_all(tmp_path: Path) -> None:
    multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert all(map(torch.equal, first[0], second[0]))
    assert "another process has a gradient that is not finite or too large" in first[1][0]
    assert "the gradient's norm is" in second[1][0]


def test_a_step_without_any_gradient_is_no_trouble() -> None:
    model = small()
    optimizer = MAKERS["SGD"](model.parameters())
    guard = OutlierGuard().apply(optimizer)
    optimizer.step()
    step(model, optimizer, 0)
    assert guard.applied
    assert not guard.notes


def test_under_a_scale_that_grows_it_judges_in_true_units() -> None:
    notes = check_true_units(*(OutlierGuard(3.0, memory=4) for _ in range(2)))
    assert notes[0] == notes[1] == "outlier-guard left out 3 steps in all"
