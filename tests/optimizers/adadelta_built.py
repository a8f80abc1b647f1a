"""Adadelta."""

import torch

from optimizers.built import Built, groups

BUILT = (
    Built(
        "torch.optim.Adadelta",
        lambda m: torch.optim.Adadelta(
            groups(m, rho=0.5, lr=0.1), lr=1.0, eps=1e-4, weight_decay=0.1
        ),
    ),
    Built(
        "torch.optim.Adadelta, maximize",
        lambda m: torch.optim.Adadelta(groups(m, eps=1e-2), maximize=True, foreach=True),
    ),
)
