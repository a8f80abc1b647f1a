"""After long good training every update overflows, and the loss scale halves to its end."""

from pathlib import Path

import torch
from acting import examined
from casing import Case
from course import Course, course
from setups import Setup
from torch import nn

from optdoctor.findings import Diagnosis

BEGIN, LAST_SCALE = 150, 1.0


def _stretch(run: Course, update: int) -> None:
    """The same function, by activations that float16 cannot hold."""
    if update == BEGIN:
        linear = [m for m in run.model.modules() if isinstance(m, nn.Linear)]
        with torch.no_grad():
            for parameter in linear[0].parameters():
                parameter.mul_(1e6)
            linear[1].weight.mul_(1e-6)


def _note(run: Course, update: int) -> None:
    run.notes.setdefault("scales", []).append(run.scaler.get_scale())


def run(folder: Path) -> Diagnosis:
    made = course(Setup("digits-mlp", "adamw", precision="float16-scaler"))
    made.before_backward.append(_stretch)
    made.after_step.append(_note)
    made.steps = BEGIN + 16  # the framework ends the run at its least scale
    diagnosis = examined(made, folder)
    scales = made.notes["scales"]
    assert scales[BEGIN - 1] == 2.0**16
    assert scales[-1] <= LAST_SCALE
    return diagnosis


CASE = Case(
    number="S08",
    source="ymcui/Chinese-LLaMA-Alpaca#534",
    says="The loss scale halves at each update until it is at its minimum: float16 cannot hold"
    " what the network computes.",
    run=run,
    rules=("loss-scale-collapse", "nan-pulse"),
)
