"""Handwritten digits are told apart by convolutions with batch normalisation."""

from dataclasses import replace

import torch
from setups import Family, Size
from tasks import Task, digits
from torch import nn


def _network(width: int, middle: int) -> nn.Sequential:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *block(1, width),
        nn.MaxPool2d(2),
        *block(width, 2 * width),
        *[part for _ in range(middle) for part in block(2 * width, 2 * width)],
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, 10),
    )


def build(seed: int, size: Size, batch: int) -> Task:
    task = digits(seed, batch=batch)
    torch.manual_seed(seed)
    model = _network(8, 0) if size == "small" else _network(12, 1)
    return replace(task, model=model, num_classes=10)


RATES = {
    "sgd": 0.03,
    "sgd-plain": 0.2,
    "adamw": 0.02,
    "adam": 0.02,
    "nadam": 0.006,
    "rmsprop": 0.005,
    "adafactor": 0.06,
    "lion": 0.003,
    "adamw8bit": 0.02,
    "schedulefree-adamw": 0.02,
    "prodigy": 1,
}
FAMILY = Family("digits-cnn", build, RATES, steps=300, batch=32)
