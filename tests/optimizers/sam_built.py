"""Sharpness-aware minimization."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from optimizers.built import Built, closure_step, groups

ADAMW = {"weight_decay": 0.1, "eps": 1e-4}


def two_passes(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> None:
    """The first gradients before the step, the second in its closure."""
    optimizer.zero_grad()
    loss().backward()
    closure_step(optimizer, loss)


def two_halves(optimizer: Any, loss: Callable[[], Tensor]) -> None:
    """As most of its users call it; `step` is never called."""
    optimizer.zero_grad()
    loss().backward()
    optimizer.first_step(zero_grad=True)
    loss().backward()
    optimizer.second_step()


def all_in_the_step(optimizer: Any, loss: Callable[[], Tensor]) -> None:
    """The closure is called twice, and returns outputs too."""

    def closure() -> tuple[None, Tensor]:
        optimizer.zero_grad()
        with torch.enable_grad():
            value = loss()
        value.backward()
        return None, value

    optimizer.step(closure)


def sam(name: str = "SAM", **settings: Any) -> Any:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        import pytorch_optimizer

        kind = getattr(pytorch_optimizer, name)
        given = [] if name != "WSAM" else [model]
        return kind(*given, groups(model, lr=3e-3), torch.optim.AdamW, lr=1e-2, **ADAMW, **settings)

    return make


def gsam(model: nn.Module) -> torch.optim.Optimizer:
    from pytorch_optimizer import GSAM

    inside = torch.optim.AdamW(groups(model, lr=3e-3), lr=1e-2, **ADAMW)
    radius = SimpleNamespace(step=lambda: 0.05)
    return GSAM(model.parameters(), inside, model, radius)


BUILT = (
    Built("pytorch_optimizer.SAM", sam(), "pytorch_optimizer", step=two_passes),
    Built(
        "pytorch_optimizer.SAM, by halves",
        sam(adaptive=True, rho=0.5),
        "pytorch_optimizer",
        step=two_halves,
    ),
    Built("pytorch_optimizer.LookSAM", sam("LookSAM", k=2), "pytorch_optimizer", step=two_passes),
    Built(
        "pytorch_optimizer.FriendlySAM", sam("FriendlySAM"), "pytorch_optimizer", step=two_passes
    ),
    Built("pytorch_optimizer.GSAM", gsam, "pytorch_optimizer", step=all_in_the_step),
    Built("pytorch_optimizer.WSAM", sam("WSAM"), "pytorch_optimizer", step=two_passes),
)
