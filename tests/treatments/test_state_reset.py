"""State reset: moments and step counters together, once, where it was asked for."""

import copy
from collections.abc import Callable
from typing import Any

import lion_pytorch
import pytest
import pytorch_optimizer
import torch
from torch import nn
from treated import MAKERS, Make, check_undo, same, small, step, train

import optdoctor
from optdoctor.treatments import Refused
from optdoctor.treatments.state_reset import StateReset

KNOWN: dict[str, Make] = {
    **{name: make for name, make in MAKERS.items() if name != "sign"},
    "Lion": lambda ps: lion_pytorch.Lion(ps, lr=1e-3),
    "RMSprop": lambda ps: torch.optim.RMSprop(ps, lr=1e-3, momentum=0.9),
}


def fed(
    treatment: StateReset, sizes: list[float], make: Callable[[Any], Any] = torch.optim.AdamW
) -> tuple[Any, nn.Parameter]:
    weight = nn.Parameter(torch.zeros(4))
    optimizer = make([weight])
    treatment.apply(optimizer)
    for size in sizes:
        weight.grad = torch.full((4,), size)
        optimizer.step()
    return optimizer, weight


def test_v_reset_on_data_shift_is_opt_in_resets_m_v_and_step_together() -> None:
    """v-reset on data shift is opt-in, resets m, v and step together, threshold documented."""
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with optdoctor.watch(model, optimizer, out=None, sinks=(), treat="safe") as doctor:
        train(model, optimizer, range(2))
        assert "state-reset" not in [one.name for one in doctor.treatments]
    assert StateReset.safety == "risky"
    assert StateReset().when_shift is None
    told = StateReset.__doc__ or ""
    assert "`when_shift` times" in told
    assert "does not come back" in told

    StateReset().apply(optimizer)
    step(model, optimizer, 2)
    for p in model.parameters():
        state = optimizer.state[p]
        assert float(state["step"]) == 1
        assert torch.allclose(state["exp_avg"], 0.1 * p.grad)
        assert torch.allclose(state["exp_avg_sq"], 0.001 * p.grad.square())


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_the_next_step_is_that_of_a_new_optimizer_and_only_one_is(make: Make) -> None:
    model = small()
    optimizer = make(model.parameters())
    train(model, optimizer, range(8))
    treatment = StateReset().apply(optimizer)
    other = copy.deepcopy(model)
    new = make(other.parameters())
    train(model, optimizer, range(8, 14))
    train(other, new, range(8, 14))
    assert same(model, optimizer, other, new)
    assert len(treatment.notes) == 1
    assert "rarely helps" in treatment.notes[0]


def test_zeroing_the_second_moment_alone_multiplies_the_step_by_the_root() -> None:
    """Why all go together: the step is multiplied by 1/sqrt(1 - beta2)."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)
    for number in range(600):
        weight.grad = torch.ones(1)
        if number == 599:
            optimizer.state[weight]["exp_avg_sq"].zero_()
            before = weight.detach().clone()
        optimizer.step()
    assert float(before - weight.detach()) / 1e-3 == pytest.approx(10.0, rel=0.01)


def test_a_shift_of_the_squared_gradient_resets_once() -> None:
    treatment = StateReset(when_shift=4.0, window=5)
    optimizer, weight = fed(treatment, [1.0] * 15 + [3.0] * 5)
    assert float(optimizer.state[weight]["step"]) == 1, "reset before the last step of the window"
    assert len(treatment.notes) == 1
    assert "from 4 to 36" in treatment.notes[0]
    for size in [30.0] * 10:
        weight.grad = torch.full((4,), size)
        optimizer.step()
    assert float(optimizer.state[weight]["step"]) == 11
    assert len(treatment.notes) == 1


def test_a_fall_is_a_shift_too_and_less_than_the_threshold_is_none() -> None:
    falls = StateReset(when_shift=4.0, window=5)
    fed(falls, [1.0] * 5 + [0.3] * 5)
    assert len(falls.notes) == 1
    rests = StateReset(when_shift=4.0, window=5)
    fed(rests, [1.0] * 5 + [1.9] * 5 + [1.0] * 5)
    assert not rests.notes


def test_what_is_not_finite_and_steps_without_gradient_are_no_shift() -> None:
    treatment = StateReset(when_shift=4.0, window=4)
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.0, momentum=0.9)
    treatment.apply(optimizer)
    for size in [1.0] * 4 + [torch.nan, torch.inf, 1.0, 1.0] + [None] * 4 + [1.0] * 4:
        weight.grad = None if size is None else torch.full((4,), size)
        optimizer.step()
    assert not treatment.notes
    assert treatment.applied


def test_a_resumed_run_goes_on_waiting() -> None:
    first = StateReset(when_shift=4.0, window=5)
    fed(first, [1.0] * 7)
    second = StateReset(when_shift=4.0, window=5)
    optimizer, weight = fed(second, [])
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    for size in [9.0] * 3:
        weight.grad = torch.full((4,), size)
        optimizer.step()
    assert len(second.notes) == 1


def test_optimizers_whose_groups_count_are_refused() -> None:
    for make in (
        lambda ps: pytorch_optimizer.Lion(ps, lr=1e-3),
        lambda ps: pytorch_optimizer.ScheduleFreeAdamW(ps, lr=1e-3),
    ):
        model = small()
        optimizer = make(model.parameters())
        if hasattr(optimizer, "train"):
            optimizer.train()
        train(model, optimizer, range(2))
        with pytest.raises(Refused, match="count its steps"):
            StateReset().apply(optimizer)


def test_optimizers_that_make_their_state_at_once_or_that_nobody_knows_are_refused() -> None:
    for make in (torch.optim.Adagrad, MAKERS["sign"]):
        with pytest.raises(Refused, match="does not know"):
            StateReset().apply(make(small().parameters()))


def test_where_there_is_no_state_it_is_refused() -> None:
    optimizer = torch.optim.AdamW(small().parameters())
    with pytest.raises(Refused, match="no state yet"):
        StateReset().apply(optimizer)
    StateReset(when_shift=10.0).apply(optimizer)


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_undone_a_run_goes_on_untreated(make: Make) -> None:
    check_undo(make, StateReset(when_shift=1.5, window=5))


def test_numbers_are_checked() -> None:
    with pytest.raises(ValueError, match="ratio"):
        StateReset(when_shift=1.0)
    with pytest.raises(ValueError, match="window"):
        StateReset(window=0)
