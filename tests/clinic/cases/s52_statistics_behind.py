"""S52: good in train mode, chance in evaluation: the running statistics of batch norm lag."""

from pathlib import Path

import torch
from acting import watching
from casing import Case
from tasks import digits
from torch import nn
from torch.nn import functional as F

from optdoctor.findings import Diagnosis

UPDATES, EVERY, RATE, MOMENTUM = 300, 25, 3e-3, 0.001


def _network() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16, momentum=MOMENTUM),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32, momentum=MOMENTUM),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    task, model = digits(0), _network()
    inputs, target = task.held_out
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    with watching(model, optimizer, out=folder) as doctor:
        for step in range(1, UPDATES + 1):
            pixels, digit = task.batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(pixels), digit)
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
            if step % EVERY == 0:
                model.eval()
                with torch.no_grad():
                    doctor.log(eval_loss=F.cross_entropy(model(inputs), target))
                model.train()
    with torch.no_grad():
        model.eval()
        in_evaluation = _accuracy(model(pixels), digit)
        model.train()
        in_training = _accuracy(model(pixels), digit)
    assert in_training > 0.75 > 1.5 * in_evaluation, "of the same batch"
    return doctor.diagnosis


def _accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((output.argmax(1) == target).float().mean())


CASE = Case(
    number="S52",
    source="pytorch/pytorch#4741, discuss.pytorch.org/t/7146, 7561",
    says="76 % in train mode and 10 % in evaluation: batch norm's statistics are far behind.",
    run=run,
    rules=("batchnorm-statistics-lag",),
)
