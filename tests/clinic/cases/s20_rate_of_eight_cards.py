"""A detector with the rate of eight cards on one: its box loss grows from step to step to NaN."""

from pathlib import Path

import torch
from acting import watching
from casing import Case
from networks import layers
from tasks import digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from optdoctor.findings import Diagnosis

RATE, CARDS, WARM, UPDATES = 0.04, 8, 60, 90


class _Detector(nn.Module):
    """One trunk; a head for the class, one for the box."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(layers(64, 128, 128), nn.ReLU())
        self.classes, self.boxes = nn.Linear(128, 10), nn.Linear(128, 4)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(inputs)
        return self.classes(features), self.boxes(features)


def _boxes(inputs: Tensor) -> Tensor:
    """First and last row and column with ink, in pixels."""
    image = inputs.unflatten(1, (8, 8)) > 0.3
    edges = []
    for axis in (1, 2):
        ink = image.any(dim=axis).float()
        edges += [ink.argmax(1), 7 - ink.flip(1).argmax(1)]
    return torch.stack(edges, 1).float()


def run(folder: Path) -> Diagnosis:
    task = digits(0, batch=16)
    model = _Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=CARDS * RATE, momentum=0.9)
    warm = LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / WARM))
    boxes = []
    with watching(model, optimizer) as doctor:
        for update in range(UPDATES):
            inputs, target = task.batch(update)
            classes, places = model(inputs)
            box = F.mse_loss(places, _boxes(inputs))
            loss = F.cross_entropy(classes, target) + box
            optimizer.zero_grad()
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
            warm.step()
            boxes.append(float(box))
    finite = [b for b in boxes if b < float("inf")]
    assert len(finite) < UPDATES, "it came to NaN"
    assert finite[-1] > 100 * finite[-4], "by growth"
    return doctor.diagnosis


CASE = Case(
    number="S20",
    source="facebookresearch/detectron2#508",
    says="The loss is NaN within a few tens of updates: the rate is that of eight times the batch.",
    run=run,
    rules=("step-too-large", "learning-rate-absurd"),
)
