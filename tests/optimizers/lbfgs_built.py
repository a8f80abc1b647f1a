"""L-BFGS."""

import torch

from optimizers.built import Built, closure_step

BUILT = (
    Built(
        "torch.optim.LBFGS",
        lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=3),
        step=closure_step,
    ),
)
