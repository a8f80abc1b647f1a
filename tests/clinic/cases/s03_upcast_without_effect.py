"""Mixed precision is on, and the weights were never cast to float32: the cast went to a name."""

from pathlib import Path

import torch
from acting import watching
from casing import Case
from course import course
from setups import Setup

from optdoctor.findings import Diagnosis

UPDATES = 220


def run(folder: Path) -> Diagnosis:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    made = course(Setup("char-gpt", "adamw"))
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    model = made.model.to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter = parameter.to(torch.float32)  # the fault: only a name is bound
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    with watching(model, optimizer) as doctor:
        for update in range(UPDATES):
            inputs, target = made.batch(update)
            loss = made.loss(model(inputs).float(), target)
            optimizer.zero_grad()
            accelerator.backward(loss)
            doctor.log(loss=loss)
            optimizer.step()
    held = [p.dtype for group in optimizer.param_groups for p in group["params"]]
    assert accelerator.mixed_precision == "bf16"
    assert {*held} == {torch.bfloat16}
    AcceleratorState._reset_state(reset_partial_state=True)
    return doctor.diagnosis


CASE = Case(
    number="S03",
    source="huggingface/accelerate#3979",
    says="Mixed precision is declared, but the optimizer holds bfloat16: the cast had no effect.",
    run=run,
    rules=("update-lost-to-rounding", "half-precision-state", "second-moment-stalled"),
)
