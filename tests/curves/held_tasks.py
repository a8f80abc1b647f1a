"""Tasks of the trainings that are held apart: none of them serves for development."""

import doctest
import logging
import pickle
import re
import statistics
import textwrap
from collections import Counter
from functools import cache
from inspect import getsource

import torch
from networks import BYTES, Gpt, layers
from tasks import HELD_OUT, Batch, Task, digits
from torch import Tensor, nn
from torch.nn import functional as F

from curves.opened_tasks import generated, of, well_read

MODULES = (doctest, logging, pickle, statistics, textwrap)


class _Words(nn.Module):
    """Scores of pairs of words: the first one of a row against each of the others."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.middle, self.near = nn.Embedding(size, 24), nn.Embedding(size, 24)

    def forward(self, words: Tensor) -> Tensor:
        return (self.middle(words[:, :1]) * self.near(words[:, 1:])).sum(2)


def words(seed: int, *, batch: int = 64, size: int = 300, wrong: int = 5) -> Task:
    """Which word stands near another, among words that do not."""
    torch.manual_seed(seed)
    source = _words(size)

    def made(generator: torch.Generator, number: int) -> Batch:
        at = torch.randint(2, len(source) - 2, (number, 1), generator=generator)
        beside = at + torch.randint(1, 3, (number, 1), generator=generator)
        anywhere = torch.randint(len(source), (number, wrong), generator=generator)
        is_near = torch.zeros(number, wrong + 1)
        is_near[:, 0] = 1
        return source[torch.cat([at, beside, anywhere], 1)], is_near

    return of(_Words(size), made, F.binary_cross_entropy_with_logits, seed, batch)


class _Sum(nn.Module):
    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers = nn.Embedding(2 * numbers, 32)
        self.rest = layers(64, 96, numbers)
        self.register_buffer("apart", torch.tensor([0, numbers]))

    def forward(self, pair: Tensor) -> Tensor:
        return self.rest(self.numbers(pair + self.apart).flatten(1))


def modular_sum(seed: int, *, batch: int = 64, numbers: int = 13, zero: bool = False) -> Task:
    """The remainder of a sum."""
    torch.manual_seed(seed)
    model = _Sum(numbers)
    if zero:
        for weight in model.parameters():
            nn.init.zeros_(weight)

    def made(generator: torch.Generator, number: int) -> Batch:
        pair = torch.randint(numbers, (number, 2), generator=generator)
        return pair, pair.sum(1) % numbers

    return of(model, made, F.cross_entropy, seed, batch)


def patches(seed: int, *, batch: int = 24, in_turn: int = 0) -> Task:
    """The middle of a patch of a photograph is filled in from what is around it.

    With `in_turn` there are two photographs, and so many batches of each in turn.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.GELU(), nn.Conv2d(16, 32, 3), nn.GELU(),
        nn.Flatten(), nn.Linear(32 * 9, 48),
    )  # fmt: skip

    def made(which: Tensor, generator: torch.Generator) -> Batch:
        number = len(which)
        row = torch.randint(_photographs().shape[2] - 12, (number, 1, 1), generator=generator)
        column = torch.randint(_photographs().shape[3] - 12, (number, 1, 1), generator=generator)
        side = torch.arange(12)
        patch = (
            _photographs()
            .permute(0, 2, 3, 1)[which[:, None, None], row + side[:, None], column + side]
            .permute(0, 3, 1, 2)
        )
        middle = patch[:, :, 4:8, 4:8].flatten(1)
        patch[:, :, 4:8, 4:8] = 0
        return patch, middle

    def drawn(generator: torch.Generator, number: int) -> Batch:
        return made(torch.randint(2, (number,), generator=generator), generator)

    def turn(i: int) -> Batch:
        return made(torch.full((batch,), i // in_turn % 2), generated(seed, i))

    task = of(model, drawn, F.mse_loss, seed, batch)
    return Task(model, turn if in_turn else task.batch, task.held_out, F.mse_loss)


class _Waves(nn.Module):
    """Sines of places, whose frequencies are drawn once."""

    def __init__(self, waves: int) -> None:
        super().__init__()
        self.register_buffer("waves", 6 * torch.randn(2, waves))
        self.rest = layers(2 * waves, 48, 3)

    def forward(self, place: Tensor) -> Tensor:
        angle = place @ self.waves
        return self.rest(torch.cat([angle.sin(), angle.cos()], 1))


def coordinates(seed: int, *, batch: int = 128, waves: int = 24) -> Task:
    """The colour of a photograph at a place."""
    torch.manual_seed(seed)
    photograph = _photographs()[seed % 2, :, ::4, ::4]

    def made(generator: torch.Generator, number: int) -> Batch:
        place = torch.rand(number, 2, generator=generator)
        size = torch.tensor(photograph.shape[1:])
        row, column = (place * size).long().T
        return 2 * place - 1, photograph[:, row, column].T

    return of(_Waves(waves), made, F.mse_loss, seed, batch)


def friedman(seed: int, *, examples: int = 1500) -> Task:
    """Friedman's function of five columns among ten, with noise; all examples are the batch."""
    from sklearn.datasets import make_friedman1

    torch.manual_seed(seed)
    inputs, target = make_friedman1(examples + HELD_OUT, noise=1.0, random_state=seed)
    rows = torch.tensor(2 * inputs - 1, dtype=torch.float32)
    answers = torch.tensor((target - 14) / 5, dtype=torch.float32)[:, None]
    learnt, rest = (rows[:examples], answers[:examples]), (rows[examples:], answers[examples:])
    return Task(layers(10, 12, 1), lambda i: learnt, rest, F.huber_loss)


@cache
def _wise() -> nn.Module:
    task = digits(0, width=96)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=2e-3)
    for step in range(300):
        optimizer.zero_grad()
        task.loss(task.model(task.batch(step)[0]), task.batch(step)[1]).backward()
        optimizer.step()
    return task.model.requires_grad_(False)


def distilled(seed: int, *, batch: int = 32, width: int = 16, colder: float = 0.995) -> Task:
    """Digits as a larger network sees them, at a temperature that falls from 4 to 1."""
    task = digits(seed, batch=batch, width=width)

    def seen(batch: Batch, temperature: float) -> Batch:
        shares = F.softmax(_wise()(batch[0]) / temperature, dim=1)
        return batch[0], torch.cat([shares, torch.full((len(shares), 1), temperature)], 1)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        shares, temperature = target[:, :-1], target[:, -1:]
        apart = F.kl_div(F.log_softmax(output / temperature, 1), shares, reduction="none")
        return (apart.sum(1, keepdim=True) * temperature**2).mean()

    def draw(i: int) -> Batch:
        return seen(task.batch(i), 1 + 3 * colder**i)

    return Task(task.model, draw, seen(task.held_out, 1.0), loss)


class _Sorter(nn.Module):
    def __init__(self, length: int, numbers: int) -> None:
        super().__init__()
        self.numbers = nn.Embedding(numbers, 32)
        self.places = nn.Parameter(0.1 * torch.randn(length, 32))
        self.block = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, numbers)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.head(self.block(self.numbers(numbers) + self.places)).transpose(1, 2)


def sorting(seed: int, *, batch: int = 32, length: int = 6, examples: int = 0) -> Task:
    """Numbers to be put in order; `examples` of them to learn from, or new ones always."""
    numbers = 12
    torch.manual_seed(seed)

    def made(generator: torch.Generator, number: int) -> Batch:
        mixed = torch.randint(numbers, (number, length), generator=generator)
        return mixed, mixed.sort(1).values

    task = of(_Sorter(length, numbers), made, F.cross_entropy, seed, batch)
    if not examples:
        return task
    mixed, in_order = made(generated(seed, -1), examples)

    def draw(i: int) -> Batch:
        at = torch.randint(examples, (batch,), generator=generated(seed, i))
        return mixed[at], in_order[at]

    return Task(task.model, draw, task.held_out)


def flow(seed: int, *, batch: int = 128) -> Task:
    """Which way leads from noise to a point of a Swiss roll."""
    from sklearn.datasets import make_swiss_roll

    torch.manual_seed(seed)
    points = torch.tensor(make_swiss_roll(2000, random_state=0)[0][:, ::2] / 8, dtype=torch.float32)
    model = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), layers(64, 64, 2))

    def made(generator: torch.Generator, number: int) -> Batch:
        ends = points[torch.randint(len(points), (number,), generator=generator)]
        start = torch.randn(number, 2, generator=generator)
        when = torch.rand(number, 1, generator=generator)
        return torch.cat([start + when * (ends - start), when], 1), ends - start

    return of(model, made, F.mse_loss, seed, batch)


class _Graph(nn.Module):
    """Two rounds of means over neighbours. It holds the whole graph, and is asked for nodes."""

    def __init__(self, pictures: Tensor, near: Tensor) -> None:
        super().__init__()
        self.register_buffer("pictures", pictures)
        self.register_buffer("near", near)
        self.first, self.second = nn.Linear(64, 24), nn.Linear(24, 10)

    def forward(self, nodes: Tensor) -> Tensor:
        hidden = F.relu(self.near @ self.first(F.dropout(self.pictures, 0.3, self.training)))
        hidden = F.dropout(hidden, 0.5, self.training)
        return (self.near @ self.second(hidden))[nodes]


def graph(seed: int, *, nodes: int = 500, known: int = 300) -> Task:
    """Digits that are neighbours of one another; the labelled ones are the batch."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    torch.manual_seed(seed)
    data, at = load_digits(), torch.randperm(1797)[:nodes].numpy()
    near = kneighbors_graph(data.data[at], 8, include_self=True).toarray() / 8
    pictures = torch.tensor(data.data[at] / 16, dtype=torch.float32)
    model = _Graph(pictures, torch.tensor(near, dtype=torch.float32))
    digit, node = torch.tensor(data.target[at]), torch.arange(nodes)
    labelled, rest = (node[:known], digit[:known]), (node[known:], digit[known:])
    return Task(model, lambda i: labelled, rest)


def margins(seed: int, *, batch: int = 16, in_turn: int = 0) -> Task:
    """A linear machine: examples beyond the margin cost nothing.

    With `in_turn` so many batches are of one side each, and the next ones of the other.
    """
    from sklearn.datasets import make_classification

    torch.manual_seed(seed)
    inputs, kind = make_classification(
        2000, 20, n_informative=6, class_sep=1.4, flip_y=0.02, random_state=seed
    )
    rows = torch.tensor(inputs, dtype=torch.float32)
    side = 2.0 * torch.tensor(kind, dtype=torch.float32)[:, None] - 1
    model = nn.Linear(20, 1)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (1 - target * output).clamp(min=0).mean()

    def draw(i: int) -> Batch:
        at = torch.randint(1700, (batch,), generator=generated(seed, i))
        if in_turn:
            of_one = torch.nonzero(side[:1700, 0] == 1 - 2 * (i // in_turn % 2))[:, 0]
            at = of_one[at % len(of_one)]
        return rows[at], side[at]

    return Task(model, draw, (rows[1700:], side[1700:]), loss)


class _Adapted(nn.Module):
    """A frozen layer and a product of two narrow ones beside it."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) + 2 * self.up(self.down(inputs))


def adapted(seed: int, *, batch: int = 8, context: int = 24, rank: int = 4) -> Task:
    """A language model of documentation reads sources, with low-rank changes of its layers."""
    known = well_read()  # draws numbers of its own, so it comes before the seed
    torch.manual_seed(seed)
    model = Gpt(context)
    model.load_state_dict(known)
    model.requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.out = _Adapted(block.qkv, rank), _Adapted(block.out, rank)
        block.mlp[0], block.mlp[2] = _Adapted(block.mlp[0], rank), _Adapted(block.mlp[2], rank)
    return _next_byte(model, _sources()[seed % len(MODULES)], seed, batch, context)


class _Gated(nn.Module):
    """Gated convolutions that look back."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(BYTES, width), nn.Linear(width, BYTES)
        self.rounds = nn.ModuleList(nn.Conv1d(width, 2 * width, 4) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, words: Tensor) -> Tensor:
        x = self.tokens(words)
        for norm, near in zip(self.norms, self.rounds, strict=True):
            past = F.pad(norm(x).transpose(1, 2), (3, 0))
            x = x + F.glu(near(past), dim=1).transpose(1, 2)
        return self.head(x)


def gated(seed: int, *, batch: int = 8, context: int = 32, length: int = 0) -> Task:
    """The next byte of sources; `length` of them to learn, or most of them."""
    torch.manual_seed(seed)
    return _next_byte(_Gated(), torch.cat(_sources()), seed, batch, context, length)


def _next_byte(
    model: nn.Module, source: Tensor, seed: int, batch: int, context: int, length: int = 0
) -> Task:
    part = len(source) * 4 // 5
    read, other = source[: length or part], source[part:]

    def windows(source: Tensor, generator: torch.Generator, number: int) -> Batch:
        at = torch.randint(len(source) - context, (number, 1), generator=generator)
        window = source[at + torch.arange(context + 1)]
        return window[:, :-1], window[:, 1:]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.reshape(-1, BYTES), target.reshape(-1))

    held_out = windows(other, torch.Generator().manual_seed(9), HELD_OUT)
    return Task(model, lambda i: windows(read, generated(seed, i), batch), held_out, loss)


@cache
def _sources() -> list[Tensor]:
    texts = [getsource(module).encode("ascii", "replace") for module in MODULES]
    return [torch.tensor(list(text[:24_000])) for text in texts]


@cache
def _words(size: int) -> Tensor:
    """[words]: the places of the most frequent words of the sources in their order."""
    found = re.findall(r"\w+|[^\w\s]", "".join(getsource(module) for module in MODULES))
    places = {word: i for i, (word, _) in enumerate(Counter(found).most_common(size))}
    return torch.tensor([places[word] for word in found if word in places])


@cache
def _photographs() -> Tensor:
    """[2, 3, rows, columns]: a temple and a flower."""
    from sklearn.datasets import load_sample_images

    return torch.stack(
        [torch.tensor(i / 255.0).float() for i in load_sample_images().images]
    ).permute(0, 3, 1, 2)
