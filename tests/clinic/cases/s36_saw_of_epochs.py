"""S36: within each epoch the loss rises a little, and falls where the next one begins."""

from pathlib import Path

import torch
from acting import BATCH, in_epochs
from casing import Case
from torch import nn

from optdoctor.findings import Diagnosis

EXAMPLES, EPOCHS, COLUMNS, CLASSES, RATE = 1024, 14, 20, 2, 3e-3
UPDATES, QUARTER = EXAMPLES // BATCH, EXAMPLES // BATCH // 4


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    inputs, target = torch.randn(EXAMPLES, COLUMNS), torch.randint(CLASSES, (EXAMPLES,))
    model = nn.Sequential(nn.Linear(COLUMNS, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.95))
    losses, diagnosis = in_epochs(folder, model, optimizer, (inputs, target), EPOCHS)
    epochs = torch.tensor(losses).view(EPOCHS, UPDATES)[1:]
    rises = epochs[:, -QUARTER:].mean(1) > epochs[:, :QUARTER].mean(1)
    assert int(rises.sum()) >= EPOCHS - 3
    return diagnosis


CASE = Case(
    number="S36",
    source="arXiv 2410.10056, mlfoundations/open_clip#101, #822",
    says="A saw as long as the epoch: sampling without replacement makes it, and it does no harm.",
    run=run,
)
