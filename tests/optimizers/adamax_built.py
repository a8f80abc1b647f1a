"""Adamax."""

import torch

from optimizers.built import Built, groups

BUILT = (
    Built(
        "torch.optim.Adamax",
        lambda m: torch.optim.Adamax(
            groups(m, betas=(0.7, 0.5), lr=3e-3), lr=1e-2, eps=1e-4, weight_decay=0.1
        ),
    ),
    Built(
        "torch.optim.Adamax, foreach, maximize",
        lambda m: torch.optim.Adamax(
            groups(m, betas=(0.5, 0.3)), lr=1e-2, foreach=True, maximize=True
        ),
    ),
)
