"""The schedule was planned for a small part of the updates, and is 0 for the rest."""

from pathlib import Path

import torch
from acting import examined
from casing import Case
from course import Course, course
from setups import Setup

from optdoctor.findings import Diagnosis

PLANNED, UPDATES = 8, 300


def _note_weights(run: Course, update: int) -> None:
    if update == PLANNED + 5:
        run.notes["then"] = [p.detach().clone() for p in run.model.parameters()]


def run(folder: Path) -> Diagnosis:
    made = course(Setup("masked-lm", "adamw"))
    made.steps = made.facts["total_steps"] = UPDATES
    made.schedule = lambda update, total: max(0.0, 1 - update / PLANNED)
    made.facts["schedule"] = "linear"
    made.after_step.append(_note_weights)
    diagnosis = examined(made, folder)
    now = list(made.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(made.notes["then"], now, strict=True))
    return diagnosis


CASE = Case(
    number="S17",
    source="determined-ai/determined#711",
    says="Nothing is learnt after the first updates: the linear schedule has come to 0 long ago.",
    run=run,
    rules=("learning-rate-spent",),
)
