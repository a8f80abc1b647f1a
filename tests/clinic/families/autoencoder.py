"""Pictures of digits are squeezed through a few units and drawn again."""

from dataclasses import replace

import torch
from setups import Family, Size
from tasks import Task, pixels
from torch import Tensor, nn


def _loss(output: Tensor, target: Tensor) -> Tensor:
    """Squared error of a picture: the sum over its pixels."""
    return (output - target).square().sum(1).mean()


def build(seed: int, size: Size, batch: int) -> Task:
    task = pixels(seed, batch=batch)
    torch.manual_seed(seed)
    wide, code = (64, 12) if size == "small" else (160, 16)
    model = nn.Sequential(
        nn.Linear(64, wide),
        nn.GELU(),
        nn.Linear(wide, code),
        nn.Linear(code, wide),
        nn.GELU(),
        nn.Linear(wide, 64),
        nn.Sigmoid(),
    )
    return replace(task, model=model, loss=_loss)


RATES = {
    "sgd": 0.1,
    "adamw": 0.03,
    "adam": 0.03,
    "nadam": 0.03,
    "rmsprop": 0.005,
    "adafactor": 0.2,
    "lion": 0.003,
    "muon": 0.02,
    "adamw8bit": 0.03,
    "schedulefree-adamw": 0.03,
}
FAMILY = Family("autoencoder", build, RATES, steps=300, batch=64)
