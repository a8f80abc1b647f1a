"""Facts of a run before its first update: never a pair that no tensor has."""

from typing import Any

import torch
from torch import nn
from torch.optim import AdamW

import optdoctor
from optdoctor.live.doctor import Doctor


def watched(model: nn.Module, groups: Any, **options: Any) -> Doctor:
    return optdoctor.watch(model, AdamW(groups, **options), out=None, sinks=())


def found(doctor: Doctor) -> set[str]:
    return {finding.rule for finding in doctor.diagnosis.findings}


def test_frozen_weights_of_an_optimizer_do_not_speak_for_the_trained_ones() -> None:
    base, adapter = nn.Linear(8, 8).half().requires_grad_(False), nn.Linear(8, 8)
    model = nn.ModuleList([base, adapter])
    doctor = watched(model, model.parameters())
    assert doctor.runs[0].trace.facts["math_dtype"] == "float32"
    assert found(doctor) == set()
    base.requires_grad_(True)
    assert found(watched(model, model.parameters())) == {"epsilon-below-precision"}


def test_the_epsilon_is_one_that_meets_the_least_precise_arithmetic() -> None:
    half, single = nn.Linear(8, 8).half(), nn.Linear(8, 8)
    groups = [
        {"params": list(single.parameters()), "eps": 1e-8},
        {"params": list(half.parameters()), "eps": 1e-4, "betas": (0.8, 0.95)},
    ]
    doctor = watched(nn.ModuleList([single, half]), groups)
    facts = doctor.runs[0].trace.facts
    assert (facts["eps"], facts["beta2"], facts["math_dtype"]) == (1e-4, 0.95, "float16")
    assert found(doctor) == {"half-precision-state"}
    groups[1]["eps"] = 1e-8
    assert found(watched(nn.ModuleList([single, half]), groups)) == {"epsilon-below-precision"}


def test_the_least_precise_of_several_dtypes_is_told() -> None:
    mixed = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4).to(torch.bfloat16)])
    facts = watched(mixed, mixed.parameters()).runs[0].trace.facts
    assert (facts["param_dtype"], facts["state_dtype"]) == ("bfloat16", "bfloat16")
