"""Tasks of the trainings that were held apart until their exam of 2026-11-30."""

import argparse
import difflib
import inspect
import tarfile
import typing
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from networks import BYTES, Gpt
from tasks import HELD_OUT, Batch, Task, digits
from torch import Tensor, nn
from torch.nn import functional as F

MODULES = (argparse, difflib, inspect, tarfile, typing)


def generated(seed: int, i: int) -> torch.Generator:
    """The generator of batch `i`; the held-out examples are batch -1."""
    return torch.Generator().manual_seed(seed * 100_003 + i + 1)


def of(model: nn.Module, made: Callable[[torch.Generator, int], Batch], loss, seed: int, n: int):
    """A task whose examples are drawn anew for each batch: `made(generator, number)`."""
    torch.manual_seed(seed)
    held_out = made(torch.Generator().manual_seed(9), HELD_OUT)
    return Task(model, lambda i: made(generated(seed, i), n), held_out, loss)


def pairs(seed: int, *, batch: int = 48, temperature: float = 0.2) -> Task:
    """Contrastive: two noisy views of each picture find one another."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 24))
    train, other = _pictures()[:1400], _pictures()[1400:]

    def made(source: Tensor, generator: torch.Generator) -> Batch:
        at = torch.randint(len(source), (batch,), generator=generator)
        twice = torch.cat([source[at], source[at]])
        noise = 0.25 * torch.randn(twice.shape, generator=generator)
        kept = torch.rand(twice.shape, generator=generator) > 0.2
        return (twice + noise) * kept, torch.arange(batch)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        views = F.normalize(output, dim=1)
        return F.cross_entropy(views[: len(target)] @ views[len(target) :].T / temperature, target)

    held_out = made(other, torch.Generator().manual_seed(9))
    return Task(model, lambda i: made(train, generated(seed, i)), held_out, loss)


class Reader(nn.Module):
    """A transformer that reads a window and names what it is from."""

    def __init__(self, context: int, classes: int) -> None:
        super().__init__()
        self.body = Gpt(context, 24)
        self.body.head = nn.Identity()
        self.head = nn.Linear(24, classes)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.body(words).mean(1))


def sources(seed: int, *, batch: int = 16, context: int = 32, windows: int = 0) -> Task:
    """Which module of the Python library a window is from; `windows` to learn, or all of them."""
    torch.manual_seed(seed)
    model = Reader(context, len(MODULES))
    parts = [text.view(-1, 1_000) for text in _sources()]
    is_other = torch.arange(len(parts[0])) % 4 == 3
    train, other = [p[~is_other].flatten() for p in parts], [p[is_other].flatten() for p in parts]

    def window(texts: list[Tensor], which: Tensor, generator: torch.Generator) -> Batch:
        whole = torch.stack(texts)
        at = torch.randint(whole.shape[1] - context, (len(which), 1), generator=generator)
        return whole[which[:, None], at + torch.arange(context)], which

    few = None
    if windows:
        generator = generated(seed, -1)
        few = window(train, torch.arange(windows) % len(MODULES), generator)

    def draw(i: int) -> Batch:
        generator = generated(seed, i)
        if few is not None:
            at = torch.randint(windows, (batch,), generator=generator)
            return few[0][at], few[1][at]
        return window(train, torch.randint(len(MODULES), (batch,), generator=generator), generator)

    generator = torch.Generator().manual_seed(9)
    held = torch.randint(len(MODULES), (HELD_OUT,), generator=generator)
    return Task(model, draw, window(other, held, generator))


def masked(seed: int, *, batch: int = 8, context: int = 32, share: float = 0.2) -> Task:
    """Bytes of sources, some of them covered; only those are guessed."""
    torch.manual_seed(seed)
    words = torch.cat([text[:24_000] for text in _sources()])

    def made(generator: torch.Generator, number: int) -> Batch:
        at = torch.randint(len(words) - context, (number, 1), generator=generator)
        window = words[at + torch.arange(context)]
        covered = torch.rand(window.shape, generator=generator) < share
        return window.masked_fill(covered, 0), window.masked_fill(~covered, -100)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.reshape(-1, BYTES), target.reshape(-1), ignore_index=-100)

    model = _Both(context)
    return of(model, made, loss, seed, batch)


class _Both(nn.Module):
    """Looks to both sides: a convolution over bytes."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(BYTES, 32), nn.LayerNorm(64)
        self.near, self.head = nn.Conv1d(32, 64, 7, padding=3), nn.Linear(64, BYTES)

    def forward(self, words: Tensor) -> Tensor:
        seen = F.gelu(self.near(self.tokens(words).transpose(1, 2)).transpose(1, 2))
        return self.head(self.norm(seen))


def denoising(seed: int, *, batch: int = 16, width: int = 96) -> Task:
    """Diffusion-like: the noise in a picture is guessed, at a level drawn for each picture."""
    torch.manual_seed(seed)
    pictures = _pictures() * 2 - 1
    model = nn.Sequential(
        nn.Linear(65, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 64)
    )

    def made(generator: torch.Generator, number: int) -> Batch:
        at = torch.randint(len(pictures), (number,), generator=generator)
        level = torch.rand(number, 1, generator=generator)
        noise = torch.randn(number, 64, generator=generator)
        mixed = (1 - level).sqrt() * pictures[at] + level.sqrt() * noise
        return torch.cat([mixed, level], 1), noise

    return of(model, made, F.mse_loss, seed, batch)


class _Variational(nn.Module):
    """Gives the mean, the spread and the picture, side by side."""

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(64, width), nn.Linear(latent, width)
        self.latent, self.picture = nn.Linear(width, 2 * latent), nn.Linear(width, 64)

    def forward(self, inputs: Tensor) -> Tensor:
        mean, spread = self.latent(F.elu(self.into(inputs))).chunk(2, 1)
        code = mean + spread.exp() * torch.randn_like(mean) if self.training else mean
        return torch.cat([mean, spread, self.picture(F.elu(self.back(code)))], 1)


def variational(seed: int, *, batch: int = 64, latent: int = 6) -> Task:
    """Minus the evidence bound of pictures: a density, so that the loss falls below 0."""
    torch.manual_seed(seed)
    task = digits(seed, batch=batch)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        mean, spread, picture = output.split([latent, latent, 64], 1)
        fit = ((picture - target) ** 2 / (2 * 0.2**2) + torch.tensor(0.2).log()).mean(1)
        surplus = (0.5 * (mean**2 + (2 * spread).exp() - 1) - spread).sum(1) / 64
        return (fit + surplus).mean()

    def itself(batch: Batch) -> Batch:
        return batch[0], batch[0]

    model = _Variational(64, latent)
    return Task(model, lambda i: itself(task.batch(i)), itself(task.held_out), loss)


def teacher(
    seed: int,
    *,
    batch: int = 32,
    noise: float = 0.1,
    examples: int = 0,
    sorted_every: int = 0,
    bias: bool = True,
) -> Task:
    """A random network is imitated; `examples` of its answers to learn from, or new ones always.

    With `sorted_every` each epoch of that many batches goes through the first columns in order.
    """
    torch.manual_seed(seed + 5)
    wise = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 2)).requires_grad_(False)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(12, 64, bias),
        nn.ReLU(),
        nn.Linear(64, 64, bias),
        nn.ReLU(),
        nn.Linear(64, 2, bias),
    )

    def made(generator: torch.Generator, number: int) -> Batch:
        inputs = torch.randn(number, 12, generator=generator)
        answer = 3 * wise(inputs) + noise * torch.randn(number, 2, generator=generator)
        return inputs, answer

    def in_order(i: int) -> Batch:
        inputs = torch.randn(batch, 12, generator=generated(seed, i))
        inputs[:, :4] = 4 * (i % sorted_every / sorted_every) - 2 + 0.2 * inputs[:, :4]
        return inputs, 3 * wise(inputs)

    task = of(model, made, F.mse_loss, seed, batch)
    if sorted_every:
        return replace(task, batch=in_order)
    if not examples:
        return task
    inputs, answers = made(generated(seed, -1), examples)

    def draw(i: int) -> Batch:
        at = torch.randint(examples, (batch,), generator=generated(seed, i))
        return inputs[at], answers[at]

    return Task(model, draw, task.held_out, F.mse_loss)


def exact_line(seed: int, *, batch: int = 24, columns: int = 10) -> Task:
    """A straight line without noise: the loss falls to the rounding of float32."""
    torch.manual_seed(seed)
    slope, scale = torch.randn(columns, 1), torch.logspace(0, -0.7, columns)

    def made(generator: torch.Generator, number: int) -> Batch:
        inputs = torch.randn(number, columns, generator=generator) * scale
        return inputs, inputs @ slope

    return of(nn.Linear(columns, 1), made, F.mse_loss, seed, batch)


def rare(seed: int, *, batch: int = 16, share: float = 0.06) -> Task:
    """One example in sixteen or so is of the class that matters."""
    torch.manual_seed(seed + 5)
    direction = F.normalize(torch.randn(20), dim=0)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 48), nn.SiLU(), nn.LayerNorm(48), nn.Linear(48, 1))

    def made(generator: torch.Generator, number: int) -> Batch:
        is_rare = (torch.rand(number, 1, generator=generator) < share).float()
        inputs = torch.randn(number, 20, generator=generator) + 3 * is_rare * direction
        return inputs, is_rare

    return of(model, made, F.binary_cross_entropy_with_logits, seed, batch)


def counts(seed: int, *, batch: int = 32) -> Task:
    """Counts whose rate depends on six columns: minus a Poisson likelihood, of either sign."""
    torch.manual_seed(seed + 5)
    slope = 0.25 * torch.randn(6, 1)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 32), nn.Softplus(), nn.Linear(32, 1))

    def made(generator: torch.Generator, number: int) -> Batch:
        inputs = torch.randn(number, 6, generator=generator)
        return inputs, torch.poisson((1 + inputs @ slope).exp().clamp(max=30), generator=generator)

    return of(model, made, F.poisson_nll_loss, seed, batch)


def echo(seed: int, *, batch: int = 16, length: int = 12) -> Task:
    """The symbol that stood three places before: nothing is learnt for a while, then all of it."""
    torch.manual_seed(seed)

    def made(generator: torch.Generator, number: int) -> Batch:
        words = torch.randint(12, (number, length), generator=generator)
        return words, words.roll(3, 1).masked_fill(torch.arange(length) < 3, -100)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.reshape(-1, 12), target.reshape(-1), ignore_index=-100)

    return of(_Echo(), made, loss, seed, batch)


class _Echo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(12, 16), nn.Linear(48, 12)
        self.cells = nn.LSTM(16, 48, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.cells(self.tokens(words))[0])


def foreign_text(seed: int, *, batch: int = 8, context: int = 24) -> Task:
    """A language model that has read Python's documentation goes on with sources of one module."""
    torch.manual_seed(seed)
    source = _sources()[seed % len(MODULES)]
    words, other = source[:20_000], source[20_000:]
    model = Gpt(context)
    model.load_state_dict(well_read())

    def windows(source: Tensor, generator: torch.Generator, number: int) -> Batch:
        at = torch.randint(len(source) - context, (number, 1), generator=generator)
        window = source[at + torch.arange(context + 1)]
        return window[:, :-1], window[:, 1:]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.reshape(-1, BYTES), target.reshape(-1))

    held_out = windows(other, torch.Generator().manual_seed(9), HELD_OUT)
    return Task(model, lambda i: windows(words, generated(seed, i), batch), held_out, loss)


@cache
def well_read() -> dict[str, Tensor]:
    """The weights of a language model after 900 updates on Python's documentation."""
    from tasks import text

    task = text(0, model="gpt", batch=16, context=24)
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=4e-3)
    for step in range(900):
        optimizer.zero_grad()
        task.loss(task.model(task.batch(step)[0]), task.batch(step)[1]).backward()
        optimizer.step()
    return task.model.state_dict()


@cache
def _pictures() -> Tensor:
    from sklearn.datasets import load_digits

    return torch.tensor(load_digits().data / 16, dtype=torch.float32)


@cache
def _sources() -> list[Tensor]:
    texts = [inspect.getsource(module).encode("ascii", "replace") for module in MODULES]
    return [torch.tensor(list(text[:28_000])) for text in texts]
