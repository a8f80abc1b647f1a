"""Gradient projection against the flat formula, and what it never does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, multiprocessing, nn
from treated import MAKERS, Make, check_undo, odd_gradients, same, small, step

from optdoctor.treatments import Refused, make
from optdoctor.treatments.gradient_projection import GradientProjection


def flat(tensors: Any) -> Tensor:
    return torch.cat([t.detach().reshape(-1).double() for t in tensors])


def gradients(model: nn.Module, number: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(number)
    return [torch.randn(p.shape, generator=generator) for p in model.parameters()]


def used(model: nn.Module, optimizer: Any, given: list[Tensor]) -> Tensor:
    for p, g in zip(model.parameters(), given, strict=True):
        p.grad = g.clone()
    optimizer.step()
    return flat(p.grad for p in model.parameters())


def test_gradient_projection_only_acts_when_the_two_gradients_conflict() -> None:
    """H71: gradient projection only acts when the two gradients conflict (dot < 0) and refuses the
    "remove reward" mode."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    second = gradients(model, 99)
    treatment = GradientProjection(second).apply(optimizer)
    r, conflicts = flat(second), 0
    for number in range(30):
        given = gradients(model, number)
        g, found = flat(given), used(model, optimizer, given)
        dot = torch.dot(g, r)
        if dot >= 0:
            assert torch.equal(found, g), "they agree: not a bit changes"
            continue
        conflicts += 1
        assert torch.allclose(found, g - dot / torch.dot(r, r) * r, rtol=1e-4, atol=1e-6)
        assert abs(torch.dot(found, r)) < 1e-4
    assert 5 < conflicts < 25
    treatment.undo()
    assert treatment.notes[-1] == f"gradient-projection found a conflict in {conflicts} of 30 steps"
    for mode in ("always", "agreement"):
        with pytest.raises(Refused, match="what both objectives want; it acts only on a conflict"):
            GradientProjection(second, when=mode)


def test_a_function_may_return_the_second_gradient_or_leave_it_by_backward() -> None:
    results = []
    for by_return in (True, False):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        calls = []

        def against(model: nn.Module = model, by_return: bool = by_return, calls: Any = calls):
            calls.append(1)
            loss = model(torch.ones(2, 4)).sum()
            if by_return:
                return torch.autograd.grad(loss, list(model.parameters()))
            loss.backward()
            return None

        treatment = GradientProjection(against).apply(optimizer)
        own = [-g for g in torch.autograd.grad(model(torch.ones(2, 4)).sum(), model.parameters())]
        found = used(model, optimizer, own)
        assert len(calls) == 1
        assert treatment.applied, list(treatment.notes)
        assert found.abs().max() < 1e-6, "it is opposite to the second: nothing is left"
        results.append(found)
    assert torch.equal(*results)


def test_the_step_keeps_its_own_gradient_tensors_and_frozen_ones_get_none() -> None:
    model = small()
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def against() -> None:
        model(torch.ones(2, 4)).sum().backward()

    GradientProjection(against).apply(optimizer)
    (-model(torch.ones(2, 4))).sum().backward()
    before = [p.grad for p in model.parameters()]
    optimizer.step()
    assert all(p.grad is g for p, g in zip(model.parameters(), before, strict=True))
    assert model[0].bias.grad is None


def test_a_function_that_fails_leaves_the_gradients_and_is_switched_off() -> None:
    model, other = small(), small()
    optimizer, plain = (MAKERS["SGD"](m.parameters()) for m in (model, other))

    def against() -> None:
        model(torch.ones(2, 4)).sum().backward()
        raise RuntimeError("no second objective")

    treatment = GradientProjection(against).apply(optimizer)
    step(model, optimizer, 0)
    step(other, plain, 0)
    assert same(model, optimizer, other, plain)
    assert not treatment.applied
    assert any("no second objective" in note for note in treatment.notes)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_a_second_gradient_of_nan_or_zero_changes_nothing(value: float) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    second = [torch.full_like(p, value) for p in model.parameters()]
    GradientProjection(second).apply(optimizer)
    given = gradients(model, 0)
    assert torch.equal(used(model, optimizer, given), flat(given))


def test_a_scaled_gradient_of_a_fused_step_is_projected_alike() -> None:
    model, scaled = small(), small()
    first, second = (
        torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True) for m in (model, scaled)
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    towards = gradients(model, 3)
    for optimizer in (first, second):
        GradientProjection(towards).apply(optimizer)
    for number in range(10):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
        first.zero_grad()
        model(inputs).square().mean().backward()
        first.step()
        second.zero_grad()
        scaler.scale(scaled(inputs).square().mean()).backward()
        scaler.step(second)
        scaler.update()
    for one, other in zip(model.parameters(), scaled.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_gradients_of_every_kind_are_no_trouble() -> None:
    optimizer, weights = odd_gradients(lambda ps: torch.optim.SGD(ps, lr=0.0))
    second = [torch.full_like(w, -1.0) for w in weights]
    second[-1] = None
    treatment = GradientProjection(second).apply(optimizer)
    optimizer.step()
    assert treatment.applied, list(treatment.notes)
    for weight in weights[:-2]:
        assert not weight.grad.abs().double().sum() > 1e-2
    weights[0].grad = torch.tensor(1.0).to_sparse()
    optimizer.step()
    assert treatment.applied, list(treatment.notes)


def test_it_is_refused_without_a_second_gradient_that_fits() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(Refused, match="needs a second gradient"):
        make("gradient-projection").apply(optimizer)
    for wrong in (gradients(model, 0)[:-1], [torch.ones(3) for _ in model.parameters()]):
        with pytest.raises(Refused, match="has not the shapes"):
            GradientProjection(wrong).apply(optimizer)
    with pytest.raises(Refused, match="LBFGS"):
        GradientProjection(gradients(model, 0)).apply(torch.optim.LBFGS(model.parameters()))
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_undone_it_is_as_if_it_had_never_been_from_there(maker: Make) -> None:
    notes = check_undo(maker, GradientProjection(gradients(small(), 5)))
    assert "found a conflict in 0 " not in notes[-1]


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    GradientProjection(lambda: gradients(model, rank)).apply(optimizer)  # another one in each
    opposite = [-(a + b) for a, b in zip(gradients(model, 0), gradients(model, 1), strict=True)]
    found = used(model, optimizer, opposite)
    torch.save([found, [p.detach() for p in model.parameters()]], f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_all_processes_project_on_the_mean_of_their_second_gradients(tmp_path: Path) -> None:
    multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert first[0].abs().max() < 1e-5
    assert all(map(torch.equal, first[1], second[1]))
