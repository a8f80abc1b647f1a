"""The warm-up after a restart, against the line that it says it is."""

from typing import Any

import pytest
import torch
from rated_runs import (
    Seen,
    blocks,
    each_optimizer,
    goes_on_untreated,
    leaves_schedules_alone,
    parameters_of,
    plain,
    pushed,
    step,
)
from torch import nn

from optdoctor.treatments import Refused
from optdoctor.treatments.warmup_restart import WarmupRestart


def test_rates_rise_linearly_to_the_users_and_are_left_alone_from_there() -> None:
    weight, optimizer = plain(0.8)
    warmup = WarmupRestart(8).apply(optimizer)
    moved = [pushed(weight, optimizer) for _ in range(12)]
    assert moved == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8])
    assert optimizer.param_groups[0]["lr"] == 0.8
    assert list(warmup.notes) == [
        "warmup-restart begins: rates times 0.125, as set from step 8 on",
        "warmup-restart is over after 8 steps: rates are as set",
    ]


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda ps: torch.optim.AdamW(ps, betas=(0.9, 0.999)), 2000),
        (lambda ps: torch.optim.AdamW(ps, betas=(0.9, 0.95)), 40),
        (lambda ps: torch.optim.AdamW(ps, betas=(0.9, 0.5)), 10),
        (lambda ps: torch.optim.AdamW(ps, betas=(0.9, 0.99999)), 2000),
        (lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9), 100),
        (lambda ps: torch.optim.Adafactor(ps), 100),
    ],
)
def test_its_length_follows_from_beta2_within_bounds(make: Any, steps: int) -> None:
    warmup = WarmupRestart().apply(make([nn.Parameter(torch.zeros(4))]))
    assert warmup.notes[0].endswith(f"as set from step {steps} on")


def test_the_slowest_of_several_groups_decides() -> None:
    groups = [
        {"params": [nn.Parameter(torch.zeros(4))], "betas": (0.9, beta)} for beta in (0.95, 0.99)
    ]
    warmup = WarmupRestart().apply(torch.optim.Adam(groups))
    assert warmup.notes[0].endswith("as set from step 200 on")


def test_it_multiplies_what_a_schedule_gives() -> None:
    weight, optimizer = plain(1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    WarmupRestart(4).apply(optimizer)
    moved = []
    for _ in range(6):
        moved.append(pushed(weight, optimizer))
        schedule.step()
    assert moved == pytest.approx([k / 4 * 0.5 ** (k - 1) for k in range(1, 5)] + [0.0625, 0.03125])


def test_a_resumed_warmup_goes_on_where_it_was() -> None:
    weight, optimizer = plain(1.0)
    warmup = WarmupRestart(10).apply(optimizer)
    for _ in range(4):
        pushed(weight, optimizer)
    state = warmup.state_dict()
    weight, optimizer = plain(1.0)
    WarmupRestart(3).apply(optimizer).load_state_dict(state)
    assert pushed(weight, optimizer) == pytest.approx(0.5)


def test_a_step_that_the_scaler_leaves_out_does_not_count() -> None:
    weight, optimizer = plain(1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    WarmupRestart(4).apply(optimizer)
    for value in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(weight.sum() * value).backward()
        scaler.step(optimizer)
        scaler.update()
    assert weight.detach().tolist() == pytest.approx([-0.75] * 4)


def test_a_warmup_that_is_broken_off_says_where_it_stood() -> None:
    weight, optimizer = plain(1.0)
    warmup = WarmupRestart(4).apply(optimizer)
    pushed(weight, optimizer)
    warmup.undo()
    assert warmup.notes[-1].startswith("warmup-restart is broken off after 1 of 4 steps")
    assert pushed(weight, optimizer) == 1.0


@pytest.mark.parametrize(
    "make", [lambda ps: torch.optim.Rprop(ps), lambda ps: torch.optim.ASGD(ps)]
)
def test_rates_that_do_not_move_the_weights_are_refused(make: Any) -> None:
    optimizer = make([nn.Parameter(torch.zeros(4))])
    with pytest.raises(Refused, match="warmup-restart multiplies"):
        WarmupRestart().apply(optimizer)
    assert not optimizer._optimizer_step_pre_hooks


def test_a_relative_step_is_refused() -> None:
    import pytorch_optimizer

    optimizer = pytorch_optimizer.AdaFactor([nn.Parameter(torch.zeros(4))])
    with pytest.raises(Refused, match="makes its own with relative_step"):
        WarmupRestart().apply(optimizer)


def test_a_line_search_is_refused_and_a_plain_lbfgs_is_not() -> None:
    weights = [nn.Parameter(torch.zeros(4))]
    with pytest.raises(Refused, match="line search"):
        WarmupRestart().apply(torch.optim.LBFGS(weights, line_search_fn="strong_wolfe"))
    WarmupRestart(2).apply(torch.optim.LBFGS(weights))


def test_no_steps_are_no_warmup() -> None:
    with pytest.raises(ValueError, match="steps must be at least 1"):
        WarmupRestart(0)


@each_optimizer
def test_after_undo_the_run_is_bit_identical_to_one_that_goes_on_untreated(make: Any) -> None:
    goes_on_untreated(WarmupRestart(100), make)


@each_optimizer
def test_a_finished_warmup_is_undone_as_well(make: Any) -> None:
    goes_on_untreated(WarmupRestart(10), make)


@each_optimizer
def test_settings_between_steps_are_the_users(make: Any) -> None:
    model = blocks()
    optimizer = make(parameters_of(model))
    WarmupRestart(20).apply(optimizer)
    for number in range(5):
        groups = [dict(g) for g in optimizer.param_groups]
        step(model, optimizer, number)
        assert all(
            g["lr"] is old["lr"] for g, old in zip(optimizer.param_groups, groups, strict=True)
        )


def test_schedules_are_left_alone() -> None:
    leaves_schedules_alone(lambda: WarmupRestart(20), torch.optim.AdamW)


def test_half_precision_and_single_numbers_are_warmed_up_too() -> None:
    weights = [nn.Parameter(torch.ones(3, dtype=torch.bfloat16)), nn.Parameter(torch.ones(()))]
    weights.append(nn.Parameter(torch.ones(2, dtype=torch.complex64)))
    optimizer = torch.optim.AdamW(weights, lr=0.5)
    seen = Seen(optimizer)
    WarmupRestart(4).apply(optimizer)
    for weight in weights[:2]:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert seen.of("lr") == [0.125]
