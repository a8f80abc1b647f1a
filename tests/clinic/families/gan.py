"""A painter of digits and its critic, each with an optimizer of its own."""

import torch
from corpora import generated
from setups import Family, Size
from tasks import HELD_OUT, Batch, Task, digits
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

NOISE = 16


class _Gan(nn.Module):
    """64 real pixels and the noise behind them -> the critic's score of both, and the painter's.

    The painter is judged by a critic whose weights are detached: one backward serves both.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.painter = nn.Sequential(
            nn.Linear(NOISE, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Linear(width, 64), nn.Sigmoid(),
        )  # fmt: skip
        self.critic = nn.Sequential(
            nn.Linear(64, width), nn.LeakyReLU(0.2),
            nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, inputs: Tensor) -> Tensor:
        real, painted = inputs[:, :64], self.painter(inputs[:, 64:])
        fixed = {name: weight.detach() for name, weight in self.critic.named_parameters()}
        own = self.critic(torch.cat([real, painted.detach().to(real.dtype)]))
        return torch.cat([*own.chunk(2), functional_call(self.critic, fixed, painted)], 1)


def _loss(scores: Tensor, target: Tensor) -> Tensor:
    """Of the critic and of the painter, which wants to be taken for real."""
    return 3 * F.binary_cross_entropy_with_logits(scores, target)


def build(seed: int, size: Size, batch: int) -> Task:
    task = digits(seed, batch=batch)
    wanted = torch.tensor([[1.0, 0.0, 1.0]])

    def with_noise(pixels: Tensor, generator: torch.Generator) -> Batch:
        noise = torch.randn(len(pixels), NOISE, generator=generator)
        return torch.cat([pixels, noise], 1), wanted.expand(len(pixels), 3)

    held_out = with_noise(task.held_out[0][:HELD_OUT], torch.Generator().manual_seed(7))

    @torch.no_grad()
    def distance(model: nn.Module) -> float:
        """Energy distance of painted pictures to real ones."""
        real, noise = held_out[0][:, :64], held_out[0][:, 64:]
        painter = model.get_submodule("painter")
        painted = painter(noise.to(next(painter.parameters()).dtype)).float()
        within = torch.cdist(real, real).mean() + torch.cdist(painted, painted).mean()
        return float(2 * torch.cdist(real, painted).mean() - within)

    torch.manual_seed(seed)
    model = _Gan(64 if size == "small" else 96)
    return Task(
        model,
        lambda i: with_noise(task.batch(i)[0], generated(seed, i)),
        held_out,
        _loss,
        evaluate=distance,
        optimized_parts=("painter", "critic"),
    )


RATES = {
    "sgd-plain": 0.5,
    "adamw": 0.003,
    "adam": 0.0009,
    "rmsprop": 0.002,
    "lion": 0.0003,
}
FAMILY = Family("gan", build, RATES, steps=280, batch=64, loss_kind="adversarial")
