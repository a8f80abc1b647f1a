"""Tumours are told apart from thirty columns."""

from dataclasses import replace

import torch
from networks import layers
from setups import Family, Size
from tasks import Task, tumours


def build(seed: int, size: Size, batch: int) -> Task:
    task = tumours(seed, batch=batch)
    torch.manual_seed(seed)
    model = layers(30, 24 if size == "small" else 48, 1, dropout=0.2)
    return replace(task, model=model, num_classes=2)


RATES = {
    "sgd": 0.01,
    "sgd-plain": 0.2,
    "adamw": 0.003,
    "adam": 0.003,
    "rmsprop": 0.002,
    "adafactor": 0.02,
    "lion": 0.0009,
    "schedulefree-adamw": 0.003,
}
FAMILY = Family("tabular-classification", build, RATES, steps=250, batch=32)
