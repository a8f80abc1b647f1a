"""Rewind: where it goes back to, when, and how often."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, multiprocessing, nn
from treated import MAKERS, Make, check_undo, same, small, tensors

from optdoctor.treatments import Refused
from optdoctor.treatments.rewind import Rewind

QUICK: dict[str, Any] = {"every": 10, "patience": 3}


def ordinary(model: nn.Module, optimizer: Any, number: int, scale: float = 1.0) -> float:
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    loss = (model(inputs) - 1).square().mean() * scale
    loss.backward()
    optimizer.step()
    return loss.item()


def everything(model: nn.Module, optimizer: Any) -> list[Tensor]:
    found = [*model.parameters(), *model.buffers(), *tensors(optimizer)]
    return [t.detach().clone() for t in found]


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_after_some_bad_steps_in_a_row_the_older_snapshot_is_back_to_the_bit(make: Make) -> None:
    model = normed()
    optimizer = make(model.parameters())
    rewind = Rewind(**QUICK).apply(optimizer, model)
    states = []
    for number in range(28):  # 25, 26 and 27 are bad
        buffers = [b.clone() for b in model.buffers()]
        states.append(everything(model, optimizer))
        ordinary(model, optimizer, number, math.nan if number >= 25 else 1.0)
        assert number == 27 or not all(map(torch.equal, buffers, model.buffers()))
    assert rewind.notes[0].startswith(
        "rewind went back to the weights of 10 steps from those of 27, 17 steps are lost: "
        "the gradient's norm is nan, lately it was"
    )
    # the buffers of forward passes belong to the step: those of step 10 have seen its batch
    found, expected = everything(model, optimizer), states[10]
    weights = len(list(model.parameters()))
    num_buffers = len(list(model.buffers()))
    assert all(map(torch.equal, found[:weights], expected[:weights]))
    assert all(map(torch.equal, found[weights + num_buffers :], expected[weights + num_buffers :]))
    later = states[11][weights : weights + num_buffers]
    assert all(map(torch.equal, found[weights : weights + num_buffers], later))


def test_the_data_goes_on_and_the_run_is_that_of_who_left_those_batches_out() -> None:
    model, other = small(), small()
    optimizer, untreated = (MAKERS["AdamW"](m.parameters()) for m in (model, other))
    Rewind(**QUICK).apply(optimizer, model)
    for number in range(40):
        ordinary(model, optimizer, number, 1e6 if 25 <= number < 28 else 1.0)
        if not 10 <= number < 28:
            ordinary(other, untreated, number)
    # 100 norms pass before gradients are judged: the loss was not told, so nothing was done
    assert not same(model, optimizer, other, untreated)

    model, other = small(), small()
    optimizer, untreated = (MAKERS["AdamW"](m.parameters()) for m in (model, other))
    Rewind(**QUICK).apply(optimizer, model)
    for number in range(40):
        ordinary(model, optimizer, number, math.inf if 25 <= number < 28 else 1.0)
        if not 10 <= number < 28:
            ordinary(other, untreated, number)
    assert same(model, optimizer, other, untreated)


@pytest.mark.parametrize("early", [True, False], ids=["told before the step", "told after it"])
@pytest.mark.parametrize("bad", [50.0, math.nan, math.inf])
def test_a_loss_that_is_far_out_for_long_brings_it_back(bad: float, early: bool) -> None:
    model = small()
    optimizer = MAKERS["SGD"](model.parameters())
    rewind = Rewind(**QUICK).apply(optimizer, model)
    for number in range(70):
        loss = bad if number >= 60 and not rewind.notes else 1.0 + 0.1 * math.sin(number)
        if early:
            rewind.observe({"loss": loss, "accuracy": 0.5})
        ordinary(model, optimizer, number)
        if not early:
            rewind.observe({"loss": loss})
    assert len(rewind.notes) == 1
    assert f"the loss is {bad:.4g}, lately its median was 1.0" in rewind.notes[0]
    told = "40 steps from those of 62" if early else "50 steps from those of 63"
    assert f"to the weights of {told}" in rewind.notes[0]


def test_single_spikes_and_losses_that_were_never_told_do_nothing() -> None:
    model = small()
    optimizer = MAKERS["SGD"](model.parameters())
    rewind = Rewind(**QUICK).apply(optimizer, model)
    for number in range(80):
        rewind.observe({"loss": 1000.0 if number % 3 else 1.0})  # a wide loss is an ordinary one
        ordinary(model, optimizer, number, math.nan if number == 79 else 1.0)
    assert not rewind.notes


def test_bad_steps_that_are_not_in_a_row_do_nothing() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    rewind = Rewind(every=2, patience=3).apply(optimizer)
    for number in range(30):
        weight.grad = torch.tensor([1.0 if number % 3 == 0 else math.nan])
        optimizer.step()
    assert not rewind.notes


def test_a_gradient_that_is_far_out_for_long_brings_it_back() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    rewind = Rewind(**QUICK).apply(optimizer)
    for number in range(123):
        weight.grad = torch.tensor([1000.0 if number >= 120 else 1.0])
        optimizer.step()
    assert weight.item() == -100.0
    assert rewind.notes[0].endswith("the gradient's norm is 1000, lately it was 1")


def test_after_its_limit_it_gives_up_and_says_so() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    rewind = Rewind(every=2, patience=2, limit=2).apply(optimizer)
    for number in range(20):
        weight.grad = torch.tensor([math.nan if number >= 6 else 1.0])
        optimizer.step()
    assert not rewind.applied
    assert [note.split(":")[0] for note in rewind.notes] == [
        "rewind went back to the weights of 2 steps from those of 7, 5 steps are lost",
        "rewind went back to the weights of 2 steps from those of 9, 7 steps are lost",
        "rewind has gone back 2 times and gives up",
        "rewind went back 2 times",
    ]


def test_without_a_sound_snapshot_it_says_so_and_changes_nothing() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    rewind = Rewind(every=2, patience=2).apply(optimizer)
    weight.grad = torch.tensor([math.nan])
    optimizer.step()
    optimizer.step()
    assert rewind.notes[0].startswith("rewind has no sound snapshot")


def test_only_two_snapshots_are_kept() -> None:
    model = small()
    optimizer = MAKERS["SGD"](model.parameters())
    rewind = Rewind(every=3).apply(optimizer, model)
    for number in range(20):
        ordinary(model, optimizer, number)
        assert len(rewind._snapshots) <= 2
    assert [snapshot.step for snapshot in rewind._snapshots] == [15, 18]


def test_settings_that_the_optimizer_itself_counts_with_go_back_too() -> None:
    schedulefree = pytest.importorskip("schedulefree")
    model, other = small(), small()
    optimizer, untreated = (
        schedulefree.AdamWScheduleFree(m.parameters(), lr=1e-2) for m in (model, other)
    )
    optimizer.train()
    untreated.train()
    Rewind(**QUICK).apply(optimizer, model)
    for number in range(40):
        ordinary(model, optimizer, number, math.nan if 25 <= number < 28 else 1.0)
        if not 10 <= number < 28:
            ordinary(other, untreated, number)
    told = [
        {k: v for k, v in o.param_groups[0].items() if k != "params"}
        for o in (optimizer, untreated)
    ]
    assert told[0]["k"] in (told[1]["k"], told[1]["k"] + 1)
    assert told[0]["k"] < 40 - 15


def test_a_fused_step_that_a_scaler_leaves_out_is_not_bad() -> None:
    model = small()
    optimizer = MAKERS["fused AdamW"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    rewind = Rewind(every=1, patience=1).apply(optimizer, model)
    for number in range(5):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum() * (torch.inf if number > 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert not rewind.notes


def test_it_goes_on_counting_from_its_state() -> None:
    model = small()
    optimizer = MAKERS["SGD"](model.parameters())
    rewind = Rewind(every=5, patience=2, limit=1).apply(optimizer, model)
    for number in range(10):
        rewind.observe({"loss": 1.0})
        ordinary(model, optimizer, number, math.nan if number in (7, 8) else 1.0)
    state = rewind.state_dict()
    assert state["used"] == 1
    rewind.undo()
    again = Rewind(every=5, patience=2, limit=1).apply(optimizer, model)
    again.load_state_dict(state)
    for number in range(4):
        ordinary(model, optimizer, number, math.nan if number > 1 else 1.0)
    assert not again.applied, "it was at its limit"


def test_what_cannot_be_meant_is_refused() -> None:
    for options in ({"every": 0}, {"patience": 0}, {"limit": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            Rewind(**options)
    with pytest.raises(Refused, match="LBFGS"):
        Rewind().apply(torch.optim.LBFGS(small().parameters()))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_undone_it_is_as_if_it_had_never_been_from_there(make: Make) -> None:
    check_undo(make, Rewind(every=10, patience=1))


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    model = small()
    optimizer = MAKERS["AdamW"](model.parameters())
    rewind = Rewind(**QUICK).apply(optimizer, model)
    for number in range(40):
        bad = 25 <= number < 28 and rank == 1
        rewind.observe({"loss": math.nan if bad else 1.0})
        ordinary(model, optimizer, number)
    torch.save([everything(model, optimizer), list(rewind.notes)], f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_all_processes_go_back_together(tmp_path: Path) -> None:
    multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert all(map(torch.equal, first[0], second[0]))
    assert first[1][0].endswith("17 steps are lost: another process wants it")
    assert second[1][0].endswith("17 steps are lost: the loss is nan, lately its median was 1")
