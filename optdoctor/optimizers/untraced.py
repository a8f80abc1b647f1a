"""Keeps the compiler out of the doctor: what a compiled step calls of ours is run, not traced.

And tells a step from one within it, by torch's own frames.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

WRAPPER = torch.optim.Optimizer.profile_hook_step.__qualname__ + ".<locals>.wrapper"
Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """`function`, at which a compiled caller breaks its graph.

    Traced, each sample would be compiled anew. Without torch._dynamo there is no compiler, and
    loading it for this would cost seconds: torch 2.13 loads it with the first optimizer.
    """
    apart = _outside_inference(function)
    if "torch._dynamo" not in sys.modules:
        return apart
    hidden: Function = torch.compiler.disable(apart)  # type: ignore[no-untyped-call]
    return hidden


def _outside_inference(function: Function) -> Function:
    """`function` outside of inference mode: a buffer made in it could not be written to later."""

    @wraps(function)
    def apart(*args: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            return function(*args)
        with torch.inference_mode(False), torch.no_grad():
            return function(*args)

    return cast(Function, apart)


def num_steps_at_work(optimizer: object) -> int:
    """Of this optimizer, on the stack of the caller: wrappers that call hooks. Seen: torch 2.13."""
    count, frame = 0, sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code.co_qualname == WRAPPER and frame.f_locals["args"][0] is optimizer:
            count += 1
    return count
