"""A scaler's skipped updates are counted by one wrapper, which leaves nothing behind."""

import gc
from typing import Any

import pytest
import torch
from small_training import net, quiet
from torch.optim import AdamW

import optdoctor

STEP = torch.amp.GradScaler.step


def watched() -> tuple[Any, Any, Any]:
    model = net()
    optimizer = AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    return scaler, optimizer, quiet(model, optimizer, scaler=scaler)


def test_doctors_that_nobody_closes_do_not_stack_up() -> None:
    for _ in range(50):
        watched()
    gc.collect()
    scaler, optimizer, doctor = watched()
    wrapper = torch.amp.GradScaler.step
    assert wrapper.__wrapped__ is STEP, "one wrapper, not fifty"
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    scaler.scale(torch.zeros(()))
    scaler.step(optimizer)
    doctor.close()
    assert doctor.runs[0].step == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_wrapper_goes_with_the_last_in_any_order(order: tuple[int, int]) -> None:
    gc.collect()
    both = [watched(), watched()]
    both[order[0]][2].close()
    assert torch.amp.GradScaler.step is not STEP
    both[order[1]][2].close()
    assert torch.amp.GradScaler.step is STEP


@pytest.mark.parametrize("wrong", [{"scaler": object()}, {"sinks": ("nope",)}])
def test_a_wrong_argument_is_refused_before_the_doctor_before_is_closed(wrong: Any) -> None:
    model = net()
    optimizer = AdamW(model.parameters())
    first = quiet(model, optimizer)
    with pytest.raises((TypeError, ValueError)):
        optdoctor.watch(model, optimizer, **{"out": None, "sinks": (), **wrong})
    assert optimizer._optimizer_step_post_hooks, "the first still watches"
    first.close()
    assert not optimizer._optimizer_step_post_hooks


class Fused(AdamW):
    """Divides by the scale in its own step, or says so."""

    _step_supports_amp_scaling = True
    heeds = True

    def step(self, closure: Any = None) -> Any:
        if self.heeds and self.found_inf.item() > 0:
            return None
        told, self.grad_scale, self.found_inf = (self.grad_scale, self.found_inf), None, None
        super().step(closure)
        self.grad_scale, self.found_inf = told
        return None


@pytest.mark.parametrize("heeds", [True, False])
def test_an_update_that_ignores_the_mark_of_the_scaler_was_made(heeds: bool) -> None:
    model = net()
    optimizer = Fused(model.parameters())
    optimizer.heeds = heeds
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    doctor = quiet(model, optimizer, scaler=scaler)
    for bad in (False, True):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.inf if bad else 1.0)
        scaler.scale(torch.zeros(()))
        scaler.step(optimizer)
        scaler.update()
    doctor.close()
    trace = doctor.runs[0].trace
    skipped = [e.step for e in trace.events if e.kind == "step-skipped"]
    assert (doctor.runs[0].step, skipped) == (2, [2] if heeds else [])
