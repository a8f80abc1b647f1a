"""S34: the vocabulary was read out of a set, which has another order in each process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from acting import watching
from casing import Case
from networks import BYTES, Gpt
from torch import Tensor
from torch.nn import functional as F

from optdoctor.findings import Diagnosis

UPDATES, AFTER, RATE, CONTEXT, BATCH = 240, 80, 1e-2, 16, 8
VOCABULARY = "import json; print(json.dumps(list({chr(i) for i in range(128)})))"


def run(folder: Path) -> Diagnosis:
    corpus = "".join(topics.values())[:100_000].encode("ascii", "replace").decode()
    torch.manual_seed(0)
    model = Gpt(CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    first = _encoded(corpus, seed="1")
    losses, _ = _train(model, optimizer, first, range(UPDATES), folder)
    usual = sum(losses[-20:]) / 20

    second = _encoded(corpus, seed="2")
    assert not torch.equal(first, second)
    steps = range(UPDATES, UPDATES + AFTER)
    losses, diagnosis = _train(model, optimizer, second, steps, folder)
    assert losses[0] > 1.5 * usual, "before any update"
    return diagnosis


def _encoded(corpus: str, seed: str) -> Tensor:
    """The text as numbers, by the vocabulary of a process with that seed of its hashes."""
    told = subprocess.run(
        [sys.executable, "-c", VOCABULARY],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        check=True,
    )
    number = {letter: i for i, letter in enumerate(json.loads(told.stdout))}
    return torch.tensor([number[letter] for letter in corpus])


def _train(
    model: Gpt, optimizer: Any, corpus: Tensor, steps: range, folder: Path
) -> tuple[list[float], Diagnosis]:
    losses = []
    with watching(model, optimizer, out=folder) as doctor:
        for step in steps:
            draws = torch.Generator().manual_seed(step)
            at = torch.randint(len(corpus) - CONTEXT, (BATCH, 1), generator=draws)
            window = corpus[at + torch.arange(CONTEXT + 1)]
            optimizer.zero_grad()
            logits = model(window[:, :-1]).reshape(-1, BYTES)
            loss = F.cross_entropy(logits, window[:, 1:].reshape(-1))
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses, doctor.diagnosis


CASE = Case(
    number="S34",
    source="Lightning-AI/pytorch-lightning#4045",
    says="A resumed model is bad before its first step: each process numbers tokens anew.",
    run=run,
    rules=("divergence", "loss-spike"),
)
