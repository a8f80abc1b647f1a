"""Rprop."""

import torch

from optimizers.built import Built, groups

BUILT = (
    Built(
        "torch.optim.Rprop",
        lambda m: torch.optim.Rprop(groups(m, etas=(0.1, 3.0)), lr=1e-2, step_sizes=(5e-3, 0.02)),
    ),
    Built(
        "torch.optim.Rprop, maximize",
        lambda m: torch.optim.Rprop(groups(m, lr=0.1), lr=1e-2, maximize=True, foreach=True),
    ),
)
