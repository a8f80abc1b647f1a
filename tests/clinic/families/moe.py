"""Each byte of a text is sent to one of four experts, which a bias keeps equally busy."""

from dataclasses import replace

import torch
from corpora import shorter
from networks import BYTES, Gpt
from setups import Family, Size
from tasks import Task, text
from torch import Tensor, nn

CONTEXT, EXPERTS, PUSH = 16, 4, 0.01


class _Experts(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
            for _ in range(EXPERTS)
        )
        self.register_buffer("favour", torch.zeros(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        share = self.gate(flat).softmax(1)
        chosen = (share + self.favour).argmax(1)
        if self.training:
            load = torch.bincount(chosen, minlength=EXPERTS) / len(flat)
            self.favour += PUSH * (1 / EXPERTS - load).sign()
        mixed = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            at = torch.nonzero(chosen == number)[:, 0]
            if len(at):
                told = expert(flat[at]) * share[at, number, None]
                mixed = mixed.index_add(0, at, told.to(mixed.dtype))
        return mixed.view_as(x)


def build(seed: int, size: Size, batch: int) -> Task:
    task = shorter(text(seed, model="gpt", batch=batch, context=CONTEXT))
    torch.manual_seed(seed)
    width, hidden = (32, 48) if size == "small" else (48, 96)
    model = Gpt(CONTEXT, width)
    for block in model.blocks:
        block.mlp = _Experts(width, hidden)
    return replace(task, model=model, num_classes=BYTES)


RATES = {
    "sgd": 0.3,
    "adamw": 0.01,
    "adam": 0.01,
    "rmsprop": 0.005,
    "adafactor": 0.2,
    "lion": 0.009,
}
FAMILY = Family("moe", build, RATES, steps=160, batch=8)
