"""A factorisation machine with layers on top (DeepFM) recommends the word that follows another one.

It ranks a word that was written above one that was drawn (BPR). A batch touches few of the rows.
"""

import re
from collections import Counter
from functools import cache
from itertools import pairwise
from pydoc_data.topics import topics

import torch
from corpora import generated
from setups import Family, Size
from tasks import Batch, Task
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, HELD_OUT = 2_000, 1_024
FIELDS = 4
"""The document, the word before, the word that may follow, and how that one ends."""


class _DeepFm(nn.Module):
    """[B, 2, FIELDS] numbers of rows, of a written word and a drawn one -> [B, 2] scores."""

    def __init__(self, rows: int, width: int, hidden: int) -> None:
        super().__init__()
        self.weights, self.factors = nn.Embedding(rows, 1), nn.Embedding(rows, width)
        nn.init.zeros_(self.weights.weight)
        nn.init.normal_(self.factors.weight, std=0.1)
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * width, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1),
        )  # fmt: skip

    def forward(self, rows: Tensor) -> Tensor:
        factors = self.factors(rows)
        pairs = factors.sum(2).square() - factors.square().sum(2)  # twice the product of each two
        linear, deep = self.weights(rows).sum((2, 3)), self.deep(factors.flatten(2))[..., 0]
        return linear + pairs.sum(2) / 2 + deep


def _loss(scores: Tensor, target: Tensor) -> Tensor:
    """Of the written word being ranked below the drawn one; `target` is the column of the first."""
    return F.cross_entropy(scores, target)


@cache
def _written() -> tuple[Tensor, Tensor, int]:
    """[N, 3] rows of each document, word before and word; [V] row of each word's end; all rows."""
    texts = [re.findall(r"\w+", text.lower()) for text in topics.values()]
    counted = Counter(word for text in texts for word in text).most_common(VOCABULARY)
    row = {word: i for i, (word, _) in enumerate(counted)}
    ends = sorted({word[-2:] for word in row})
    found = [
        (2 * VOCABULARY + document, VOCABULARY + row[before], row[word])
        for document, text in enumerate(texts)
        for before, word in pairwise(text)
        if before in row and word in row
    ]
    first = 2 * VOCABULARY + len(texts)
    of_word = [first + ends.index(word[-2:]) for word in row]
    return torch.tensor(found), torch.tensor(of_word), first + len(ends)


def build(seed: int, size: Size, batch: int) -> Task:
    written, ends, rows = _written()
    order = torch.randperm(len(written), generator=torch.Generator().manual_seed(7))
    train, other = written[order[HELD_OUT:]], written[order[:HELD_OUT]]

    def beside_drawn(pairs: Tensor, generator: torch.Generator) -> Batch:
        drawn = torch.randint(VOCABULARY, (len(pairs),), generator=generator)
        words = torch.stack([pairs[:, 2], drawn], 1)
        known = pairs[:, None, :2].expand(-1, 2, -1)
        inputs = torch.cat([known, words[..., None], ends[words][..., None]], 2)
        return inputs, torch.zeros(len(pairs), dtype=torch.long)

    def draw(i: int) -> Batch:
        generator = generated(seed, i)
        at = torch.randint(len(train), (batch,), generator=generator)
        return beside_drawn(train[at], generator)

    held_out = beside_drawn(other, torch.Generator().manual_seed(7))
    torch.manual_seed(seed)
    model = _DeepFm(rows, 8, 32) if size == "small" else _DeepFm(rows, 16, 64)
    return Task(model, draw, held_out, _loss)


RATES = {
    "sgd": 3,
    "adamw": 0.03,
    "adam": 0.03,
    "nadam": 0.03,
    "rmsprop": 0.02,
    "adafactor": 0.6,
    "lion": 0.003,
    "adamw8bit": 0.03,
    "schedulefree-adamw": 0.01,
}
FAMILY = Family("recommender", build, RATES, steps=300, batch=128)
