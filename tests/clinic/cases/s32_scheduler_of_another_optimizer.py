"""After a resume the scheduler writes its rates into groups that no optimizer steps any more."""

import copy
from pathlib import Path

import torch
from acting import in_steps
from casing import Case
from networks import Gpt
from tasks import text
from torch.optim.lr_scheduler import CosineAnnealingLR

from optdoctor.findings import Diagnosis

UPDATES, RESUME, RATE, CONTEXT = 240, 60, 1e-2, 16
FACTS = {"schedule": "cosine", "total_steps": UPDATES}


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    task = text(0, model="gpt", batch=8, context=CONTEXT)
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=RATE)
    scheduler = CosineAnnealingLR(optimizer, UPDATES)
    in_steps(task.model, optimizer, task, range(RESUME), folder, scheduler, facts=FACTS)
    states = (task.model.state_dict(), optimizer.state_dict(), scheduler.state_dict())
    of_model, of_optimizer, of_scheduler = copy.deepcopy(states)

    model = Gpt(CONTEXT)
    model.load_state_dict(of_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    scheduler = CosineAnnealingLR(optimizer, UPDATES)
    scheduler.load_state_dict(of_scheduler)
    # A wrapper makes the training an optimizer of its own, and loads the state into that.
    wrapped = torch.optim.AdamW(model.parameters(), lr=RATE)
    wrapped.load_state_dict(of_optimizer)
    rate = wrapped.param_groups[0]["lr"]
    diagnosis = in_steps(
        model, wrapped, task, range(RESUME, UPDATES), folder, scheduler, facts=FACTS
    )
    assert scheduler.get_last_lr()[0] < 1e-3 * RATE
    assert wrapped.param_groups[0]["lr"] == rate > 0.8 * RATE
    return diagnosis


CASE = Case(
    number="S32",
    source="EleutherAI/gpt-neox#1029, deepspeedai/DeepSpeed#4344",
    says="After a resume the rate stays what it was, and the scheduler prints one that falls.",
    run=run,
    rules=("schedule-not-followed",),
)
