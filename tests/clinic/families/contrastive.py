"""Two spoilt views of each picture of a digit find one another among those of the others."""

import torch
from corpora import generated
from setups import Family, Size
from tasks import Batch, Task, digits
from torch import Tensor, nn
from torch.nn import functional as F

TEMPERATURE, RIVALS = 0.2, 32


def _loss(output: Tensor, target: Tensor) -> Tensor:
    """[2B, D] in which row i and row B + i are views of one picture."""
    first, second = F.normalize(output, dim=1).chunk(2)
    return F.cross_entropy(first @ second.T / TEMPERATURE, target)


def build(seed: int, size: Size, batch: int) -> Task:
    task = digits(seed, batch=batch)

    def views(pixels: Tensor, generator: torch.Generator) -> Batch:
        twice = torch.cat([pixels, pixels])
        noise = 0.25 * torch.randn(twice.shape, generator=generator)
        is_kept = torch.rand(twice.shape, generator=generator) > 0.2
        return (twice + noise) * is_kept, torch.arange(len(pixels))

    apart = [
        views(part, torch.Generator().manual_seed(7)) for part in task.held_out[0].split(RIVALS)
    ]

    @torch.no_grad()
    def mistaken(model: nn.Module) -> float:
        """Mean loss among as many rivals, whatever the batch."""
        dtype = next(model.parameters()).dtype
        losses = [_loss(model(inputs.to(dtype)).float(), target) for inputs, target in apart]
        return float(torch.stack(losses).mean())

    torch.manual_seed(seed)
    wide, code = (64, 16) if size == "small" else (160, 32)
    model = nn.Sequential(
        nn.Linear(64, wide), nn.LayerNorm(wide), nn.GELU(), nn.Linear(wide, wide), nn.GELU(),
        nn.Linear(wide, code),
    )  # fmt: skip
    return Task(
        model,
        lambda i: views(task.batch(i)[0], generated(seed, i)),
        views(task.held_out[0], torch.Generator().manual_seed(7)),
        _loss,
        evaluate=mistaken,
    )


RATES = {
    "sgd": 0.03,
    "sgd-plain": 0.1,
    "adamw": 0.01,
    "adam": 0.01,
    "nadam": 0.03,
    "rmsprop": 0.005,
    "adafactor": 0.2,
    "lion": 0.003,
    "muon": 0.06,
    "adamw8bit": 0.01,
    "prodigy": 1,
}
FAMILY = Family("contrastive", build, RATES, steps=300, batch=32)
