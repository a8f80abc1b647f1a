"""StableAdamW of pytorch_optimizer."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from optimizers.built import Built, groups


def stable(**settings: Any) -> Callable[[nn.Module], Optimizer]:
    return partial(_stable, settings)


def _stable(settings: dict[str, Any], model: nn.Module) -> Optimizer:
    from pytorch_optimizer import StableAdamW

    second = groups(model, betas=(0.7, 0.95), lr=3e-3)
    return StableAdamW(second, **{"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-4, **settings})


def built(name: str, make: Callable[[nn.Module], Optimizer], **options: Any) -> Built:
    return Built(f"pytorch_optimizer.{name}", make, "pytorch_optimizer", **options)


BUILT = (
    built("StableAdamW", stable()),
    built("StableAdamW, one by one", stable(foreach=False, maximize=True)),
    built("StableAdamW, coupled decay", stable(weight_decouple=False)),
    built("StableAdamW, small eps", stable(eps=1e-8)),
)
