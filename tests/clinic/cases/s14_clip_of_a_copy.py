"""Clipping is on, and clips a copy: spikes of the gradient reach the weights."""

from pathlib import Path

import torch
from acting import examined
from casing import Case
from course import Course, course
from setups import Setup
from tasks import Batch
from torch import nn

from optdoctor.findings import Diagnosis

CLIP, EVERY = 1.0, 50


def _clip_copies(run: Course, update: int) -> None:
    copies = [p.detach().clone() for p in run.model.parameters()]
    for copy, parameter in zip(copies, run.model.parameters(), strict=True):
        copy.grad = parameter.grad.clone()
    nn.utils.clip_grad_norm_(copies, CLIP)
    used = nn.utils.get_total_norm([p.grad for p in run.model.parameters()])
    run.notes.setdefault("used", []).append(float(used))


def run(folder: Path) -> Diagnosis:
    made = course(Setup("digits-mlp", "adamw"))
    made.facts["max_grad_norm"] = CLIP
    sound = made.batch

    def with_bad_ones(i: int) -> Batch:
        inputs, target = sound(i)
        if i % EVERY != EVERY - 1:
            return inputs, target
        mixed = torch.randperm(len(target), generator=torch.Generator().manual_seed(i))
        return 10 * inputs, target[mixed]

    made.batch = with_bad_ones
    made.before_step.append(_clip_copies)
    diagnosis = examined(made, folder)
    assert max(made.notes["used"]) > 20 * CLIP
    return diagnosis


CASE = Case(
    number="S14",
    source="deepspeedai/DeepSpeed#3790",
    says="Gradient spikes pass although clipping is set to 1: what is clipped is not what is used.",
    run=run,
    rules=("gradient-outlier", "bad-batch", "loss-spike"),
    first=False,
)
