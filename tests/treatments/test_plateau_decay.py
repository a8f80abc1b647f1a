"""Decay on a plateau against torch's own counting."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rated_runs import (
    blocks,
    each_optimizer,
    goes_on_untreated,
    leaves_schedules_alone,
    plain,
    pushed,
)
from torch import multiprocessing, nn

import optdoctor
from optdoctor.treatments import Refused
from optdoctor.treatments.plateau_decay import PlateauDecay


def evaluated(*losses: float, **options: Any) -> tuple[PlateauDecay, list[float]]:
    """The treatment, and the rate that was used after each evaluation."""
    weight, optimizer = plain(1.0)
    decay = PlateauDecay(**options).apply(optimizer)
    used = []
    for loss in losses:
        decay.observe({"eval_loss": loss})
        used.append(pushed(weight, optimizer))
    return decay, used


def test_plateau_decay_with_patience_5_and_factor_half_is_available() -> None:
    """H67: Plateau LR decay (patience 5, factor 0.5) is available."""
    decay, used = evaluated(*[1.0] * 13)
    assert used == [1.0] * 6 + [0.5] * 6 + [0.25]
    assert decay.notes[0] == (
        "plateau-decay: eval_loss has not been below 1 for 6 evaluations, rates go from 1 to 0.5"
        " of what is set"
    )


def test_it_counts_as_torch_does() -> None:
    generator = torch.Generator().manual_seed(0)
    losses = (torch.randn(300, generator=generator) * 0.05 + torch.linspace(2, 1, 300)).tolist()
    twin = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        twin, factor=0.5, patience=5, min_lr=0.01, threshold=1e-4, threshold_mode="rel", eps=0.0
    )
    expected = []
    for loss in losses:
        schedule.step(loss)
        expected.append(twin.param_groups[0]["lr"])
    _, used = evaluated(*losses)
    assert used == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert len(set(expected)) > 4


def test_it_does_not_go_below_its_least_factor() -> None:
    decay, used = evaluated(*[1.0] * 40, patience=0, min_factor=0.2)
    assert min(used) == pytest.approx(0.2)
    assert len(decay.notes) == 3, "0.5, 0.25, 0.2"


def test_an_improvement_counts_by_the_size_of_a_negative_loss_too() -> None:
    _, used = evaluated(-1.0, *[-1.00001] * 6)
    assert used[-1] == 0.5
    _, used = evaluated(*[-1.0 - 0.01 * k for k in range(10)])
    assert used[-1] == 1.0


def test_a_loss_that_is_not_finite_is_no_evaluation() -> None:
    _, used = evaluated(1.0, *[math.nan, math.inf] * 10)
    assert used[-1] == 1.0


def test_only_the_loss_that_it_watches_counts() -> None:
    weight, optimizer = plain(1.0)
    decay = PlateauDecay(patience=0).apply(optimizer)
    for _ in range(5):
        decay.observe({"loss": 1.0, "lr": 3.0})
    assert pushed(weight, optimizer) == 1.0
    other = PlateauDecay(patience=0, of="loss").apply(optimizer)
    for _ in range(2):
        other.observe({"loss": 1.0})
    assert pushed(weight, optimizer) == 0.5


def test_it_multiplies_what_a_schedule_gives() -> None:
    weight, optimizer = plain(1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    decay = PlateauDecay(patience=0).apply(optimizer)
    decay.observe({"eval_loss": 1.0})
    decay.observe({"eval_loss": 1.0})
    pushed(weight, optimizer)
    schedule.step()
    assert pushed(weight, optimizer) == pytest.approx(0.05)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_a_resumed_one_goes_on_counting() -> None:
    decay, _ = evaluated(*[1.0] * 11)
    weight, optimizer = plain(1.0)
    other = PlateauDecay().apply(optimizer)
    other.load_state_dict(decay.state_dict())
    assert pushed(weight, optimizer) == 0.5
    for _ in range(2):
        other.observe({"eval_loss": 1.0})
    assert pushed(weight, optimizer) == 0.25


def test_once_undone_it_hears_nothing_and_begins_anew() -> None:
    decay, _ = evaluated(*[1.0] * 7)
    decay.undo()
    assert decay.notes[-1].startswith("plateau-decay leaves: rates go from 0.5")
    decay.observe({"eval_loss": 1.0})
    weight, optimizer = plain(1.0)
    decay.apply(optimizer)
    assert pushed(weight, optimizer) == 1.0


def test_the_doctor_hands_on_what_is_logged(tmp_path: Path) -> None:
    model = blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    decay = PlateauDecay(patience=1)
    with optdoctor.watch(model, optimizer, out=tmp_path, treat=[decay]) as doctor:
        for number in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            doctor.log(loss=1.0 / (1 + number), eval_loss=1.0)
            optimizer.step()
        assert decay.factor_now() == 0.25


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"factor": 1.0}, "factor must be between 0 and 1"),
        ({"patience": -1}, "patience must be at least 0"),
        ({"min_factor": 0.0}, "min_factor must be between 0 and 1"),
        ({"threshold": 1.0}, "threshold must be from 0"),
        ({"of": "accuracy"}, "of must be"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PlateauDecay(**options)


def test_an_optimizer_with_a_rate_of_its_own_is_refused() -> None:
    with pytest.raises(Refused, match="plateau-decay multiplies"):
        PlateauDecay().apply(torch.optim.Rprop([nn.Parameter(torch.zeros(4))]))


@each_optimizer
def test_after_undo_the_run_is_bit_identical_to_one_that_goes_on_untreated(make: Any) -> None:
    decay = PlateauDecay(patience=3)
    goes_on_untreated(decay, make, lambda number: decay.observe({"eval_loss": 1.0}))
    assert len(decay.notes) > 2


def test_schedules_are_left_alone() -> None:
    leaves_schedules_alone(
        lambda: PlateauDecay(patience=2),
        torch.optim.AdamW,
        lambda treatment, number: treatment.observe({"eval_loss": 1.0}),
    )


def _rank(rank: int, folder: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    weight, optimizer = plain(1.0)
    decay = PlateauDecay(patience=0).apply(optimizer)
    used = []
    for _ in range(4):
        if rank == 0:  # the others know of no evaluation
            decay.observe({"eval_loss": 1.0})
        used.append(pushed(weight, optimizer))
    torch.save(used, f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_all_processes_use_the_rate_of_the_one_that_evaluates(tmp_path: Path) -> None:
    multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    assert torch.load(tmp_path / "0") == torch.load(tmp_path / "1") == [1.0, 0.5, 0.25, 0.125]
