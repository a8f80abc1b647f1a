"""AdEMAMix of pytorch_optimizer and bitsandbytes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from optimizers.built import Built, groups


def ademamix(package: str, name: str, **settings: Any) -> Callable[[nn.Module], Optimizer]:
    return partial(_ademamix, package, name, settings)


def _ademamix(package: str, name: str, settings: dict[str, Any], model: nn.Module) -> Optimizer:
    import importlib

    kind = getattr(importlib.import_module(package), name)
    second = groups(model, betas=(0.7, 0.9, 0.95), lr=0.1)
    return kind(
        second,
        **{"lr": 0.2, "weight_decay": 0.1, "eps": 1e-4, "betas": (0.9, 0.99, 0.98), **settings},
    )


def pytorch_optimizer(name: str, **settings: Any) -> Built:
    make = ademamix("pytorch_optimizer", "AdEMAMix", **settings)
    return Built(f"pytorch_optimizer.{name}", make, "pytorch_optimizer")


def bitsandbytes(name: str, **settings: Any) -> Built:
    return Built(
        f"bitsandbytes.optim.{name}",
        ademamix("bitsandbytes.optim", name.split(",")[0], **settings),
        "bitsandbytes",
        dtype=torch.float32,
    )


BUILT = (
    pytorch_optimizer("AdEMAMix"),
    pytorch_optimizer("AdEMAMix, one by one", foreach=False, maximize=True),
    pytorch_optimizer("AdEMAMix, warmup, decoupled", t_alpha_beta3=4, weight_decouple=True),
    pytorch_optimizer("AdEMAMix, fixed decay", weight_decouple=True, fixed_decay=True),
    pytorch_optimizer("AdEMAMix, cautious", cautious=True),
    pytorch_optimizer("AdEMAMix, stable_adamw", stable_adamw=True),
    bitsandbytes("AdEMAMix"),
    bitsandbytes("AdEMAMix, warmup", t_alpha=4, t_beta3=4),
    bitsandbytes("AdEMAMix8bit", min_8bit_size=16),
    bitsandbytes("AdEMAMix8bit, warmup", min_8bit_size=16, t_alpha=4, t_beta3=4),
)
