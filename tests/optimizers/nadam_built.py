"""NAdam."""

import torch

from optimizers.built import Built, groups

BUILT = (
    Built(
        "torch.optim.NAdam",
        lambda m: torch.optim.NAdam(
            groups(m, betas=(0.7, 0.9), momentum_decay=0.1), lr=1e-2, eps=1e-4, weight_decay=0.1
        ),
    ),
    Built(
        "torch.optim.NAdam, decoupled, foreach",
        lambda m: torch.optim.NAdam(
            groups(m, lr=3e-3),
            lr=1e-2,
            weight_decay=0.1,
            decoupled_weight_decay=True,
            foreach=True,
        ),
    ),
    Built(
        "torch.optim.NAdam, maximize",
        lambda m: torch.optim.NAdam(m.parameters(), lr=1e-2, weight_decay=0.1, maximize=True),
    ),
)
