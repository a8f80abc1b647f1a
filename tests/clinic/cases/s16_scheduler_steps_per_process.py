"""accelerate steps a prepared scheduler once for each of four processes."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from acting import watching
from casing import Case
from course import course
from setups import Setup

from optdoctor.findings import Diagnosis

PROCESSES, UPDATES = 4, 240


def run(folder: Path) -> Diagnosis:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from transformers import get_linear_schedule_with_warmup

    AcceleratorState._reset_state(reset_partial_state=True)
    made = course(Setup("char-gpt", "adamw"))
    planned = get_linear_schedule_with_warmup(made.optimizers[0], UPDATES // 10, UPDATES)
    accelerator = Accelerator(cpu=True)
    model, optimizer, scheduler = accelerator.prepare(made.model, made.optimizers[0], planned)
    # One process that believes it is one of four: what the scheduler asks for.
    of_four = patch(
        "accelerate.scheduler.AcceleratorState", lambda: SimpleNamespace(num_processes=PROCESSES)
    )
    with watching(model, optimizer) as doctor, of_four:
        for update in range(UPDATES):
            inputs, target = made.batch(update)
            loss = made.loss(model(inputs), target)
            optimizer.zero_grad()
            accelerator.backward(loss)
            doctor.log(loss=loss)
            optimizer.step()
            scheduler.step()
    assert planned.last_epoch == PROCESSES * UPDATES
    assert optimizer.param_groups[0]["lr"] == 0
    AcceleratorState._reset_state(reset_partial_state=True)
    return doctor.diagnosis


CASE = Case(
    number="S16",
    source="huggingface/transformers#24088",
    says="The rate is at its end after a quarter of the run: the scheduler steps once a process.",
    run=run,
    rules=("learning-rate-stepped-too-often",),
    missed="a plain loop does not tell how many updates are planned",
)
