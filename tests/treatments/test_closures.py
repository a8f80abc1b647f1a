"""Steps that run the model in a closure: treatments act on the gradients of that step."""

from typing import Any

import pytest
import torch
from torch import nn

import optdoctor
from optdoctor.treatments.adaptive_clipping import AdaptiveClipping
from optdoctor.treatments.float32_state import Float32State
from optdoctor.treatments.step_guard import StepGuard

MAKERS: dict[str, Any] = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=1e-2),
}


def small(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1)).to(dtype)


def train(model: nn.Module, optimizer: Any, how: str, *, bad: int = -1) -> list[float]:
    """Twenty steps, whose gradients are taken before the step or within it."""
    torch.manual_seed(1)
    losses, calls = [], 0
    dtype = next(model.parameters()).dtype
    for step in range(20):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step)).to(dtype)

        def closure(inputs: torch.Tensor = inputs, step: int = step) -> torch.Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = model(inputs).float().square().mean() * (torch.nan if step == bad else 1.0)
            loss.backward()
            return loss

        if how == "before":
            losses.append(float(closure().detach()))
            optimizer.step()
        elif how == "by position":
            losses.append(float(optimizer.step(closure).detach()))
        else:
            losses.append(float(optimizer.step(closure=closure).detach()))
    assert calls == 20, "the model runs once a step"
    return losses


@pytest.mark.parametrize("how", ["by position", "by name"])
@pytest.mark.parametrize("treated", [True, False])
@pytest.mark.parametrize("name", MAKERS)
def test_a_step_with_a_closure_is_treated_as_one_without(
    name: str, treated: bool, how: str
) -> None:
    several = []
    for way in ("before", how):
        model = small()
        optimizer = MAKERS[name](model.parameters())
        clip = AdaptiveClipping(1.01, memory=3)
        if treated:
            clip.apply(optimizer)
        losses = train(model, optimizer, way)
        if treated:
            clip.undo()
            assert int(clip.notes[-1].split()[-2]) > 3
        several.append((losses, [p.detach() for p in model.parameters()]))
    assert several[0][0] == several[1][0]
    assert all(map(torch.equal, several[0][1], several[1][1]))


def test_a_nan_that_comes_in_the_closure_is_left_out_at_that_step() -> None:
    model = small()
    optimizer = MAKERS["AdamW"](model.parameters())
    guard = StepGuard().apply(optimizer, model)
    train(model, optimizer, "by name", bad=7)
    assert len(guard.notes) == 1
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_half_weights_are_stepped_in_float32_after_the_closure() -> None:
    several = []
    for way in ("before", "by name"):
        model = small(torch.bfloat16)
        optimizer = MAKERS["AdamW"](model.parameters())
        treatment = Float32State().apply(optimizer)
        train(model, optimizer, way)
        assert treatment.applied
        treatment.undo()
        several.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, *several))


def test_of_an_optimizer_that_nobody_knows_a_closure_is_not_called_for_it() -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        def step(self, closure: Any = None) -> Any:
            loss = closure()
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.add_(p.grad, alpha=-group["lr"])
            return loss

    model = small()
    optimizer = Own(model.parameters())
    guard = StepGuard().apply(optimizer)
    train(model, optimizer, "by position")
    assert not guard.applied
    assert "nobody knows how often Own calls" in guard.notes[0]


def test_the_doctor_sees_the_norm_of_before_in_such_steps_too() -> None:
    model = small()
    optimizer = MAKERS["SGD"](model.parameters())
    clip = AdaptiveClipping(1.01, memory=3)
    with optdoctor.watch(model, optimizer, out=None, sinks=(), interval=1, treat=[clip]) as doctor:
        train(model, optimizer, "by name")
    trace = doctor.runs[0].trace
    before, used = trace.series["grad_norm"].values, trace.series["grad_norm_used"].values
    assert len(before) == len(used) == 20
    assert (used <= before * (1 + 1e-5)).all()
    assert (used < 0.99 * before).any()
