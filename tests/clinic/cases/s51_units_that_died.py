"""S51: the loss stands at the logarithm of the number of classes: a hot rate killed all ReLUs."""

import math
from pathlib import Path

import torch
from acting import watching
from casing import Case
from tasks import digits
from torch import Tensor, nn
from torch.nn import functional as F

from optdoctor.findings import Diagnosis

UPDATES, RATE, WIDTH, LAYERS, CLASSES = 300, 1.0, 64, 6, 10


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    task = digits(0)
    parts = [nn.Linear(64, WIDTH), nn.ReLU()]
    for _ in range(LAYERS):
        parts += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    model = nn.Sequential(*parts, nn.Linear(WIDTH, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    with watching(model, optimizer, out=folder) as doctor:
        for step in range(UPDATES):
            inputs, target = task.batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), target)
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
    assert _silent(model[:-1], task.held_out[0]) == 1
    assert not any(p.grad.any() for p in model[:-1].parameters() if p.grad is not None)
    with torch.no_grad():
        loss = F.cross_entropy(model(task.held_out[0]), task.held_out[1])
    assert float(loss) > 0.9 * math.log(CLASSES)
    return doctor.diagnosis


@torch.no_grad()
def _silent(hidden: nn.Module, inputs: Tensor) -> float:
    """Share of the last units that are 0 for every input."""
    return float((hidden(inputs) == 0).all(0).float().mean())


CASE = Case(
    number="S51",
    source="discuss.pytorch.org/t/cross-entropy-loss-is-not-decreasing/43814",
    says="2.308, 2.297, 2.308: weights turned negative, all gradients are 0, the rate is too hot.",
    run=run,
    rules=("dead-units", "learning-rate-absurd", "step-too-large"),
)
