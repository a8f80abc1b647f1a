"""Frozen modules: nothing of them moves, the backward pass is spared, and all is as it was."""

import copy
import re
from typing import Any

import pytest
import torch
from rated_runs import (
    blocks,
    each_optimizer,
    goes_on_untreated,
    leaves_schedules_alone,
    parameters_of,
    step,
)
from torch import nn

from optdoctor.treatments import Refused
from optdoctor.treatments.freeze_module import FreezeModule


def flags(model: nn.Module) -> list[bool]:
    return [p.requires_grad for p in model.parameters()]


def held(optimizer: Any, module: nn.Module) -> list[Any]:
    """All that the optimizer knows of its tensors."""
    several = [dict(optimizer.state.get(p, {})) for p in module.parameters()]
    return [copy.deepcopy(v) for state in several for v in state.values()]


@each_optimizer
def test_a_frozen_module_does_not_move_and_requires_grad_is_restored(make: Any) -> None:
    """H73: A "freeze module" ablation helper exists and restores requires_grad."""
    model = blocks()
    model.blocks[1].bias.requires_grad_(False)
    optimizer = make(model.parameters())
    for number in range(3):
        step(model, optimizer, number)
    before, flags_before = copy.deepcopy(model), flags(model)
    state = held(optimizer, model.blocks)
    freeze = FreezeModule("blocks").apply(optimizer, model)
    for number in range(3, 8):
        step(model, optimizer, number)
        assert all(p.grad is None for p in model.blocks.parameters()), "no backward work"
        assert not any(flags(model.blocks))
    assert all(map(torch.equal, model.blocks.parameters(), before.blocks.parameters()))
    now = held(optimizer, model.blocks)
    assert len(now) == len(state)
    for mine, theirs in zip(now, state, strict=True):
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs
    assert not torch.equal(model.embed.weight, before.embed.weight), "the others train"
    assert flags(model) != flags_before
    freeze.undo()
    freeze.undo()
    assert flags(model) == flags_before, "what the user froze himself stays frozen"
    step(model, optimizer, 8)
    assert not torch.equal(model.blocks[0].weight, before.blocks[0].weight)


@each_optimizer
def test_undone_the_run_goes_on_as_one_that_was_never_treated(make: Any) -> None:
    goes_on_untreated(FreezeModule(["blocks.0", "norm"]), make)


def test_schedules_see_the_groups_of_the_user() -> None:
    leaves_schedules_alone(
        lambda: FreezeModule("blocks"), lambda ps: torch.optim.AdamW(ps, lr=1e-2)
    )


def test_a_frozen_run_is_one_that_trains_the_rest_alone() -> None:
    model, other = blocks(), blocks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    FreezeModule(re.compile(r"^(blocks|norm)\.")).apply(optimizer, model)
    other.blocks.requires_grad_(False)
    other.norm.requires_grad_(False)
    alone = torch.optim.AdamW([p for p in other.parameters() if p.requires_grad], lr=1e-2)
    for number in range(10):
        step(model, optimizer, number)
        step(other, alone, number)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_gradients_of_before_are_set_aside_for_the_step_and_given_back() -> None:
    model = blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    model(torch.ones(2, 6)).sum().backward()
    gradient, old = model.head.weight.grad, model.head.weight.detach().clone()
    freeze = FreezeModule("head").apply(optimizer, model)
    optimizer.step()
    assert model.head.weight.grad is gradient
    assert torch.equal(model.head.weight, old)
    assert model.head.weight not in optimizer.state
    freeze.undo()
    optimizer.step()
    assert not torch.equal(model.head.weight, old)


def test_who_switches_it_on_again_meanwhile_trains_nothing_all_the_same() -> None:
    model = blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    freeze = FreezeModule("head").apply(optimizer, model)
    model.requires_grad_(True)
    old = model.head.weight.detach().clone()
    step(model, optimizer, 0)
    assert torch.equal(model.head.weight, old)
    freeze.undo()
    assert all(flags(model))


def test_a_tied_tensor_is_frozen_by_any_of_its_names() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(5, 4), "head": nn.Linear(4, 5)})
    model["head"].weight = model["table"].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    freeze = FreezeModule("head.weight").apply(optimizer, model)
    assert not model["table"].weight.requires_grad
    assert model["head"].bias.requires_grad
    freeze.undo()
    assert model["table"].weight.requires_grad


def test_it_says_how_much_is_frozen() -> None:
    model = blocks()
    freeze = FreezeModule("blocks").apply(torch.optim.SGD(model.parameters(), lr=0.1), model)
    freeze.undo()
    assert list(freeze.notes) == [
        "freeze-module: blocks is frozen, 330 weights",
        "freeze-module leaves: blocks trains again",
    ]


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        ("block.1", "did you mean blocks.1"),
        ("*", "nothing left to train|nothing to train"),
        ("unused.*.x", "no parameter or module is named"),
    ],
)
def test_names_that_freeze_nothing_or_everything_are_refused(modules: str, told: str) -> None:
    model = blocks()
    optimizer = torch.optim.SGD(parameters_of(model), lr=0.1)
    before = flags(model)
    with pytest.raises(Refused, match=told):
        FreezeModule(modules).apply(optimizer, model)
    assert flags(model) == before
    assert not optimizer._optimizer_step_pre_hooks


def test_what_else_cannot_be_frozen_is_refused() -> None:
    model = blocks()
    with pytest.raises(Refused, match="give it the model"):
        FreezeModule("head").apply(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(Refused, match="moves all along one direction"):
        FreezeModule("head").apply(torch.optim.LBFGS(model.parameters()), model)
    with pytest.raises(Refused, match="nothing that this optimizer trains is in head"):
        FreezeModule("head").apply(torch.optim.SGD(model.blocks.parameters(), lr=0.1), model)
    with pytest.raises(ValueError, match="at least one module"):
        FreezeModule([])
    with pytest.raises(ValueError, match="at least one module"):
        FreezeModule("")


def test_beside_other_processes_gradients_stay_and_only_the_step_is_spared(
    tmp_path: Any,
) -> None:
    """DistributedDataParallel waits for every gradient that it was built for."""
    workers = torch.multiprocessing.get_context("fork")
    several = [workers.Process(target=_two, args=(rank, tmp_path / "store")) for rank in range(2)]
    for one in several:
        one.start()
    for one in several:
        one.join(60)
    assert [one.exitcode for one in several] == [0, 0]


def _two(rank: int, store: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    model = blocks()
    model.unused.requires_grad_(False)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    before = copy.deepcopy(model)
    freeze = FreezeModule("blocks").apply(optimizer, wrapped)
    for number in range(3):
        optimizer.zero_grad()
        wrapped(
            torch.randn(4, 6, generator=torch.Generator().manual_seed(rank + number))
        ).sum().backward()
        optimizer.step()
        assert model.blocks[0].weight.grad is not None
    assert all(map(torch.equal, model.blocks.parameters(), before.blocks.parameters()))
    assert not torch.equal(model.head.weight, before.head.weight)
    freeze.undo()
    assert all(flags(model.blocks))
    torch.distributed.destroy_process_group()
