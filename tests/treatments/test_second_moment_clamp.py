"""Second-moment clamp: aware of its dtype, and it tells what it does to steps."""

import math

import bitsandbytes
import pytest
import torch
from torch import nn
from treated import MAKERS, Make, check_undo, odd_gradients, small, step, train

import optdoctor
from optdoctor.treatments import Intervention, Refused, make
from optdoctor.treatments.second_moment_clamp import SecondMomentClamp


def pair(treatment: Intervention, dtype: torch.dtype = torch.float32, **settings: float) -> tuple:
    """A weight of four elements, an AdamW of it treated, and one step made."""
    weight = nn.Parameter(torch.zeros(4, dtype=dtype))
    optimizer = torch.optim.AdamW([weight], **{"lr": 1e-3, "weight_decay": 0.0, **settings})
    treatment.apply(optimizer)
    weight.grad = torch.tensor([1.0, 1.0, 1e-4, 1e-4], dtype=dtype)
    optimizer.step()
    return weight, optimizer


def test_the_v_clamp_action_refuses_a_minimum_that_rounds_to_zero_in_the_state_dtype() -> None:
    """The v-clamp action refuses a minimum that rounds to zero in the state dtype, and says why."""
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float16))
    for made in (False, True):
        optimizer = torch.optim.AdamW([weight], lr=1e-3, eps=1e-4)
        if made:
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        with pytest.raises(Refused, match=r"1e-08 is 0 in float16.*smallest number is 6e-08"):
            SecondMomentClamp(1e-8).apply(optimizer)
        SecondMomentClamp(1e-6).apply(optimizer).undo()
    wide = torch.optim.AdamW([nn.Parameter(torch.zeros(4))], lr=1e-3)
    SecondMomentClamp(1e-8).apply(wide)


def test_the_v_clamp_action_is_off_by_default_dtype_aware_logs_how_many_elements_changed() -> None:
    """The v-clamp action is off by default, dtype-aware, logs how many elements changed and the
    expected step change."""
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with optdoctor.watch(model, optimizer, out=None, sinks=(), treat="safe") as doctor:
        train(model, optimizer, range(2))
        assert "second-moment-clamp" not in [one.name for one in doctor.treatments]
    assert SecondMomentClamp.safety == "risky"

    told: list[tuple] = []
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.0)
    SecondMomentClamp(1e-8).apply(optimizer, tell=lambda *event: told.append(event))
    weight.grad = torch.tensor([1.0, 1.0, 1e-4, 1e-4])
    optimizer.step()
    assert not told, "no moment yet"
    optimizer.step()
    ((kind, text, old, new),) = told
    assert kind == "treatment"
    assert "raised 2 elements" in text
    assert old == pytest.approx(1.0, rel=1e-3)
    assert new == pytest.approx(4.5e-2, rel=0.03), "the 22 times smaller step of a healthy element"


@pytest.mark.parametrize(
    "optimizer_of",
    [
        lambda ps: torch.optim.AdamW(ps, lr=1e-3, weight_decay=0.0),
        lambda ps: torch.optim.RMSprop(ps, lr=1e-3),
        lambda ps: bitsandbytes.optim.RMSprop(ps, lr=1e-3),
    ],
)
def test_what_it_tells_is_the_step_that_is_then_made(optimizer_of: Make) -> None:
    told: list[tuple] = []
    weight = nn.Parameter(torch.zeros(4))
    optimizer = optimizer_of([weight])
    treatment = SecondMomentClamp(1e-3).apply(optimizer, tell=lambda *event: told.append(event))
    for number in range(3):
        weight.grad = torch.tensor([1.0, -2.0, 1e-2, 3e-3]) * (1 + number)
        before = weight.detach().clone()
        optimizer.step()
    moved = (weight.detach() - before).abs() / 1e-3
    assert treatment.notes[-1].startswith("second-moment-clamp raised 2 elements")
    assert told[-1][3] == pytest.approx(float(moved[2:].max()), rel=1e-4)


def test_elements_are_held_to_the_minimum_and_no_other_is_touched() -> None:
    weight, optimizer = pair(SecondMomentClamp(1e-5))
    moment = optimizer.state[weight]["exp_avg_sq"]
    weight.grad.zero_()
    optimizer.step()
    expected = [1e-3 * 0.999, 1e-3 * 0.999, 1e-5 * 0.999, 1e-5 * 0.999]
    assert moment.tolist() == pytest.approx(expected, rel=1e-5)


def test_the_default_is_a_share_of_the_mean_and_knows_no_scale() -> None:
    raised = []
    for scale in (1.0, 1e-4):
        weight = nn.Parameter(torch.zeros(4))
        optimizer = torch.optim.AdamW([weight], lr=1e-3)
        treatment = SecondMomentClamp(share=1e-3).apply(optimizer)
        for _ in range(3):
            weight.grad = torch.tensor([1.0, 1.0, 1e-4, 1e-4]) * scale
            optimizer.step()
        raised.append(treatment.state_dict())
    assert raised == [{"steps": 2, "changed": 4}] * 2


def test_a_share_is_refused_in_float16_and_a_minimum_it_holds_is_not() -> None:
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float16))
    optimizer = torch.optim.AdamW([weight], lr=1e-3)
    with pytest.raises(Refused, match="share of a mean in float16"):
        make("second-moment-clamp").apply(optimizer)
    SecondMomentClamp(1e-6).apply(optimizer)


def test_a_moment_that_comes_in_another_dtype_switches_it_off_and_says_why() -> None:
    treatment = SecondMomentClamp(1e-8)
    weight, optimizer = pair(treatment)
    state = optimizer.state[weight]
    state["exp_avg_sq"] = state["exp_avg_sq"].half()
    optimizer.step()
    assert not treatment.applied
    assert "is 0 in float16" in treatment.notes[-1]


def test_it_is_refused_where_no_mean_of_squares_is_known() -> None:
    for kind in (torch.optim.SGD, torch.optim.Adafactor, torch.optim.Adagrad):
        with pytest.raises(Refused, match="mean of squares"):
            SecondMomentClamp(1e-8).apply(kind(small().parameters(), lr=0.1))


@pytest.mark.parametrize("name", ["AdamW", "fused AdamW"])
def test_undone_a_run_goes_on_untreated(name: str) -> None:
    notes = check_undo(MAKERS[name], SecondMomentClamp(1e-4))
    assert "raised" in notes[-1]


def test_rmsprop_and_amsgrad_are_clamped_too() -> None:
    for optimizer_of in (
        lambda ps: torch.optim.RMSprop(ps, lr=1e-3),
        lambda ps: torch.optim.AdamW(ps, lr=1e-3, amsgrad=True),
    ):
        model = small()
        optimizer = optimizer_of(model.parameters())
        treatment = SecondMomentClamp(1.0).apply(optimizer)
        for number in range(3):
            loss = step(model, optimizer, number)
        assert math.isfinite(loss)
        assert treatment.applied
        assert treatment.state_dict()["steps"] == 2


def test_tensors_of_every_kind_pass() -> None:
    optimizer, _ = odd_gradients(lambda ps: torch.optim.AdamW(ps, lr=1e-3, foreach=False))
    treatment = SecondMomentClamp(1e-2).apply(optimizer)
    optimizer.step()
    optimizer.step()
    assert treatment.applied
    treatment.undo()


def test_numbers_are_checked() -> None:
    with pytest.raises(ValueError, match="minimum"):
        SecondMomentClamp(0.0)
    with pytest.raises(ValueError, match="share"):
        SecondMomentClamp(share=1.0)
