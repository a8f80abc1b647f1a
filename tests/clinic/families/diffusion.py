"""The noise in pictures of digits is told from the pictures, for every amount of noise."""

import math

import torch
from corpora import generated
from setups import Family, Size
from tasks import HELD_OUT, Batch, Task, digits
from torch import Tensor, nn
from torch.nn import functional as F

WAVES = 8


class _Denoiser(nn.Module):
    """Residual layers over 64 noisy pixels and the time in 0..1, which stands behind them."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.into, self.time = nn.Linear(64, width), nn.Linear(2 * WAVES, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(),
                nn.Linear(2 * width, width),
            )
            for _ in range(blocks)
        )  # fmt: skip
        self.out = nn.Linear(width, 64)

    def forward(self, inputs: Tensor) -> Tensor:
        pixels, time = inputs[:, :64], inputs[:, 64:]
        angles = time * 2.0 ** torch.arange(WAVES, dtype=time.dtype)
        x = self.into(pixels) + self.time(torch.cat([angles.sin(), angles.cos()], 1))
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


def build(seed: int, size: Size, batch: int) -> Task:
    task = digits(seed, batch=batch)

    def noisy(pixels: Tensor, generator: torch.Generator) -> Batch:
        time = torch.rand(len(pixels), 1, generator=generator)
        noise = torch.randn(pixels.shape, generator=generator)
        angle = time * math.pi / 2
        mixed = angle.cos() * (2 * pixels - 1) + angle.sin() * noise
        return torch.cat([mixed, time], 1), noise

    held_out = noisy(task.held_out[0][:HELD_OUT], torch.Generator().manual_seed(7))
    torch.manual_seed(seed)
    model = _Denoiser(64, 2) if size == "small" else _Denoiser(96, 3)
    return Task(model, lambda i: noisy(task.batch(i)[0], generated(seed, i)), held_out, F.mse_loss)


RATES = {
    "sgd": 0.3,
    "adamw": 0.01,
    "adam": 0.01,
    "nadam": 0.01,
    "adafactor": 0.06,
    "lion": 0.003,
    "muon": 0.02,
    "adamw8bit": 0.01,
    "schedulefree-adamw": 0.01,
    "prodigy": 1,
}
FAMILY = Family("diffusion", build, RATES, steps=300, batch=64, loss_kind="diffusion")
