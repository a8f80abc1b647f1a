"""RMSprop of torch and bitsandbytes."""

import torch
from torch import nn

from optimizers.built import Built, groups


def blockwise(name: str, model: nn.Module, **settings: object) -> torch.optim.Optimizer:
    from bitsandbytes import optim

    made = getattr(optim, name)
    return made(
        groups(model, lr=0.1),
        lr=0.3,
        alpha=0.9,
        eps=1e-2,
        weight_decay=0.1,
        momentum=0.9,
        **settings,
    )


BUILT = (
    Built(
        "torch.optim.RMSprop",
        lambda m: torch.optim.RMSprop(
            groups(m, alpha=0.5), lr=1e-2, alpha=0.9, eps=1e-3, weight_decay=0.1
        ),
    ),
    Built(
        "torch.optim.RMSprop, centered, maximize",
        lambda m: torch.optim.RMSprop(
            groups(m, alpha=0.5), lr=1e-2, alpha=0.9, eps=1e-3, centered=True, maximize=True
        ),
    ),
    Built(
        "torch.optim.RMSprop, centered, momentum",
        lambda m: torch.optim.RMSprop(
            groups(m, momentum=0.5), lr=1e-2, momentum=0.9, centered=True, weight_decay=0.1
        ),
    ),
    Built(
        "bitsandbytes.optim.RMSprop",
        lambda m: blockwise("RMSprop", m),
        package="bitsandbytes",
        dtype=torch.float32,
    ),
    Built(
        "bitsandbytes.optim.RMSprop8bit",
        lambda m: blockwise("RMSprop8bit", m, min_8bit_size=0),
        package="bitsandbytes",
        dtype=torch.float32,
    ),
)
