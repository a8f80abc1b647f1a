"""The density of pictures of digits, told by a flow of affine couplings with weight norm (RealNVP).

The loss is a logarithm of a density, which is far above 1: it begins below zero.
"""

import math

import torch
from corpora import generated
from setups import Family, Size
from tasks import HELD_OUT, Batch, Task, digits
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

PIXELS, GREYS, MARGIN = 64, 17, 0.05
SEEN = 512
"""Pictures, or more, that the scales begin from."""


class _Step(nn.Module):
    """Scales and shifts every number, then one half of them by what the other half says."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.log_scale, self.shift = (nn.Parameter(torch.zeros(PIXELS)) for _ in range(2))
        self.register_buffer("order", torch.randperm(PIXELS))
        self.told = nn.Sequential(
            weight_norm(nn.Linear(PIXELS // 2, width)),
            nn.ReLU(),
            weight_norm(nn.Linear(width, PIXELS)),
        )
        self.stretch = nn.Parameter(torch.full((PIXELS // 2,), 0.1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """-> the same numbers in another order, and the logarithm of how much room they gained."""
        kept, moved = (x * self.log_scale.exp() + self.shift)[:, self.order].chunk(2, 1)
        slope, shift = self.told(kept).to(x.dtype).chunk(2, 1)
        slope = slope.tanh() * self.stretch
        moved = moved * slope.exp() + shift
        return torch.cat([kept, moved], 1), slope.sum(1) + self.log_scale.sum()


class _Flow(nn.Module):
    """[B, 64] -> [B, 65]: what should be normal noise, and the logarithm of the room gained."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(_Step(width) for _ in range(steps))

    def forward(self, x: Tensor) -> Tensor:
        room = torch.zeros_like(x[:, 0])
        for step in self.steps:
            x, gained = step(x)
            room = room + gained
        return torch.cat([x, room[:, None]], 1)

    @torch.no_grad()
    def begin(self, x: Tensor) -> None:
        """Numbers come out of the scales of every step with mean 0 and spread 1 (as in Glow)."""
        for step in self.steps:
            step.log_scale.copy_(-x.std(0).log())
            step.shift.copy_(-x.mean(0) / x.std(0))
            x, _ = step(x)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    """Nats of a picture; `target` is the room that was gained before the flow."""
    noise, room = output[:, :-1], output[:, -1]
    normal = 0.5 * (noise.square() + math.log(2 * math.pi)).sum(1)
    return (normal - room - target).mean()


def build(seed: int, size: Size, batch: int) -> Task:
    task = digits(seed, batch=batch)

    def spread(pixels: Tensor, generator: torch.Generator) -> Batch:
        """Greys are steps: noise fills them, and a logit takes them from 0..1 to all numbers."""
        noise = torch.rand(pixels.shape, generator=generator)
        share = MARGIN + (1 - 2 * MARGIN) * ((GREYS - 1) * pixels + noise) / GREYS
        return share.logit(), ((1 - 2 * MARGIN) / (share * (1 - share))).log().sum(1)

    def draw(i: int) -> Batch:
        return spread(task.batch(i)[0], generated(seed, i))

    held_out = spread(task.held_out[0][:HELD_OUT], torch.Generator().manual_seed(7))
    torch.manual_seed(seed)
    model = _Flow(64, 4) if size == "small" else _Flow(128, 6)
    model.begin(torch.cat([draw(i)[0] for i in range(1 + SEEN // batch)]))
    return Task(model, draw, held_out, _loss)


RATES = {
    "sgd": 0.01,
    "adamw": 0.03,
    "adam": 0.03,
    "nadam": 0.03,
    "rmsprop": 0.02,
    "adafactor": 0.2,
    "lion": 0.009,
    "adamw8bit": 0.03,
    "schedulefree-adamw": 0.03,
}
FAMILY = Family("normalising-flow", build, RATES, steps=250, batch=64)
