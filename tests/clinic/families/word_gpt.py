"""A transformer that names the next word of a text; its blocks normalise their output."""

import torch
from corpora import draws, windows, words
from setups import Family, Size
from tasks import Batch, Task
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, CONTEXT = 400, 16


class _PostNorm(nn.Module):
    def __init__(self, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, words: Tensor) -> Tensor:
        inputs = self.words(words) + self.places.weight
        return self.head(self.blocks(inputs, mask=self.mask.to(inputs.dtype), is_causal=True))


def build(seed: int, size: Size, batch: int) -> Task:
    def made(source: Tensor, generator: torch.Generator, number: int) -> Batch:
        window = windows(source, generator, number, CONTEXT + 1)
        return window[:, :-1], window[:, 1:]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    draw, held_out = draws(made, words(VOCABULARY), seed, batch)
    torch.manual_seed(seed)
    model = _PostNorm(32, 2, 2) if size == "small" else _PostNorm(48, 4, 3)
    return Task(model, draw, held_out, loss, num_classes=VOCABULARY)


RATES = {
    "sgd": 0.1,
    "adamw": 0.01,
    "adam": 0.01,
    "nadam": 0.01,
    "adafactor": 0.06,
    "lion": 0.003,
    "adamw8bit": 0.01,
}
FAMILY = Family("word-gpt", build, RATES, steps=200, batch=16)
