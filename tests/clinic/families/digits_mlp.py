"""Handwritten digits are told apart by linear layers."""

from dataclasses import replace

import torch
from networks import layers
from setups import Family, Size
from tasks import Task, digits
from torch import nn


def build(seed: int, size: Size, batch: int) -> Task:
    task = digits(seed, batch=batch)
    torch.manual_seed(seed)
    if size == "small":
        return replace(task, model=layers(64, 64, 10), num_classes=10)
    deep = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), *layers(128, 128, 10, dropout=0.1))
    return replace(task, model=deep, num_classes=10)


RATES = {
    "sgd": 0.1,
    "sgd-plain": 0.5,
    "adamw": 0.005,
    "adam": 0.006,
    "nadam": 0.006,
    "rmsprop": 0.005,
    "adafactor": 0.06,
    "lion": 0.001,
    "muon": 0.02,
    "adamw8bit": 0.006,
    "schedulefree-adamw": 0.002,
    "prodigy": 1,
}
FAMILY = Family("digits-mlp", build, RATES, steps=300, batch=32)
