"""S35: the loss stands still within an epoch and falls at its end: the examples are remembered."""

from pathlib import Path

import torch
from acting import BATCH, in_epochs
from casing import Case
from torch import nn

from optdoctor.findings import Diagnosis

EXAMPLES, EPOCHS, COLUMNS, CLASSES, RATE = 1024, 3, 1024, 10, 1e-3
UPDATES = EXAMPLES // BATCH


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    inputs, target = torch.randn(EXAMPLES, COLUMNS), torch.randint(CLASSES, (EXAMPLES,))
    model = nn.Sequential(nn.Linear(COLUMNS, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses, diagnosis = in_epochs(folder, model, optimizer, (inputs, target), EPOCHS)
    for boundary in range(UPDATES, len(losses), UPDATES):
        before, after = losses[boundary - 16 : boundary], losses[boundary : boundary + 16]
        assert sum(after) < 0.7 * sum(before)
        assert sum(before) > 0.6 * sum(losses[boundary - UPDATES :][:16])
    return diagnosis


CASE = Case(
    number="S35",
    source=(
        "huggingface/transformers#18730, lm-sys/FastChat#2025, tatsu-lab/stanford_alpaca#236, "
        "hiyouga/LlamaFactory#7485"
    ),
    says="Three epochs of fine-tuning make three stairs: usual, where examples are remembered.",
    run=run,
)
