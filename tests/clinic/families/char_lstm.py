"""An LSTM names the next byte of a text."""

from dataclasses import replace

import torch
from corpora import shorter
from networks import BYTES, Recurrent
from setups import Family, Size
from tasks import Task, text

CONTEXT = 24


def build(seed: int, size: Size, batch: int) -> Task:
    task = shorter(text(seed, model="lstm", batch=batch, context=CONTEXT))
    torch.manual_seed(seed)
    model = Recurrent(CONTEXT, "lstm", 64 if size == "small" else 96)
    return replace(task, model=model, num_classes=BYTES)


PRECISIONS = ("float32", "bfloat16-autocast")
"""An LSTM in float16 does not run on every processor."""
RATES = {
    "sgd": 3,
    "sgd-plain": 5,
    "adamw": 0.05,
    "adam": 0.05,
    "nadam": 0.05,
    "rmsprop": 0.02,
    "adafactor": 0.2,
    "lion": 0.01,
    "adamw8bit": 0.05,
}
FAMILY = Family("char-lstm", build, RATES, steps=250, batch=16, precisions=PRECISIONS)
