"""What treatments ask of gradients: which there are, how large, and whether all processes agree."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def with_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Those of which the step will find a gradient."""
    return [p for p in parameters if p.grad is not None]


def scale_of(optimizer: Any) -> Tensor | None:
    """What the gradients are multiplied by where the step unscales them itself, as a fused one does
    under a GradScaler (seen in torch 2.4 to 2.13: `grad_scale`); None where they are true."""
    scale = getattr(optimizer, "grad_scale", None)
    return scale if isinstance(scale, Tensor) else None


def several_train() -> bool:
    """Whether several processes do, as far as torch knows."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return False
    return distributed.get_world_size() > 1


def agreed(flag: Tensor) -> Tensor:
    """Whether it is set in any process: each has to ask at every step, in the same order."""
    if not several_train():
        return flag
    distributed = torch.distributed
    vote = flag.to(torch.float32).reshape(1)
    distributed.all_reduce(vote, op=distributed.ReduceOp.MAX)
    return vote.reshape(()) > 0
