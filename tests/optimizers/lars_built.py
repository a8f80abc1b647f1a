"""LARS of pytorch_optimizer and bitsandbytes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from optimizers.built import Built, groups


def lars(package: str, name: str, **settings: Any) -> Callable[[nn.Module], Optimizer]:
    return partial(_lars, package, name, settings)


def _lars(package: str, name: str, settings: dict[str, Any], model: nn.Module) -> Optimizer:
    import importlib

    kind = getattr(importlib.import_module(package), name)
    return kind(
        groups(model, lr=0.5), **{"lr": 1.0, "momentum": 0.9, "weight_decay": 0.1, **settings}
    )


def pytorch_optimizer(name: str, **settings: Any) -> Built:
    make = lars("pytorch_optimizer", "LARS", trust_coefficient=0.1, **settings)
    return Built(f"pytorch_optimizer.{name}", make, "pytorch_optimizer")


def bitsandbytes(name: str, **settings: Any) -> Built:
    return Built(
        f"bitsandbytes.optim.{name}",
        lars("bitsandbytes.optim", name.split(",")[0], **settings),
        "bitsandbytes",
        dtype=torch.float32,
    )


BUILT = (
    pytorch_optimizer("LARS"),
    pytorch_optimizer("LARS, one by one", foreach=False, maximize=True),
    pytorch_optimizer("LARS, nesterov, dampening", nesterov=True, dampening=0.5),
    pytorch_optimizer("LARS, no momentum", momentum=0.0),
    bitsandbytes("LARS"),
    bitsandbytes("LARS32bit, max_unorm", max_unorm=0.5),
    bitsandbytes("LARS8bit", min_8bit_size=16),
)
