"""A plain recurrent network names the next byte of a text."""

from dataclasses import replace

import torch
from corpora import shorter
from networks import BYTES, Recurrent
from setups import Family, Size
from tasks import Task, text

CONTEXT = 24


def build(seed: int, size: Size, batch: int) -> Task:
    task = shorter(text(seed, model="rnn", batch=batch, context=CONTEXT))
    torch.manual_seed(seed)
    model = Recurrent(CONTEXT, "rnn", 64 if size == "small" else 96)
    return replace(task, model=model, num_classes=BYTES)


RATES = {
    "sgd": 0.3,
    "sgd-plain": 2,
    "adamw": 0.02,
    "adam": 0.02,
    "rmsprop": 0.02,
    "adafactor": 0.2,
    "lion": 0.01,
}
FAMILY = Family("char-rnn", build, RATES, steps=250, batch=16)
