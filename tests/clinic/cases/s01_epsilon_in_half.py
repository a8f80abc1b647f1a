"""Adam on weights that are float16 throughout: NaN after the first step."""

from pathlib import Path

import torch
from acting import watching
from casing import Case
from torch import nn
from torch.nn import functional as F

from optdoctor.findings import Diagnosis

WORDS, USED, UPDATES = 50, 30, 40


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)).half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8)
    assert torch.tensor(1e-8, dtype=torch.float16) == 0
    with watching(model, optimizer) as doctor:
        for update in range(UPDATES):
            words = torch.randint(USED, (32,))
            loss = F.cross_entropy(model(words).float(), (words + 1) % USED)
            optimizer.zero_grad()
            loss.backward()
            if update == 0:
                assert all(p.grad.isfinite().all() for p in model.parameters())
            doctor.log(loss=loss)
            optimizer.step()
            if update == 0:
                assert not all(p.isfinite().all() for p in model.parameters())
    return doctor.diagnosis


CASE = Case(
    number="S01",
    source="pytorch/pytorch#147437",
    says="Weights in float16 are NaN after one step: epsilon is 0 there, as is much of v.",
    run=run,
    rules=("epsilon-below-precision",),
)
