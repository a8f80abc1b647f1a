"""APOLLO."""

from typing import Any

import torch
from torch import nn

from optimizers.built import Built
from optimizers.galore_built import matrices_and_others


def apollo(**settings: Any) -> Any:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        from pytorch_optimizer import APOLLO

        given = matrices_and_others(model)
        return APOLLO(given, lr=1e-2, weight_decay=0.1, eps=1e-4, **settings)

    return make


BUILT = tuple(
    Built(f"pytorch_optimizer.APOLLO, {words}", apollo(**more), "pytorch_optimizer")
    for words, more in {
        "decay": {},
        "one by one": {"foreach": False, "scale_type": "channel"},
        "correct_bias off": {"correct_bias": False},
        "coupled decay": {"weight_decouple": False, "maximize": True},
        "fixed decay": {"fixed_decay": True},
    }.items()
)
