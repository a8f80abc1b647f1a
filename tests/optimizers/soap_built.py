"""SOAP."""

from typing import Any

import torch
from torch import nn

from optimizers.built import Built, groups


def soap(**settings: Any) -> Any:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        from pytorch_optimizer import SOAP

        second = {"betas": (0.8, 0.7), "lr": 3e-3}
        return SOAP(groups(model, **second), lr=1e-2, weight_decay=0.1, eps=1e-4, **settings)

    return make


BUILT = (
    Built("pytorch_optimizer.SOAP", soap(), "pytorch_optimizer"),
    Built(
        "pytorch_optimizer.SOAP, precondition_1d",
        soap(precondition_1d=True, max_precondition_dim=8),
        "pytorch_optimizer",
    ),
    Built(
        "pytorch_optimizer.SOAP, sides that are too long",
        soap(max_precondition_dim=4),
        "pytorch_optimizer",
    ),
    Built(
        "pytorch_optimizer.SOAP, correct_bias off",
        soap(correct_bias=False, maximize=True),
        "pytorch_optimizer",
    ),
    Built(
        "pytorch_optimizer.SOAP, normalize_gradient",
        soap(normalize_gradient=True),
        "pytorch_optimizer",
    ),
)
