"""`treat="safe"`: what a finding proposes and cannot make a run worse is switched on, no other."""

from typing import Any

import torch
from torch import nn

import optdoctor
from optdoctor.treatments.adaptive_clipping import AdaptiveClipping


def small(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(dtype)


def train(model: nn.Module, optimizer: Any, doctor: Any, steps: int = 60) -> list[float]:
    losses = []
    for step in range(steps):
        inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
        output = model(inputs.to(next(model.parameters()).dtype)).float()
        loss = (output - inputs.sum(1, keepdim=True).sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log(loss=loss)
        losses.append(float(loss.detach()))
    return losses


def test_a_run_in_float16_dies_untreated_and_learns_with_its_safe_treatment() -> None:
    last = {}
    for treat in ((), "safe"):
        model = small(torch.float16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        with optdoctor.watch(model, optimizer, out=None, sinks=(), treat=treat) as doctor:
            losses = train(model, optimizer, doctor)
            names = [one.name for one in doctor.treatments]
        last[bool(treat)] = losses[-1]
        assert names == (["float32-state"] if treat else [])
        assert all(p.dtype == torch.float16 for p in model.parameters())
    assert last[False] != last[False], "NaN"
    assert last[True] < losses[0]


def test_a_healthy_run_is_left_alone() -> None:
    plain, watched = small(torch.float32), small(torch.float32)
    first = torch.optim.AdamW(plain.parameters(), lr=3e-3)
    second = torch.optim.AdamW(watched.parameters(), lr=3e-3)
    with optdoctor.watch(watched, second, out=None, sinks=(), treat="safe") as doctor:
        train(watched, second, doctor)
        assert doctor.treatments == ()
    train(plain, first, optdoctor.watch(plain, first, out=None, sinks=()))
    assert all(map(torch.equal, plain.parameters(), watched.parameters()))
    events = doctor.runs[0].trace.events
    assert not [event for event in events if event.kind in ("treatment", "undo")]


def test_what_was_undone_by_hand_does_not_come_back() -> None:
    model = small(torch.float16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    with optdoctor.watch(model, optimizer, out=None, sinks=(), treat="safe") as doctor:
        train(model, optimizer, doctor, 5)
        doctor.undo("float32-state")
        train(model, optimizer, doctor, 30)
        assert "float32-state" not in [one.name for one in doctor.treatments]


def test_risky_ones_are_not_switched_on_by_a_finding() -> None:
    model = small(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with optdoctor.watch(model, optimizer, out=None, sinks=(), treat="safe") as doctor:
        for step in range(300):
            inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
            scale = 30.0 if step % 50 == 49 else 1.0
            target = inputs.sum(1, keepdim=True).sin() * scale
            loss = (model(inputs) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log(loss=loss)
    diagnosis = doctor.diagnosis
    proposed = {t.intervention for f in diagnosis.findings for t in f.treatments}
    assert AdaptiveClipping.name in proposed, "there is something to switch on"
    assert not [e for e in doctor.runs[0].trace.events if e.kind == "treatment"]
