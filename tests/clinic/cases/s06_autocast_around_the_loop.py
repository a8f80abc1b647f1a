"""Autocast around the whole loop: it goes on computing with the bfloat16 copies of step 1."""

from pathlib import Path

import torch
from acting import watching
from casing import Case
from course import course
from setups import Setup

from optdoctor.findings import Diagnosis

UPDATES = 220


def run(folder: Path) -> Diagnosis:
    made = course(Setup("char-gpt", "adamw", rate_factor=0.5))
    (optimizer,) = made.optimizers
    losses = []
    inputs, target = made.batch(0)
    with (
        watching(made.model, optimizer) as doctor,
        torch.autocast("cpu", torch.bfloat16),
    ):
        for update in range(UPDATES):
            batch, labels = made.batch(update)
            loss = made.loss(made.model(batch).float(), labels)
            optimizer.zero_grad()
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
            losses.append(float(loss))
        stale = made.loss(made.model(inputs).float(), target)
    with torch.autocast("cpu", torch.bfloat16):
        fresh = made.loss(made.model(inputs).float(), target)
    assert abs(float(stale) - float(fresh)) > 0.1, "the copies are not those of the weights"
    assert sum(losses[-10:]) / 10 > 3.3, "a sound run comes to 2.6"
    return doctor.diagnosis


CASE = Case(
    number="S06",
    source="pytorch/pytorch#120376",
    says="Learning is clearly worse under autocast: backward pass and step lie inside it too.",
    run=run,
    rules=("weights-cast-once",),
)
