"""Adan of pytorch_optimizer."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from optimizers.built import Built, groups


def adan(**settings: Any) -> Callable[[nn.Module], Optimizer]:
    return partial(_adan, settings)


def _adan(settings: dict[str, Any], model: nn.Module) -> Optimizer:
    from pytorch_optimizer import Adan

    second = groups(model, betas=(0.7, 0.6, 0.9), lr=3e-3)
    return Adan(second, **{"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-4, **settings})


def built(name: str, make: Callable[[nn.Module], Optimizer]) -> Built:
    return Built(f"pytorch_optimizer.{name}", make, "pytorch_optimizer")


BUILT = (
    built("Adan", adan()),
    built("Adan, one by one", adan(foreach=False, maximize=True)),
    built("Adan, decoupled decay", adan(weight_decouple=True, max_grad_norm=0.1)),
    built("Adan, use_gc, adanorm", adan(use_gc=True, adanorm=True)),
)
