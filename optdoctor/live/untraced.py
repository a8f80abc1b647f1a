"""Keeps the compiler out of the doctor: what a compiled step calls of ours is run, not traced."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """`function`, at which a compiled caller breaks its graph.

    Traced, each sample would be compiled anew. Without torch._dynamo there is no compiler, and
    loading it for this would cost seconds: torch 2.13 loads it with the first optimizer.
    """
    if "torch._dynamo" not in sys.modules:
        return function
    hidden: Function = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return hidden
