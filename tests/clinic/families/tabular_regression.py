"""The progress of a disease is told from ten columns."""

from dataclasses import replace

import torch
from networks import layers
from setups import Family, Size
from tasks import Task, diabetes


def build(seed: int, size: Size, batch: int) -> Task:
    task = diabetes(seed, batch=batch)
    torch.manual_seed(seed)
    return replace(task, model=layers(10, 16 if size == "small" else 32, 1, dropout=0.1))


RATES = {
    "sgd": 0.03,
    "sgd-plain": 0.2,
    "adamw": 0.003,
    "adam": 0.003,
    "nadam": 0.003,
    "rmsprop": 0.002,
    "adafactor": 0.02,
    "lion": 0.009,
    "schedulefree-adamw": 0.003,
}
FAMILY = Family("tabular-regression", build, RATES, steps=200, batch=32)
