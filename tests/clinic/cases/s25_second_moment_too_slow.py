"""Spikes with beta2 0.999 and none with 0.95: gradients come after a calm that v remembers."""

from pathlib import Path

import torch
from acting import watching
from casing import Case
from tasks import text

from optdoctor.findings import Diagnosis

RATE, CALM, BURST, ROUNDS = 5e-3, 300, 15, 2


def _train(beta2: float) -> tuple[Diagnosis, float, float]:
    """The diagnosis, the longest step after the first calm, in rates, and the highest loss."""
    task = text(0, batch=64)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=RATE, betas=(0.9, beta2))
    losses, steps = [], []
    with watching(task.model, optimizer) as doctor:
        for update in range(ROUNDS * (CALM + BURST)):
            inputs, target = task.batch(update)
            loss = task.loss(task.model(inputs), target)
            # As where a sum is divided by the room for tokens: few are there, and then many.
            weight = 1.0 if update % (CALM + BURST) >= CALM else 0.01
            optimizer.zero_grad()
            (weight * loss).backward()
            doctor.log(loss=loss)
            before = task.model[2].weight.detach().clone()
            optimizer.step()
            moved = (task.model[2].weight.detach() - before).square().mean().sqrt()
            losses.append(float(loss))
            steps.append(float(moved) / RATE)
    later = range(CALM, len(losses) - 8)
    highest = max(sum(losses[i : i + 8]) / 8 for i in later)
    return doctor.diagnosis, max(steps[CALM:]), highest


def run(folder: Path) -> Diagnosis:
    diagnosis, longest, highest = _train(0.999)
    _, short, calm = _train(0.95)
    assert longest > 1.3
    assert short < 0.7
    assert highest > calm + 0.3
    return diagnosis


CASE = Case(
    number="S25",
    source="AI-Hypercomputer/maxtext#17",
    says="Spikes come back with beta2 0.999 and are gone with 0.95: v is far behind the gradients.",
    run=run,
    rules=("second-moment-stale",),
)
