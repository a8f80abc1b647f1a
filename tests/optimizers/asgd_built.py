"""ASGD."""

import torch

from optimizers.built import Built, groups

BUILT = (
    Built(
        "torch.optim.ASGD",
        lambda m: torch.optim.ASGD(
            groups(m, alpha=0.5, t0=2), lr=0.1, lambd=0.5, weight_decay=0.1, t0=1e6
        ),
    ),
    Built(
        "torch.optim.ASGD, maximize",
        lambda m: torch.optim.ASGD(groups(m, lr=0.01), lr=0.1, maximize=True, foreach=True),
    ),
)
