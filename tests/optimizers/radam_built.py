"""RAdam: with beta2 = 0.999 all six updates but the last divide by nothing."""

import torch

from optimizers.built import Built, groups

BUILT = (
    Built(
        "torch.optim.RAdam",
        lambda m: torch.optim.RAdam(
            groups(m, betas=(0.7, 0.9), eps=1e-3), lr=1e-2, weight_decay=0.1
        ),
    ),
    Built(
        "torch.optim.RAdam, decoupled, foreach",
        lambda m: torch.optim.RAdam(
            groups(m, lr=3e-3),
            lr=1e-2,
            weight_decay=0.1,
            decoupled_weight_decay=True,
            foreach=True,
        ),
    ),
    Built(
        "torch.optim.RAdam, maximize, never divides",
        lambda m: torch.optim.RAdam(m.parameters(), lr=1e-2, betas=(0.9, 0.6), maximize=True),
    ),
)
