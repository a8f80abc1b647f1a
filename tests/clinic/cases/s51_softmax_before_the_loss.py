"""S51, the other cause that was named: a softmax at the end of the model, before cross-entropy."""

import math
from pathlib import Path

import torch
from acting import watching
from casing import Case
from tasks import digits
from torch import nn
from torch.nn import functional as F

from optdoctor.findings import Diagnosis

UPDATES, RATE, CLASSES = 400, 3e-3, 10


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    task = digits(0)
    model = nn.Sequential(task.model, nn.Softmax(-1))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    losses = []
    with watching(model, optimizer, out=folder) as doctor:
        for step in range(UPDATES):
            inputs, target = task.batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), target)
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
            losses.append(float(loss.detach()))
    floor = math.log(1 + (CLASSES - 1) / math.e)
    assert floor <= min(losses) < 1.01 * floor
    return doctor.diagnosis


CASE = Case(
    number="S51b",
    source="discuss.pytorch.org/t/cross-entropy-loss-is-not-decreasing/43814",
    says="The loss of a classifier of ten cannot fall below 1.46: its outputs are probabilities.",
    run=run,
    rules=("softmax-applied-twice",),
)
