"""A U-Net finds the strokes of a digit that is painted over a piece of a photograph (soft Dice)."""

from functools import cache
from itertools import pairwise

import torch
from corpora import generated, shorter
from setups import Family, Precision, Size
from tasks import Batch, Task, digits
from torch import Tensor, nn
from torch.nn import functional as F

SIDE, GROUPS = 16, 4


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(GROUPS, outputs),
        nn.LeakyReLU(0.01),
    )


class _UNet(nn.Module):
    """[B, 1, 16, 16] -> [B, 1, 16, 16] logits; `depth` times half as large, and back."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        wide = [width * 2**level for level in range(depth + 1)]
        falls = list(pairwise(wide))
        self.first = _block(1, width)
        self.down = nn.ModuleList(_block(fine, coarse) for fine, coarse in falls)
        self.up = nn.ModuleList(nn.ConvTranspose2d(coarse, fine, 2, 2) for fine, coarse in falls)
        self.joined = nn.ModuleList(_block(2 * fine, fine) for fine, _ in falls)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        seen = [self.first(pixels)]
        for block in self.down:
            seen.append(block(F.max_pool2d(seen[-1], 2)))
        x = seen.pop()
        for up, joined in zip(reversed(self.up), reversed(self.joined), strict=True):
            x = joined(torch.cat([seen.pop(), up(x)], 1))
        return self.head(x)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    """1 − Dice's overlap of each picture."""
    share = output.sigmoid()
    both, either = (share * target).sum((1, 2, 3)), (share + target).sum((1, 2, 3))
    return (1 - (2 * both + 1) / (either + 1)).mean()


@cache
def _photographs() -> Tensor:
    """[2, H, W] greys around 0: a temple and a flower."""
    from sklearn.datasets import load_sample_images

    colours = torch.stack([torch.tensor(image) for image in load_sample_images().images])
    return colours[:, ::2, ::2].float().mean(3) / 128 - 1


def build(seed: int, size: Size, batch: int) -> Task:
    task, photographs = shorter(digits(seed, batch=batch)), _photographs()
    end = photographs.shape[2] * 3 // 4

    def painted(pixels: Tensor, ground: Tensor, generator: torch.Generator) -> Batch:
        patches = ground.unfold(1, SIDE, 1).unfold(2, SIDE, 1)
        at = [torch.randint(n, (len(pixels),), generator=generator) for n in patches.shape[:3]]
        ink = torch.rand(len(pixels), 1, 1, 1, generator=generator) * 2 - 1
        stroke = F.interpolate(pixels.view(-1, 1, 8, 8), (SIDE, SIDE), mode="bilinear")
        mixed = patches[*at][:, None].lerp(ink.expand_as(stroke), stroke)
        return mixed, (stroke > 0.5).float()

    def draw(i: int) -> Batch:
        return painted(task.batch(i)[0], photographs[:, :, :end], generated(seed, i))

    generator = torch.Generator().manual_seed(7)
    held_out = painted(task.held_out[0], photographs[:, :, end:], generator)
    torch.manual_seed(seed)
    return Task(_UNet(8, 2) if size == "small" else _UNet(12, 2), draw, held_out, _loss)


RATES = {
    "sgd": 0.1,
    "adamw": 0.01,
    "adam": 0.01,
    "nadam": 0.01,
    "rmsprop": 0.006,
    "adafactor": 0.06,
    "lion": 0.009,
    "adamw8bit": 0.01,
}
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16-autocast")
"""Convolutions of float16 take a processor three times as long."""
FAMILY = Family("unet", build, RATES, steps=220, batch=8, precisions=PRECISIONS)
