"""Muon of torch and pytorch_optimizer."""

import torch
from torch import nn

from optimizers.built import Built


def matrices(model: nn.Module) -> list[nn.Parameter]:
    """What Muon takes; the rest of the network is left alone."""
    return [p for p in model.parameters() if p.ndim == 2]


def mixed(model: nn.Module, **settings: object) -> torch.optim.Optimizer:
    """Matrices to Muon, the rest to AdamW."""
    from pytorch_optimizer import Muon

    rest = [p for p in model.parameters() if p.ndim != 2]
    adam = {"lr": 1e-2, "betas": (0.7, 0.9), "eps": 1e-4, "weight_decay": 0.1, "use_muon": False}
    muon = {"lr": 1e-2, "weight_decay": 0.1, "use_muon": True}
    return Muon([{"params": matrices(model), **muon}, {"params": rest, **adam}], **settings)


BUILT = (
    Built("torch.optim.Muon", lambda m: torch.optim.Muon(matrices(m), lr=1e-2)),
    Built("pytorch_optimizer.Muon", mixed, package="pytorch_optimizer"),
    Built(
        "pytorch_optimizer.Muon, coupled decay, maximize",
        lambda m: mixed(m, weight_decouple=False, maximize=True, nesterov=False, foreach=False),
        package="pytorch_optimizer",
    ),
)
