"""Adapters in float16 under a gradient scaler: it refuses to unscale their gradients."""

from pathlib import Path

import pytest
import torch
from acting import watching
from casing import Case
from course import course
from setups import Setup

from optdoctor.findings import Diagnosis


def run(folder: Path) -> Diagnosis:
    made = course(Setup("lora", "adamw"))
    model = made.model.half()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with watching(model, optimizer, scaler=scaler) as doctor:
        inputs, target = made.batch(0)
        with torch.autocast("cpu", torch.float16):
            loss = made.loss(model(inputs).float(), target)
        scaler.scale(loss).backward()
        doctor.log(loss=loss)
        with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
            scaler.unscale_(optimizer)
    return doctor.diagnosis


CASE = Case(
    number="S11",
    source="huggingface/diffusers#6442",
    says="Training ends with an exception at the first unscaling: trained weights are float16.",
    run=run,
    rules=("loss-scaling-of-half-parameters",),
)
