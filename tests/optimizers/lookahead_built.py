"""Lookahead."""

from typing import Any

import torch
from torch import nn

from optimizers.built import Built, groups


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups(model, lr=3e-3), lr=1e-2, weight_decay=0.1, eps=1e-4)


def rmsprop(model: nn.Module) -> torch.optim.Optimizer:
    """Its groups have an alpha of their own."""
    return torch.optim.RMSprop(groups(model, lr=3e-3), lr=1e-2, alpha=0.7)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups(model, lr=3e-3), lr=1e-2, momentum=0.9)


def soap(model: nn.Module) -> torch.optim.Optimizer:
    """With a setting under which its own change is not foretold."""
    from pytorch_optimizer import SOAP

    return SOAP(groups(model, lr=3e-3), lr=1e-2, normalize_gradient=True)


def lookahead(inside: Any, **settings: Any) -> Any:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        from pytorch_optimizer import Lookahead

        return Lookahead(inside(model), **{"k": 2, "alpha": 0.3} | settings)

    return make


BUILT = (
    Built("pytorch_optimizer.Lookahead(AdamW)", lookahead(adamw), "pytorch_optimizer"),
    Built("pytorch_optimizer.Lookahead(RMSprop)", lookahead(rmsprop, k=3), "pytorch_optimizer"),
    Built("pytorch_optimizer.Lookahead(SGD)", lookahead(sgd), "pytorch_optimizer"),
    Built(
        "pytorch_optimizer.Lookahead(SGD), pullback",
        lookahead(sgd, pullback_momentum="pullback"),
        "pytorch_optimizer",
    ),
    Built("pytorch_optimizer.Lookahead(SOAP)", lookahead(soap), "pytorch_optimizer"),
)
