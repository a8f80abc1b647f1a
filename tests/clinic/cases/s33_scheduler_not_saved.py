"""S33: a checkpoint without the scheduler's state; warm-up and decay begin again at a resume."""

import copy
from pathlib import Path
from typing import Any

import torch
from acting import in_steps
from casing import Case
from networks import Gpt
from tasks import text
from torch import nn
from transformers import get_cosine_schedule_with_warmup

from optdoctor.findings import Diagnosis

UPDATES, RESUME, WARMUP, RATE, CONTEXT = 240, 160, 24, 1e-2, 16


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    task = text(0, model="gpt", batch=8, context=CONTEXT)
    model, optimizer, scheduler = _process(task.model)
    in_steps(model, optimizer, task, range(RESUME), folder, scheduler)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    before = optimizer.param_groups[0]["lr"]

    model, optimizer, scheduler = _process(Gpt(CONTEXT))
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    steps = range(RESUME, UPDATES)
    diagnosis = in_steps(model, optimizer, task, steps, folder, scheduler)
    assert scheduler.last_epoch == UPDATES - RESUME
    assert optimizer.param_groups[0]["lr"] > 2 * before
    counted = {int(state["step"]) for state in optimizer.state.values()}
    assert counted == {UPDATES}
    return diagnosis


def _process(model: nn.Module) -> tuple[nn.Module, Any, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    return model, optimizer, get_cosine_schedule_with_warmup(optimizer, WARMUP, UPDATES)


CASE = Case(
    number="S33",
    source=(
        "PolymathicAI/the_well#63, huggingface/transformers#25865, "
        "Lightning-AI/pytorch-lightning#11188"
    ),
    says="After a resume the warm-up starts again: the scheduler's state was not saved.",
    run=run,
    rules=("learning-rate-restarted",),
)
