"""Adafactor of torch, transformers and pytorch_optimizer."""

import torch
from torch import Tensor, nn

from optimizers.built import Built, groups


class Convolved(nn.Module):
    """Its convolution has a weight [4, 2, 3], in which rows and columns are those of 4 matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.convolution = nn.Conv1d(2, 4, 3, padding=1)
        self.head = nn.Linear(16, 11)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.convolution(self.embed(words).reshape(-1, 2, 4)).flatten(1))


def transformers(model: nn.Module, **settings: object) -> torch.optim.Optimizer:
    from transformers.optimization import Adafactor

    return Adafactor(groups(model, clip_threshold=0.3), weight_decay=0.1, **settings)


def optional(model: nn.Module, **settings: object) -> torch.optim.Optimizer:
    from pytorch_optimizer import AdaFactor

    return AdaFactor(groups(model, lr=0.1), weight_decay=0.1, **settings)


BUILT = (
    Built(
        "torch.optim.Adafactor",
        lambda m: torch.optim.Adafactor(groups(m, lr=0.8), lr=1e-2, d=1.5, weight_decay=0.1),
        model=Convolved,
    ),
    Built(
        "torch.optim.Adafactor, bounds that bind, maximize",
        lambda m: torch.optim.Adafactor(
            groups(m, eps=(1e-4, 2.0)), lr=1e-2, eps=(3e-2, 1e-3), maximize=True, foreach=True
        ),
    ),
    Built("transformers.Adafactor", transformers, package="transformers", model=Convolved),
    Built(
        "transformers.Adafactor, warmup, beta1",
        lambda m: transformers(m, warmup_init=True, beta1=0.9, eps=(1e-3, 2.0)),
        package="transformers",
    ),
    Built(
        "transformers.Adafactor, lr",
        lambda m: transformers(m, lr=1e-2, relative_step=False, scale_parameter=False),
        package="transformers",
    ),
    Built("pytorch_optimizer.AdaFactor", optional, package="pytorch_optimizer"),
    Built(
        "pytorch_optimizer.AdaFactor, lr, ams_bound, no momentum",
        lambda m: optional(
            m,
            betas=(None, 0.5),
            ams_bound=True,
            relative_step=False,
            clip_threshold=0.2,
            foreach=False,
        ),
        package="pytorch_optimizer",
    ),
    Built(
        "pytorch_optimizer.AdaFactor, coupled decay, no momentum, maximize",
        lambda m: optional(
            m, betas=(None, 0.9), weight_decouple=False, maximize=True, scale_parameter=False
        ),
        package="pytorch_optimizer",
        model=Convolved,
    ),
    Built(
        "pytorch_optimizer.AdaFactor, fixed decay, warmup",
        lambda m: optional(m, fixed_decay=True, warmup_init=True, eps2=2.0),
        package="pytorch_optimizer",
    ),
)
