"""S29: spikes at a beta2 of 0.95; what cured them was to normalize queries and keys."""

from pathlib import Path
from typing import Any

import torch
from acting import watching
from casing import Case
from torch import Tensor, nn
from torch.nn import functional as F

from optdoctor.findings import Diagnosis

UPDATES, WARMUP, RATE, BETAS, CLIP = 320, 40, 0.02, (0.9, 0.95), 1.0
LETTERS, HALF, BATCH, WIDTH, HEADS, BLOCKS = 32, 8, 16, 32, 2, 2


class _Block(nn.Module):
    def __init__(self, *, is_normed: bool) -> None:
        super().__init__()
        self.is_normed, self.largest = is_normed, 0.0
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, HEADS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if self.is_normed:
            size = query.shape[-1] ** 0.5
            query, key = F.normalize(query, dim=-1) * size, F.normalize(key, dim=-1) * 2 * size
        logits = query.detach() @ key.detach().transpose(-1, -2) / query.shape[-1] ** 0.5
        self.largest = float(logits.abs().max())
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norm2(x))


class _Model(nn.Module):
    def __init__(self, *, is_normed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(2 * HALF - 1, WIDTH)
        self.blocks = nn.Sequential(*(_Block(is_normed=is_normed) for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(words) + self.places.weight)))


def run(folder: Path) -> Diagnosis:
    model = _Model(is_normed=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS)
    with watching(model, optimizer, out=folder, attention=True) as doctor:
        sick = _train(model, optimizer, doctor.log)
    other = _Model(is_normed=True)
    cured = _train(other, torch.optim.AdamW(other.parameters(), lr=RATE, betas=BETAS))
    assert max(b.largest for b in model.blocks) > 50 > 5 * max(b.largest for b in other.blocks)
    half = UPDATES // 2
    assert max(sick[half:]) > 20 * sorted(sick[half:])[half // 2]
    assert max(cured[half:]) < 0.1 * max(sick[half:])
    return doctor.diagnosis


def _train(
    model: _Model, optimizer: torch.optim.Optimizer, log: Any = lambda loss: None
) -> list[float]:
    """Letters are repeated once, and the second time they are to be foretold."""
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / WARMUP, total_iters=WARMUP)
    draws, losses = torch.Generator().manual_seed(0), []
    for _ in range(UPDATES):
        once = torch.randint(LETTERS, (BATCH, HALF), generator=draws)
        words = torch.cat([once, once], 1)
        optimizer.zero_grad()
        told = model(words[:, :-1])[:, HALF - 1 :]
        loss = F.cross_entropy(told.flatten(0, 1), once.flatten())
        loss.backward()
        log(loss=loss)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        warmup.step()
        losses.append(float(loss.detach()))
    return losses


CASE = Case(
    number="S29",
    source="marin-community/marin#1368, #1390, #1395, allenai/OLMo#245, #266",
    says="Spikes for which beta2 and clipping did nothing: attention's logits had grown large.",
    run=run,
    rules=("attention-saturated",),
    first=False,  # a gradient outlier may be seen before
)
