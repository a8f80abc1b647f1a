"""Adagrad of torch and bitsandbytes."""

import torch
from torch import nn

from optimizers.built import Built, groups


def blockwise(name: str, model: nn.Module, **settings: object) -> torch.optim.Optimizer:
    from bitsandbytes import optim

    made = getattr(optim, name)
    return made(groups(model, lr=0.1), lr=0.3, eps=1e-3, weight_decay=0.1, **settings)


BUILT = (
    Built(
        "torch.optim.Adagrad",
        lambda m: torch.optim.Adagrad(
            groups(m, lr_decay=0.1), lr=1e-2, lr_decay=0.5, eps=1e-3, weight_decay=0.1
        ),
    ),
    Built(
        "torch.optim.Adagrad, maximize, accumulator of 1",
        lambda m: torch.optim.Adagrad(
            groups(m, lr=0.1), lr=1e-2, initial_accumulator_value=1.0, maximize=True
        ),
    ),
    Built(
        "bitsandbytes.optim.Adagrad",
        lambda m: blockwise("Adagrad", m),
        package="bitsandbytes",
        dtype=torch.float32,
    ),
    Built(
        "bitsandbytes.optim.Adagrad8bit",
        lambda m: blockwise("Adagrad8bit", m, min_8bit_size=0),
        package="bitsandbytes",
        dtype=torch.float32,
    ),
)
