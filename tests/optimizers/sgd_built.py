"""SGD of torch and bitsandbytes."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from optimizers.built import Built, groups, plain_step


def blockwise(name: str, model: nn.Module, **settings: object) -> torch.optim.Optimizer:
    from bitsandbytes import optim

    made = getattr(optim, name)
    return made(groups(model, lr=0.1), lr=0.3, momentum=0.9, weight_decay=0.1, **settings)


def momentum_ends(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> None:
    """After the first update there is none, but its buffer stays."""
    plain_step(optimizer, loss)
    for group in optimizer.param_groups:
        group["momentum"] = 0.0


BUILT = (
    Built("torch.optim.SGD", lambda m: torch.optim.SGD(groups(m, lr=0.1), lr=1e-2)),
    Built(
        "torch.optim.SGD, nesterov",
        lambda m: torch.optim.SGD(
            groups(m, momentum=0.5), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1
        ),
    ),
    Built(
        "torch.optim.SGD, dampening, maximize",
        lambda m: torch.optim.SGD(
            m.parameters(), lr=1e-2, momentum=0.9, dampening=0.5, maximize=True, weight_decay=0.1
        ),
    ),
    Built(
        "torch.optim.SGD, fused, maximize, momentum in one group alone",
        lambda m: torch.optim.SGD(
            groups(m, momentum=0.9), lr=torch.tensor(0.1), fused=True, maximize=True
        ),
    ),
    Built(
        "torch.optim.SGD, momentum that ends",
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
        step=momentum_ends,
    ),
    Built(
        "bitsandbytes.optim.SGD",
        lambda m: blockwise("SGD", m),
        package="bitsandbytes",
        dtype=torch.float32,
    ),
    Built(
        "bitsandbytes.optim.SGD8bit",
        lambda m: blockwise("SGD8bit", m, min_8bit_size=0),
        package="bitsandbytes",
        dtype=torch.float32,
    ),
)
