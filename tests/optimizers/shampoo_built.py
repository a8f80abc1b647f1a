"""Shampoo."""

from typing import Any

import torch
from torch import nn

from optimizers.built import Built, groups


def shampoo(name: str, **settings: Any) -> Any:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        import pytorch_optimizer

        return getattr(pytorch_optimizer, name)(groups(model, lr=3e-3), lr=1e-2, **settings)

    return make


BUILT = (
    Built("pytorch_optimizer.Shampoo", shampoo("Shampoo"), "pytorch_optimizer"),
    Built(
        "pytorch_optimizer.Shampoo, momentum, decay",
        shampoo("Shampoo", momentum=0.9, weight_decay=0.1, preconditioning_compute_steps=2),
        "pytorch_optimizer",
    ),
    Built(
        "pytorch_optimizer.Shampoo, decoupled decay",
        shampoo("Shampoo", weight_decay=0.1, weight_decouple=True, maximize=True),
        "pytorch_optimizer",
    ),
    Built(
        "pytorch_optimizer.Shampoo, fixed decay",
        shampoo("Shampoo", weight_decay=0.01, weight_decouple=True, fixed_decay=True),
        "pytorch_optimizer",
    ),
    Built("pytorch_optimizer.ScalableShampoo", shampoo("ScalableShampoo"), "pytorch_optimizer"),
)
