"""A parameter that is another tensor for a while, and then itself again."""

import sys
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from optdoctor.optimizers.untraced import WRAPPER
from optdoctor.treatments.around import closure_is_made

HALF = (torch.float16, torch.bfloat16)


def is_half(value: Any) -> bool:
    """Whether it is a tensor of 16 bits, whole in this process."""
    return isinstance(value, Tensor) and value.dtype in HALF and not hasattr(value, "to_local")


def swap(one: Tensor, other: Tensor) -> None:
    """Exchanges what two tensors are: storage, dtype, gradient, hooks. Objects stay, and with them
    who knows them: groups, states, modules.

    Setting `.data` to another dtype would do for a lone process, but torch then drops the node that
    accumulates the gradient, and with it the hooks of DDP: processes would part silently (seen:
    torch 2.13). `torch.utils.swap_tensors` spoils that node too.

    Raises:
        RuntimeError: C++ holds a weak reference to one of them; nothing is changed then.
    """
    torch._C._swap_tensor_impl(one, other)


def closure_at_work(optimizer: Optimizer) -> bool:
    """Whether the step that calls, by torch's own frames, will run a closure."""
    if closure_is_made(optimizer):
        return False
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code.co_qualname != WRAPPER or frame.f_locals["args"][0] is not optimizer:
            continue
        given = frame.f_locals["args"][1:] + tuple(frame.f_locals["kwargs"].values())
        return any(map(callable, given))
    return False
