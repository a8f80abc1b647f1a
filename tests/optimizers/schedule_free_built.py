"""Schedule-free SGD and AdamW."""

from typing import Any

import torch
from torch import nn

from optimizers.built import Built, groups


def of_pytorch_optimizer(name: str, **settings: Any) -> Any:
    """Makes one of that package."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        import pytorch_optimizer

        second = {"betas": (0.8, 0.7)} if "betas" in settings else {"momentum": 0.6}
        return getattr(pytorch_optimizer, name)(groups(model, lr=3e-3, **second), **settings)

    return make


def of_schedulefree(name: str, **settings: Any) -> Any:
    """Makes one of that package, in training mode."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        import schedulefree

        optimizer = getattr(schedulefree, name)(groups(model, lr=3e-3), **settings)
        optimizer.train()
        return optimizer

    return make


def wrapped(model: nn.Module) -> torch.optim.Optimizer:
    from pytorch_optimizer import ScheduleFreeWrapper

    optimizer = ScheduleFreeWrapper(torch.optim.AdamW(groups(model, lr=3e-3), lr=1e-2))
    optimizer.train()
    return optimizer


ADAMW = {"lr": 1e-2, "betas": (0.9, 0.9), "weight_decay": 0.1, "eps": 1e-4, "warmup_steps": 4}

BUILT = (
    *(
        Built(
            f"pytorch_optimizer.ScheduleFreeAdamW, {words}",
            of_pytorch_optimizer("ScheduleFreeAdamW", **{**ADAMW, **more}),
            "pytorch_optimizer",
        )
        for words, more in {
            "warmup": {"r": 1.0},
            "one by one": {"foreach": False},
            "ams_bound": {"ams_bound": True},
            "decoupling_c": {"decoupling_c": 5},
            "maximize": {"maximize": True, "weight_lr_power": 0.0},
            "small epsilon": {"eps": 1e-12},
        }.items()
    ),
    Built(
        "pytorch_optimizer.ScheduleFreeSGD",
        of_pytorch_optimizer("ScheduleFreeSGD", lr=1e-2, weight_decay=0.1, warmup_steps=3, r=0.5),
        "pytorch_optimizer",
    ),
    Built(
        "pytorch_optimizer.ScheduleFreeRAdam",
        of_pytorch_optimizer("ScheduleFreeRAdam", lr=1e-2, betas=(0.9, 0.9)),
        "pytorch_optimizer",
    ),
    Built("pytorch_optimizer.ScheduleFreeWrapper", wrapped, "pytorch_optimizer"),
    Built(
        "schedulefree.AdamWScheduleFree",
        of_schedulefree("AdamWScheduleFree", **ADAMW),
        "schedulefree",
    ),
    Built(
        "schedulefree.SGDScheduleFree",
        of_schedulefree("SGDScheduleFree", lr=1e-2, weight_decay=0.1, warmup_steps=3),
        "schedulefree",
    ),
    Built(
        "schedulefree.RAdamScheduleFree",
        of_schedulefree("RAdamScheduleFree", lr=1e-2),
        "schedulefree",
    ),
)
