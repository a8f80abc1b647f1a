"""AdaBelief and AdaNorm of pytorch_optimizer."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from optimizers.built import Built, groups, plain_step

Step = Callable[[Optimizer, Callable[[], Tensor]], None]


def adaptive(name: str, **settings: Any) -> Callable[[nn.Module], Optimizer]:
    return partial(_adaptive, name, settings)


def _adaptive(name: str, settings: dict[str, Any], model: nn.Module) -> Optimizer:
    import pytorch_optimizer

    kind = getattr(pytorch_optimizer, name)
    second = groups(model, betas=(0.7, 0.9), lr=3e-3)
    return kind(second, **{"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-4, **settings})


def faint_step(optimizer: Optimizer, loss: Callable[[], Tensor]) -> None:
    """With gradients whose squares are of the size of what is added to them."""
    plain_step(optimizer, lambda: loss() * 1e-6)


def built(name: str, step: Step = plain_step, **settings: Any) -> Built:
    make = adaptive(name.split(",")[0], **settings)
    return Built(f"pytorch_optimizer.{name}", make, "pytorch_optimizer", step=step)


BUILT = (
    built("AdaBelief"),
    built("AdaBelief, one by one", foreach=False, maximize=True),
    built("AdaBelief, ams_bound", ams_bound=True, betas=(0.1, 0.2)),
    built("AdaBelief, coupled decay, adam_debias", weight_decouple=False, adam_debias=True),
    built("AdaBelief, fixed decay, adanorm", fixed_decay=True, adanorm=True),
    built("AdaBelief, rectify", rectify=True),
    built("AdaNorm"),
    built("AdaNorm, one by one", foreach=False, maximize=True),
    built("AdaNorm, ams_bound, adam_debias", ams_bound=True, adam_debias=True),
    built("AdaNorm, coupled decay", weight_decouple=False),
    built("AdaNorm, fixed decay", fixed_decay=True),
    built("AdaNorm, faint gradients", step=faint_step, eps=1e-12, weight_decay=0.0),
)
