"""Prodigy and D-Adaptation."""

from typing import Any

import torch
from torch import nn

from optimizers.built import Built, groups


def adaptive(name: str, **settings: Any) -> Any:
    """Groups may differ in epsilon and decay; d starts where it grows at once."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        import pytorch_optimizer

        second = {"weight_decay": 0.2, "lr": 0.3, "betas": (0.5, 0.5)}
        given = {"lr": 0.5, "d0": 1e-3, "betas": (0.8, 0.9), "weight_decay": 0.1} | settings
        return getattr(pytorch_optimizer, name)(groups(model, **second), **given)

    return make


def prodigyopt(model: nn.Module) -> torch.optim.Optimizer:
    from prodigyopt import Prodigy

    return Prodigy(
        groups(model, weight_decay=0.2),
        lr=0.5,
        d0=1e-3,
        betas=(0.8, 0.9),
        weight_decay=0.1,
        use_bias_correction=True,
    )


BUILT = (
    *(
        Built(
            f"pytorch_optimizer.Prodigy, {words}", adaptive("Prodigy", **more), "pytorch_optimizer"
        )
        for words, more in {
            "decay": {},
            "bias_correction": {"bias_correction": True, "safeguard_warmup": True, "eps": 1e-3},
            "coupled decay": {"weight_decouple": False, "maximize": True},
            "fixed decay": {"fixed_decay": True, "foreach": True, "growth_rate": 1.02},
            "angle for quotient": {"eps": None},
        }.items()
    ),
    Built("prodigyopt.Prodigy", prodigyopt, "prodigyopt"),
    *(
        Built(
            f"pytorch_optimizer.DAdaptAdam, {words}",
            adaptive("DAdaptAdam", **more),
            "pytorch_optimizer",
        )
        for words, more in {
            "coupled decay": {},
            "bias_correction": {
                "bias_correction": True,
                "weight_decouple": True,
                "eps": 1e-3,
                "foreach": False,
            },
            "fixed decay": {"fixed_decay": True, "weight_decouple": True},
        }.items()
    ),
)
