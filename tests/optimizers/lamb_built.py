"""LAMB of pytorch_optimizer and bitsandbytes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from optimizers.built import Built, groups


def lamb(**settings: Any) -> Callable[[nn.Module], Optimizer]:
    return partial(_lamb, settings)


def _lamb(settings: dict[str, Any], model: nn.Module) -> Optimizer:
    from pytorch_optimizer import Lamb

    second = groups(model, betas=(0.7, 0.9), lr=3e-3)
    return Lamb(second, **{"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-4, **settings})


def blockwise(name: str, **settings: Any) -> Callable[[nn.Module], Optimizer]:
    return partial(_blockwise, name, settings)


def _blockwise(name: str, settings: dict[str, Any], model: nn.Module) -> Optimizer:
    import bitsandbytes

    kind = getattr(bitsandbytes.optim, name)
    second = groups(model, betas=(0.7, 0.9), lr=0.5)
    return kind(second, **{"lr": 1.0, "weight_decay": 0.1, "eps": 1e-4, **settings})


def pytorch_optimizer(name: str, make: Callable[[nn.Module], Optimizer]) -> Built:
    return Built(f"pytorch_optimizer.{name}", make, "pytorch_optimizer")


def bitsandbytes(name: str, make: Callable[[nn.Module], Optimizer]) -> Built:
    return Built(
        f"bitsandbytes.optim.{name}",
        make,
        "bitsandbytes",
        dtype=torch.float32,
    )


BUILT = (
    pytorch_optimizer("Lamb", lamb()),
    pytorch_optimizer("Lamb, one by one", lamb(foreach=False, maximize=True)),
    pytorch_optimizer("Lamb, coupled decay", lamb(weight_decouple=False)),
    pytorch_optimizer("Lamb, fixed decay, adam_debias", lamb(fixed_decay=True, adam_debias=True)),
    pytorch_optimizer("Lamb, adam, pre_norm", lamb(adam=True, pre_norm=True, max_grad_norm=0.1)),
    pytorch_optimizer("Lamb, adanorm", lamb(adanorm=True, grad_averaging=False)),
    pytorch_optimizer("Lamb, rectify", lamb(rectify=True)),
    bitsandbytes("LAMB", blockwise("LAMB")),
    bitsandbytes("LAMB, max_unorm", blockwise("LAMB", max_unorm=0.05)),
    bitsandbytes("LAMB32bit", blockwise("LAMB32bit")),
    bitsandbytes("LAMB8bit", blockwise("LAMB8bit", min_8bit_size=16)),
)
