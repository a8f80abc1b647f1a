"""A scaler that starts far too high skips a few updates, and is silent afterwards: no fault."""

from pathlib import Path

import torch
from acting import examined
from casing import Case
from course import Course, course
from setups import Setup

from optdoctor.findings import Diagnosis


def _note(run: Course, update: int) -> None:
    run.notes.setdefault("scales", []).append(run.scaler.get_scale())


def run(folder: Path) -> Diagnosis:
    made = course(Setup("digits-mlp", "adamw", precision="float16-scaler"))
    made.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28)
    made.after_step.append(_note)
    diagnosis = examined(made, folder)
    scales = made.notes["scales"]
    assert 2.0**17 < scales[10] < 2.0**25
    assert scales[-1] >= scales[20] / 4, "and then once or twice, as gradients grow"
    return diagnosis


CASE = Case(
    number="S08b",
    source="deepspeedai/DeepSpeed#931",
    says="The first few updates are skipped while the loss scale is searched for: normal.",
    run=run,
)
