"""Updates that a loop clips and then drops, and gradients that change after their clip."""

import math
import sys
import weakref

import numpy as np
import pytest
import torch
from small_training import batches, failures, loss_of, net, quiet, rows
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from optdoctor.findings import Verdict
from optdoctor.live.doctor import Doctor

NORM = 0.1


def begun(**options: object) -> tuple[nn.Module, Optimizer, Doctor]:
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, quiet(model, optimizer, **options)


def backward(model: nn.Module, number: int, factor: float = 1.0) -> float:
    """The norm of the gradients after it."""
    (loss_of(model, next(batches(1, number))) * factor).backward()
    return norm_of(model)


def norm_of(model: nn.Module) -> float:
    return math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))


def clip(model: nn.Module) -> Tensor:
    return nn.utils.clip_grad_norm_(model.parameters(), NORM)


@pytest.mark.parametrize("interval", [1, None])
def test_a_guard_that_drops_a_nan_leaves_nothing_of_it_to_the_next(interval: int | None) -> None:
    model, optimizer, doctor = begun(interval=interval)
    norms = []
    for number in range(6):
        optimizer.zero_grad()
        norm = backward(model, number, math.nan if number == 1 else 1.0)
        if not torch.isfinite(clip(model)):
            continue
        norms.append(norm)
        optimizer.step()
    doctor.close()
    assert failures(doctor) == []
    assert list(rows(doctor, "grad_norm").values()) == pytest.approx(norms, rel=1e-6)
    assert all((row == 0).all() for row in rows(doctor, "grad_nonfinite_raw").values())
    assert all(np.isfinite(row).all() for row in rows(doctor, "grad_rms_raw").values())
    assert doctor.diagnosis.verdict is not Verdict.SICK


def test_an_update_that_is_not_clipped_has_no_norm_of_the_dropped_one_before() -> None:
    model, optimizer, doctor = begun()
    backward(model, 0)
    clip(model)  # dropped
    optimizer.zero_grad()
    norm = backward(model, 1)
    optimizer.step()
    doctor.close()
    assert "grad_norm" not in doctor.runs[0].trace.series
    assert rows(doctor, "grad_norm_used")[1] == pytest.approx(norm, rel=1e-6)
    assert "grad_rms_raw" not in doctor.runs[0].trace.series


def test_gradients_that_grow_after_their_clip_are_not_what_was_clipped() -> None:
    model, optimizer, doctor = begun()
    backward(model, 0)
    clip(model)
    norm = backward(model, 1)  # a second micro-batch
    optimizer.step()
    doctor.close()
    assert "grad_norm" not in doctor.runs[0].trace.series
    assert rows(doctor, "grad_norm_used")[1] == pytest.approx(norm, rel=1e-6)


def test_no_reference_to_a_gradient_is_held() -> None:
    """Not even a weak one: torch refuses to swap tensors that have one, as `model.to` may do."""
    model, optimizer, doctor = begun()
    backward(model, 0)
    held = [sys.getrefcount(p.grad) for p in model.parameters()]
    clip(model)
    assert [sys.getrefcount(p.grad) for p in model.parameters()] == held
    assert not any(weakref.getweakrefcount(p.grad) for p in model.parameters())
    optimizer.step()
    assert [sys.getrefcount(p.grad) for p in model.parameters()] == held
    doctor.close()


def test_gradients_that_the_loop_keeps_and_replaces_are_told_from_each_other() -> None:
    model, optimizer, doctor = begun()
    backward(model, 0)
    clip(model)
    kept = [p.grad for p in model.parameters()]
    for parameter, grad in zip(model.parameters(), kept, strict=True):
        parameter.grad = 3 * grad
    clip(model)
    optimizer.step()
    doctor.close()
    assert failures(doctor) == []
    assert rows(doctor, "grad_norm")[1] == pytest.approx(3 * NORM, rel=1e-4)


def test_what_float64_holds_and_the_record_cannot_is_not_measured() -> None:
    for size in (1e25, 1e-40):
        weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
        model = nn.Module()
        model.register_parameter("w", weight)
        optimizer = AdamW([weight], lr=1e-3)
        doctor = quiet(model, optimizer)
        weight.grad = torch.full((3,), size, dtype=torch.float64)
        optimizer.step()
        doctor.close()
        assert "moment2_max" not in doctor.runs[0].trace.series, "neither infinite nor 0"
