"""GaLore."""

from typing import Any

import torch
from torch import nn

from optimizers.built import Built


def matrices_and_others(model: nn.Module, **low_rank: Any) -> list[dict[str, Any]]:
    """Two groups; the matrices of the first are projected."""
    parameters = list(model.parameters())
    half = len(parameters) // 2
    given = {"rank": 2, "update_proj_gap": 2, "scale": 0.5, "projection_type": "std"} | low_rank
    second = {"lr": 3e-3, "betas": (0.8, 0.7)}
    return [{"params": parameters[:half], **given}, {"params": parameters[half:], **second}]


def galore(**settings: Any) -> Any:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        from pytorch_optimizer import GaLore

        given = matrices_and_others(model)
        return GaLore(given, lr=1e-2, weight_decay=0.1, eps=1e-4, **settings)

    return make


def galore_torch(model: nn.Module) -> torch.optim.Optimizer:
    """It would project whatever has a rank in its group."""
    from galore_torch import GaLoreAdamW

    low_rank = {"rank": 2, "update_proj_gap": 2, "scale": 0.5, "proj_type": "std"}
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    given = [{"params": matrices[:1], **low_rank}, {"params": matrices[1:] + others, "lr": 3e-3}]
    return GaLoreAdamW(given, lr=1e-2, weight_decay=0.1, eps=1e-4, no_deprecation_warning=True)


BUILT = (
    Built("pytorch_optimizer.GaLore", galore(), "pytorch_optimizer"),
    Built(
        "pytorch_optimizer.GaLore, one by one",
        galore(foreach=False, maximize=True),
        "pytorch_optimizer",
    ),
    Built("galore_torch.GaLoreAdamW", galore_torch, "galore_torch"),
)
