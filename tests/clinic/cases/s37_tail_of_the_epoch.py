"""S37: after a resume the sampler skips what was seen in every epoch, and replays only the tail."""

import copy
from pathlib import Path
from typing import Any

import torch
from acting import watching
from casing import Case
from networks import BYTES, Gpt
from tasks import text
from torch import Tensor
from torch.nn import functional as F

from optdoctor.findings import Diagnosis

EXAMPLES, BATCH, RESUME, AFTER, RATE, CONTEXT = 1600, 8, 180, 240, 4e-3, 16
EPOCH = EXAMPLES // BATCH
EVERY = 20


def run(folder: Path) -> Diagnosis:
    words, following = text(0, model="gpt", batch=EXAMPLES, context=CONTEXT).batch(0)
    held_out = text(0, model="gpt", context=CONTEXT).held_out
    torch.manual_seed(0)
    model = Gpt(CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    data = words, following, *held_out
    seen = [i % EPOCH for i in range(RESUME)]
    _train(model, optimizer, data, seen, folder)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    model = Gpt(CONTEXT)
    model.load_state_dict(saved[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    optimizer.load_state_dict(saved[1])
    tail = [RESUME + i % (EPOCH - RESUME) for i in range(AFTER)]
    assert len(set(tail)) == EPOCH - RESUME
    diagnosis = _train(model, optimizer, data, tail, folder)
    of_tail = slice(RESUME * BATCH, None)
    with torch.no_grad():
        replayed = _loss(model, words[of_tail], following[of_tail])
        assert float(replayed) < 0.6 * float(_loss(model, *held_out))
    return diagnosis


def _train(
    model: Gpt, optimizer: Any, data: tuple[Tensor, ...], batches: list[int], folder: Path
) -> Diagnosis:
    words, following, *held_out = data
    with watching(model, optimizer, out=folder) as doctor:
        for i, number in enumerate(batches, 1):
            rows = slice(number * BATCH, (number + 1) * BATCH)
            optimizer.zero_grad()
            loss = _loss(model, words[rows], following[rows])
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
            if i % EVERY == 0:
                with torch.no_grad():
                    doctor.log(eval_loss=_loss(model, *held_out))
    return doctor.diagnosis


def _loss(model: Gpt, words: Tensor, following: Tensor) -> Tensor:
    return F.cross_entropy(model(words).reshape(-1, BYTES), following.reshape(-1))


CASE = Case(
    number="S37",
    source="NVIDIA-NeMo/Megatron-Bridge#4601",
    says="The loss is far too low after a resume: the same tail of the data comes again and again.",
    run=run,
    rules=("bimodal-gap",),
)
