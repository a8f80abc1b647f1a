"""A transformer that names the next byte of a text; its blocks normalise their input."""

from dataclasses import replace

import torch
from corpora import shorter
from networks import BYTES, Gpt
from setups import Family, Size
from tasks import Task, text

CONTEXT = 24


def build(seed: int, size: Size, batch: int) -> Task:
    task = shorter(text(seed, model="gpt", batch=batch, context=CONTEXT))
    torch.manual_seed(seed)
    model = Gpt(CONTEXT) if size == "small" else Gpt(CONTEXT, width=48, heads=4, blocks=3)
    return replace(task, model=model, num_classes=BYTES)


RATES = {
    "sgd": 0.3,
    "adamw": 0.02,
    "adam": 0.02,
    "adafactor": 0.06,
    "lion": 0.003,
    "muon": 0.02,
    "adamw8bit": 0.02,
    "schedulefree-adamw": 0.02,
}
FAMILY = Family("char-gpt", build, RATES, steps=220, batch=8)
