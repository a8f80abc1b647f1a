"""Sophia of pytorch_optimizer, whose curvatures need a gradient of the gradient."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from optimizers.built import Built, groups


def sophia(**settings: Any) -> Callable[[nn.Module], Optimizer]:
    return partial(_sophia, settings)


def _sophia(settings: dict[str, Any], model: nn.Module) -> Optimizer:
    from pytorch_optimizer import SophiaH

    second = groups(model, betas=(0.7, 0.9), lr=3e-2)
    return SophiaH(second, **{"weight_decay": 0.1, "p": 0.1, "update_period": 2, **settings})


def twice_differentiable(optimizer: Optimizer, loss: Callable[[], torch.Tensor]) -> None:
    """Backward with a graph of its own."""
    optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss().backward(create_graph=True)
    optimizer.step()
    optimizer.zero_grad()


def built(name: str, make: Callable[[nn.Module], Optimizer]) -> Built:
    return Built(f"pytorch_optimizer.{name}", make, "pytorch_optimizer", step=twice_differentiable)


BUILT = (
    built("SophiaH", sophia()),
    built("SophiaH, one by one", sophia(foreach=False, maximize=True)),
    built("SophiaH, unclipped", sophia(p=1e9, eps=1e-2, lr=1e-3)),
    built("SophiaH, coupled decay", sophia(weight_decouple=False)),
    built("SophiaH, fixed decay", sophia(fixed_decay=True)),
)
