"""Handwritten digits are told apart by a transformer over patches of 2 x 2 pixels."""

from dataclasses import replace

import torch
from setups import Family, Size
from tasks import Task, digits
from torch import Tensor, nn

MEAN, SPREAD = 0.3, 0.4
"""Of a pixel."""


class _Vit(nn.Module):
    def __init__(self, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.patches, self.places = nn.Linear(4, width), nn.Parameter(torch.randn(16, width) / 2)
        block = nn.TransformerEncoderLayer(
            width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        squares = ((pixels - MEAN) / SPREAD).view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
        return self.head(self.norm(self.blocks(self.patches(squares) + self.places)).mean(1))


def build(seed: int, size: Size, batch: int) -> Task:
    task = digits(seed, batch=batch)
    torch.manual_seed(seed)
    model = _Vit(24, 2, 2) if size == "small" else _Vit(48, 4, 2)
    return replace(task, model=model, num_classes=10)


RATES = {
    "sgd": 0.1,
    "adamw": 0.01,
    "nadam": 0.01,
    "rmsprop": 0.005,
    "adafactor": 0.02,
    "lion": 0.003,
    "adamw8bit": 0.01,
    "schedulefree-adamw": 0.01,
}
FAMILY = Family("digits-vit", build, RATES, steps=220, batch=32)
