"""Plants a fault in one of 24 layers and asks whether the channel that shows it names that layer.

    python scripts/plant_faults.py [--plants 200] [--fault NAME] [--first 0]

Each plant is another network: transformer or residual blocks of random widths, with or without
biases, two kinds of initial weights, AdamW or SGD at a random rate, 25 updates on real text. It is
hit where the first tensor of `Trace.worst` at the last sample belongs to the planted layer. Without
--fault the plants take the faults in turn. Exit code 1 where fewer than 95 % are hit.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

import optdoctor
from optdoctor.trace import Trace

DEPTH = 24
STEPS, INTERVAL = 25, 8
BATCH, CONTEXT, BYTES = 16, 8, 128
FACTOR = 30
"""By which a rate or an initial weight is too large."""
REQUIRED = 0.95


@dataclass(frozen=True)
class Sign:
    """What shows a fault."""

    channel: str
    smallest: bool = False
    """Whether the fault makes it small."""
    beside_peers: bool = False
    """Whether it is taken relative to the same tensor of the other layers."""
    matrices: bool = False
    """Whether it is looked for among matrices only."""

    def worst(self, trace: Trace) -> tuple[str, ...]:
        """Names of tensors, the oddest first, at the last sample."""
        values = np.asarray(trace.series[self.channel].values[-1], np.float64)
        if self.beside_peers:
            values = trace.beside_peers(values)
        among = np.array([len(t.shape) > 1 or not self.matrices for t in trace.tensors], bool)
        return trace.worst(-values if self.smallest else values, among)


SIGNS: Mapping[str, Sign] = {
    "frozen": Sign("update_rms", smallest=True),
    "rate x30": Sign("update_rms", beside_peers=True),
    "exploded init": Sign("param_rms", beside_peers=True, matrices=True),
    "underflowing state": Sign("moment2_zero"),
}
"""One for each fault, the same for all plants."""


@dataclass(frozen=True)
class Plant:
    """One training with one fault."""

    seed: int
    fault: str
    how: str
    """By which mechanism it was planted, and into which kind of training."""
    layer: str
    trace: Trace

    @property
    def first(self) -> str:
        """The tensor that stands first."""
        return next(iter(SIGNS[self.fault].worst(self.trace)), "")

    @property
    def hit(self) -> bool:
        """Whether it is one of the planted layer."""
        return self.first.startswith(f"{self.layer}.")


# Networks


class Attention(nn.Module):
    """Causal attention of two heads behind a norm."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(rows, length, 3, 2, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    """Residual: attention where the network has any, then two linear maps behind a norm."""

    def __init__(self, width: int, inner: int, attention: bool, bias: bool) -> None:
        super().__init__()
        self.attention = Attention(width, bias) if attention else None
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, inner, bias), nn.GELU(), nn.Linear(inner, width, bias)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(self.norm.weight.dtype)
        if self.attention is not None:
            y = y + self.attention(y)
        return (y + self.mlp(self.norm(y))).float()


class Net(nn.Module):
    """Embeddings of bytes and places, 24 blocks, norm and head."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        width, attention = random.choice((16, 24, 32, 48)), random.random() < 0.4
        bias = random.random() < 0.7
        inner = [random.choice((1, 2, 3, 4)) * width for _ in range(DEPTH)]
        self.tokens, self.places = nn.Embedding(BYTES, width), nn.Embedding(CONTEXT, width)
        self.layers = nn.ModuleList(Block(width, n, attention, bias) for n in inner)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)
        if random.random() < 0.5:  # as GPT-2 begins; else as torch does
            self.apply(_small_normal)

    def forward(self, words: Tensor) -> Tensor:
        x = self.tokens(words) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def _small_normal(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


# Faults: each changes the layer, returns the options of its parameter group and says how.

Options = dict[str, Any]


def freeze(layer: nn.Module, random: Random, rate: float) -> tuple[Options, str]:
    how = random.choice(("rate 0", "requires_grad", "no gradient"))
    if how == "requires_grad":
        layer.requires_grad_(False)
    if how == "no gradient":
        for parameter in layer.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    return ({"lr": 0.0} if how == "rate 0" else {}), how


def speed(layer: nn.Module, random: Random, rate: float) -> tuple[Options, str]:
    return {"lr": FACTOR * rate}, "group"


@torch.no_grad()
def explode(layer: nn.Module, random: Random, rate: float) -> tuple[Options, str]:
    how = random.choice(("all tensors", "matrices", "one matrix"))
    matrices = [p for p in layer.parameters() if p.dim() > 1]
    one = random.choice(matrices)
    for parameter in layer.parameters():
        if how == "all tensors" or parameter is one or (how == "matrices" and parameter.dim() > 1):
            parameter.mul_(FACTOR)
    return {}, how


def underflow(layer: nn.Module, random: Random, rate: float) -> tuple[Options, str]:
    """Squares of gradients below what the state holds; epsilon keeps float16 from breaking."""
    how = random.choice(("float16", "tiny gradients"))
    if how == "float16":
        layer.half()
        return {"eps": 1e-4}, how
    scale = 10 ** random.uniform(-24, -22)
    for parameter in layer.parameters():
        parameter.register_hook(lambda gradient: gradient * scale)
    return {}, how


PLANTING: Mapping[str, Callable[[nn.Module, Random, float], tuple[Options, str]]] = {
    "frozen": freeze,
    "rate x30": speed,
    "exploded init": explode,
    "underflowing state": underflow,
}


# Trainings


def plant(fault: str, seed: int) -> Plant:
    """Plants the fault in a random layer of a random network and trains it under the doctor."""
    torch.manual_seed(seed)
    random = Random(seed)
    model, number = Net(random), random.randrange(DEPTH)
    layer = model.layers[number]
    adam = fault == "underflowing state" or random.random() < 0.6
    rate = 10 ** (random.uniform(-3.5, -2.3) if adam else random.uniform(-3, -1.5))
    decay = random.choice((0, 0.01))
    options, how = PLANTING[fault](layer, random, rate)
    own = {id(parameter) for parameter in layer.parameters()}
    others = [p for p in model.parameters() if id(p) not in own]
    groups = [{"params": others}, {"params": list(layer.parameters()), **options}]
    optimizer: Optimizer = (
        AdamW(groups, lr=rate, weight_decay=decay)
        if adam
        else SGD(groups, lr=rate, momentum=0.9, weight_decay=decay)
    )
    kind = f"{'AdamW' if adam else 'SGD'}, rate {rate:.1e}, {how}"
    return Plant(seed, fault, kind, f"layers.{number}", _train(model, optimizer, seed))


def _train(model: nn.Module, optimizer: Optimizer, seed: int) -> Trace:
    generator = torch.Generator().manual_seed(seed)
    with optdoctor.watch(model, optimizer, out=None, sinks=(), interval=INTERVAL) as doctor:
        for _ in range(STEPS):
            at = torch.randint(len(_text()) - CONTEXT - 1, (BATCH, 1), generator=generator)
            words = _text()[at + torch.arange(CONTEXT + 1)]
            optimizer.zero_grad()
            output = model(words[:, :-1])
            F.cross_entropy(output.flatten(0, 1), words[:, 1:].flatten()).backward()
            optimizer.step()
    return doctor.runs[0].trace


@cache
def _text() -> Tensor:
    return torch.tensor(list("".join(topics.values())[:100_000].encode("ascii", "replace")))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--plants", type=int, default=200)
    parser.add_argument("--fault", choices=SIGNS)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    faults = [arguments.fault] if arguments.fault else list(SIGNS)
    hits: dict[str, list[bool]] = {fault: [] for fault in faults}
    for i in range(arguments.plants):
        one = plant(faults[i % len(faults)], arguments.first + i)
        hits[one.fault].append(one.hit)
        if not one.hit:
            print(f"missed: seed {one.seed}, {one.fault}, {one.how}: {one.layer}, not {one.first}")
    for fault, several in hits.items():
        if several:
            share = sum(several) / len(several)
            shown = SIGNS[fault]
            print(f"{fault}: {sum(several)} of {len(several)} ({share:.1%}) by {shown}")
    return int(any(sum(s) < REQUIRED * len(s) for s in hits.values()))


if __name__ == "__main__":
    sys.exit(main())
