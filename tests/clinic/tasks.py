"""Small tasks to train on for real: texts that ship with Python, data sets of scikit-learn, curves.

A task is a model, batches by number, a loss, and what is held out. All of it follows from a seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pydoc_data.topics import topics
from typing import Any

import torch
from networks import BYTES, Gpt, Recurrent, convolutions, layers, mlp_of_bytes
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[Tensor, Tensor]
HELD_OUT = 256
"""Examples of each evaluation."""


@dataclass(frozen=True)
class Task:
    """Something to learn."""

    model: nn.Module
    batch: Callable[[int], Batch]
    """Inputs and targets of update number 0, 1, ..."""
    held_out: Batch
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    """(output, targets) -> mean loss."""
    backward: Callable[[Any, int], Tensor] | None = None
    """(course, update from 0) -> the loss to log, with gradients in place: in place of the usual
    way from batch to gradient, as for two networks."""
    num_classes: int | None = None
    """Of a classifier, or of a model that names tokens."""
    evaluate: Callable[[nn.Module], float] | None = None
    """What takes the place of the held-out loss where there is none; less is better."""
    optimized_parts: tuple[str, ...] = ()
    """Submodules that have an optimizer each; empty: one optimizer holds everything."""


@torch.no_grad()
def held_out_loss(task: Task) -> float:
    """What the task's own measure says of its model as it is: less is better."""
    was_training = task.model.training
    task.model.eval()
    if task.evaluate is not None:
        measured = task.evaluate(task.model)
    else:
        inputs, target = task.held_out
        if inputs.is_floating_point():
            inputs = inputs.to(next(task.model.parameters()).dtype)
        measured = float(task.loss(task.model(inputs).float(), target))
    task.model.train(was_training)
    return measured


def text(
    seed: int,
    *,
    model: str = "mlp",
    length: int = 300_000,
    batch: int = 32,
    context: int = 16,
    order: str = "drawn",
) -> Task:
    """The next byte of Python's documentation; `length` bytes to train on, other ones held out.

    In order "as written" each row of the batch reads its own part of the text from end to end.
    """
    torch.manual_seed(seed)
    corpus = _texts()
    train, other = corpus[:length], corpus[400_000:]
    net = mlp_of_bytes if model == "mlp" else Gpt if model == "gpt" else Recurrent
    options = {"kind": model} if net is Recurrent else {}
    every = model != "mlp"

    def windows(source: Tensor, generator: torch.Generator, number: int) -> Batch:
        at = torch.randint(len(source) - context, (number, 1), generator=generator)
        window = source[at + torch.arange(context + 1)]
        return window[:, :-1], window[:, 1:] if every else window[:, -1]

    def draw(i: int) -> Batch:
        return windows(train, torch.Generator().manual_seed(seed * 100_003 + i), batch)

    def read(i: int) -> Batch:
        part = length // batch
        at = torch.arange(batch)[:, None] * part + i % ((part - 1) // context) * context
        window = train[at + torch.arange(context + 1)]
        return window[:, :-1], window[:, 1:] if every else window[:, -1]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.reshape(-1, BYTES).float(), target.reshape(-1))

    held_out = windows(other, torch.Generator().manual_seed(7), HELD_OUT)
    return Task(net(context, **options), draw if order == "drawn" else read, held_out, loss)


def digits(
    seed: int,
    *,
    model: str = "mlp",
    batch: int = 32,
    examples: int = 1_400,
    order: str = "shuffled",
    width: int = 64,
    dropout: float = 0.0,
) -> Task:
    """Ten handwritten digits of 8 x 8 pixels."""
    torch.manual_seed(seed)
    inputs, target = _digits()
    inputs, target = _mixed(inputs, target, seed)
    train = inputs[:examples], target[:examples]
    if order == "sorted":
        by_class = torch.argsort(train[1], stable=True)
        train = train[0][by_class], train[1][by_class]
    made = convolutions(dropout) if model == "cnn" else layers(64, width, 10, dropout=dropout)
    held_out = inputs[-HELD_OUT:], target[-HELD_OUT:]
    return Task(made, _epochs(train, batch, seed, shuffle=order != "sorted"), held_out)


def pixels(seed: int, *, batch: int = 64, width: int = 16) -> Task:
    """An autoencoder of the digits."""
    task = digits(seed, batch=batch)
    torch.manual_seed(seed)
    model = nn.Sequential(layers(64, 64, width), nn.ReLU(), layers(width, 64, 64))

    def of_itself(i: int) -> Batch:
        inputs, _ = task.batch(i)
        return inputs, inputs

    held_out = task.held_out[0], task.held_out[0]
    return Task(model, of_itself, held_out, F.mse_loss)


def tumours(seed: int, *, batch: int = 32, rare: int | None = None) -> Task:
    """Malignant or benign; `rare` leaves that many of the first class to train on."""
    torch.manual_seed(seed)
    inputs, target = _mixed(*_table("load_breast_cancer"), seed)
    train = inputs[:400], target[:400]
    if rare is not None:
        kept = torch.cat(
            [torch.nonzero(target[:400] == 1), torch.nonzero(target[:400] == 0)[:rare]]
        )
        train = inputs[kept[:, 0]], target[kept[:, 0]]
    held_out = inputs[400:], target[400:, None]
    draw = _epochs((train[0], train[1][:, None]), batch, seed)
    return Task(layers(inputs.shape[1], 32, 1), draw, held_out, F.binary_cross_entropy_with_logits)


def diabetes(
    seed: int, *, batch: int = 32, width: int = 32, noise: int = 0, examples: int = 342
) -> Task:
    """Progress of a disease; `noise` adds that many columns that mean nothing."""
    torch.manual_seed(seed)
    inputs, target = _table("load_diabetes")
    target = ((target - target.mean()) / target.std())[:, None]
    inputs = torch.cat([inputs, torch.randn(len(inputs), noise)], 1)
    inputs, target = _mixed(inputs, target, seed)
    draw = _epochs((inputs[:examples], target[:examples]), batch, seed)
    held_out = inputs[342:], target[342:]
    return Task(layers(inputs.shape[1], width, 1), draw, held_out, F.mse_loss)


def waves(seed: int, *, batch: int = 64, noise: float = 0.1, width: int = 64) -> Task:
    """A sum of two waves over four columns, with noise."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )

    def drawn(generator: torch.Generator, number: int) -> Batch:
        inputs = torch.rand(number, 4, generator=generator) * 2 - 1
        height = torch.sin(3 * inputs[:, :1]) + inputs[:, 1:2] * torch.cos(2 * inputs[:, 2:3])
        return inputs, height + noise * torch.randn(number, 1, generator=generator)

    def draw(i: int) -> Batch:
        return drawn(torch.Generator().manual_seed(seed * 100_003 + i), batch)

    return Task(model, draw, drawn(torch.Generator().manual_seed(7), HELD_OUT), F.mse_loss)


def line(seed: int, *, batch: int = 32) -> Task:
    """Eight columns and a straight line with noise: learnt soon, and then the noise stays."""
    torch.manual_seed(seed)
    task = waves(seed, batch=batch)
    slope = torch.randn(4, 1)

    def straight(batch: Batch) -> Batch:
        inputs, target = batch
        rest = target - torch.sin(3 * inputs[:, :1])
        rest = rest - inputs[:, 1:2] * torch.cos(2 * inputs[:, 2:3])  # the noise alone
        return inputs, inputs @ slope + 5 * rest

    return replace(
        task,
        model=nn.Linear(4, 1),
        batch=lambda i: straight(task.batch(i)),
        held_out=straight(task.held_out),
    )


def _epochs(data: Batch, size: int, seed: int, *, shuffle: bool = True) -> Callable[[int], Batch]:
    """Batches that go through the data again and again, each time in a new order."""
    inputs, target = data
    per_epoch = max(1, len(inputs) // size)

    @cache
    def order(epoch: int) -> Tensor:
        if not shuffle:
            return torch.arange(len(inputs))
        return torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed + epoch))

    def draw(i: int) -> Batch:
        at = order(i // per_epoch)[(i % per_epoch) * size :][:size]
        return inputs[at], target[at]

    return draw


def _mixed(inputs: Tensor, target: Tensor, seed: int) -> Batch:
    at = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    return inputs[at], target[at]


@cache
def _texts() -> Tensor:
    words = "".join(topics.values()).encode("ascii", "replace")
    return torch.tensor(list(words))


@cache
def _digits() -> Batch:
    data = _sklearn("load_digits")
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


@cache
def _table(name: str) -> Batch:
    data = _sklearn(name)
    inputs = torch.tensor(data.data, dtype=torch.float32)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    return inputs, torch.tensor(data.target, dtype=torch.float32)


def _sklearn(name: str) -> Any:
    from sklearn import datasets

    return getattr(datasets, name)()
