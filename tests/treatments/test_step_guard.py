"""The step guard: which steps are left out, that nothing of them is left, that processes agree."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import optdoctor
from optdoctor.treatments.step_guard import StepGuard

MAKERS: dict[str, Any] = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.1),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2),
    "fused AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2, fused=True),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=1e-2),
}
each_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def step(model: nn.Module, optimizer: Any, number: int, *, bad: bool = False) -> None:
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    if bad:
        model[0].weight.grad[0, 0] = torch.nan
    optimizer.step()


def state(optimizer: Any) -> list[Tensor]:
    return [v for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]


@each_optimizer
def test_a_step_of_nan_leaves_no_trace(make: Any) -> None:
    model, other = small(), small()
    optimizer, untouched = make(model.parameters()), make(other.parameters())
    guard = StepGuard().apply(optimizer, model)
    for number in range(6):
        step(model, optimizer, number, bad=number == 3)
        if number != 3:
            step(other, untouched, number)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert all(map(torch.equal, state(optimizer), state(untouched)))
    assert list(guard.notes) == [
        "step-guard left out a step: the gradient of 0.weight is not finite"
    ]
    assert not hasattr(optimizer, "found_inf")


@each_optimizer
def test_the_first_step_may_be_the_bad_one(make: Any) -> None:
    model = small()
    before = copy.deepcopy(model.state_dict())
    optimizer = make(model.parameters())
    StepGuard().apply(optimizer)
    step(model, optimizer, 0, bad=True)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not state(optimizer)


def test_the_gradient_is_the_very_tensor_afterwards() -> None:
    model = small()
    optimizer = MAKERS["AdamW"](model.parameters())
    StepGuard().apply(optimizer)
    step(model, optimizer, 0)
    gradients = [p.grad for p in model.parameters()]
    model[0].weight.grad[0, 0] = torch.inf
    optimizer.step()
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))


def test_without_the_guard_the_same_step_breaks_the_weights() -> None:
    model = small()
    optimizer = MAKERS["AdamW"](model.parameters())
    step(model, optimizer, 0, bad=True)
    assert not torch.isfinite(model[0].weight).all()


def test_after_undo_a_step_of_nan_is_made_as_in_any_run() -> None:
    model = small()
    optimizer = MAKERS["AdamW"](model.parameters())
    guard = StepGuard().apply(optimizer)
    step(model, optimizer, 0)
    guard.undo()
    assert not optimizer._optimizer_step_pre_hooks
    step(model, optimizer, 1, bad=True)
    assert not torch.isfinite(model[0].weight).all()


def test_it_says_that_the_run_stands_still_and_goes_on_guarding() -> None:
    model = small()
    optimizer = MAKERS["AdamW"](model.parameters())
    guard = StepGuard(patience=3).apply(optimizer)
    for number in range(5):
        step(model, optimizer, number, bad=True)
    assert torch.isfinite(model[0].weight).all()
    assert sum("3 steps in a row" in note for note in guard.notes) == 1
    guard.undo()
    assert guard.notes[-1] == "step-guard left out 5 steps in all"


def test_frozen_and_sparse_and_missing_gradients_are_no_trouble() -> None:
    embedding, head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1)
    head.bias.requires_grad_(False)
    idle = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters(), idle], lr=0.1)
    guard = StepGuard().apply(optimizer)
    for number in range(3):
        optimizer.zero_grad()
        loss = head(embedding(torch.tensor([1, 2]))).sum()
        (loss * (torch.nan if number == 1 else 1)).backward()
        optimizer.step()
    assert torch.isfinite(embedding.weight).all()
    assert len(guard.notes) == 1


def test_the_doctor_counts_a_step_left_out_as_skipped() -> None:
    model = small()
    optimizer = MAKERS["AdamW"](model.parameters())
    with optdoctor.watch(model, optimizer, out=None, sinks=(), treat=["step-guard"]) as doctor:
        for number in range(12):
            step(model, optimizer, number, bad=number == 5)
            doctor.log(loss=1.0)
    trace = doctor.runs[0].trace
    assert [e.step for e in trace.events if e.kind == "step-skipped"] == [6]
    skipped = trace.series["step_skipped"]
    assert [int(s) for s, v in zip(skipped.steps, skipped.values, strict=True) if v] == [6]


def test_under_a_gradient_scaler_it_has_nothing_to_do() -> None:
    model = small()
    optimizer = MAKERS["SGD"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    guard = StepGuard().apply(optimizer)
    for number in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum() * (torch.inf if number == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert not guard.notes
    assert torch.isfinite(model[0].weight).all()


def _rank(rank: int, folder: str, wrapped: bool) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    inner = small()
    model: nn.Module = DistributedDataParallel(inner) if wrapped else inner
    optimizer = torch.optim.AdamW(inner.parameters(), lr=1e-2)
    guard = StepGuard().apply(optimizer, inner)
    for number in range(4):
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), 1.0 + number)).square().mean()
        (loss * (torch.nan if number == 2 and rank == 1 else 1.0)).backward()
        optimizer.step()
    weights = [p.detach() for p in inner.parameters()]
    torch.save([weights, list(guard.notes), state(optimizer)], f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_nan_inf_safe_step_guard_skips_the_step_consistently_on_all_ranks(
    tmp_path: Path, wrapped: bool
) -> None:
    """H63: a NaN/inf-safe step guard skips the step consistently on all ranks."""
    multiprocessing.spawn(_rank, (str(tmp_path), wrapped), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert all(map(torch.equal, first[0], second[0]))
    assert all(map(torch.equal, first[2], second[2]))
    assert torch.isfinite(torch.cat([w.flatten() for w in first[0]])).all()
    assert len(first[1]) == len(second[1]) == 1
    if not wrapped:
        assert "another process" in first[1][0]
        assert "0.weight" in second[1][0]
