"""The registry of optimizer families: what the state of each means. Adding one is adding a file."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class Moments:
    """The running means that an optimizer holds of one tensor, as stored; None if it has none."""

    first: Tensor | None = None  # shape of the tensor
    second: Tensor | None = None  # shape of the tensor
    step: Tensor | int | float | None = None
    """Updates that the means have seen."""
    divisor: Tensor | None = None
    """What divides in place of `second`, where that is another tensor."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One family of optimizers."""

    family: str
    matches: tuple[str, ...]
    """Qualified class names; a subclass matches through its bases."""
    moments: Callable[[Mapping[str, Any]], Moments]
    """From the state of one tensor."""
    facts: Callable[[Mapping[str, Any]], dict[str, float]]
    """Run channels from one parameter group."""
    adaptive: bool
    """Whether it divides by the root of a second moment, as Adam does."""
    make: Callable[[list[torch.nn.Parameter]], Optimizer]
    """A small one, for the contract test."""
    state_dtype: Callable[[torch.dtype], torch.dtype] = lambda dtype: dtype
    """dtype of the moments that it will hold of a tensor of this dtype."""


WRAPPERS = 8
"""Wrappers around one optimizer beyond which the search ends."""


@cache
def probes() -> tuple[Probe, ...]:
    """All families of this folder, the fallback last."""
    modules = (
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    )
    found = [module.PROBE for module in modules if hasattr(module, "PROBE")]
    return tuple(sorted(found, key=lambda probe: (not probe.matches, probe.family)))


def state_of(optimizer: Optimizer, parameter: Tensor) -> Mapping[str, Any]:
    """What it holds of one tensor, empty if nothing. Asking creates no entry."""
    state = optimizer.state.get(parameter)
    return state if isinstance(state, Mapping) else {}


def number_of(value: Any) -> float:
    """A rate, setting or counter that may be a number or a tensor; NaN for anything else."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.detach()
        return float(value.to_local() if hasattr(value, "to_local") else value)
    return float(value) if isinstance(value, int | float) else float("nan")


def probe_of(optimizer: Optimizer) -> Probe:
    """The family of an optimizer; one that nobody knows gets the fallback."""
    names = {f"{c.__module__}.{c.__qualname__}" for c in type(optimizer).__mro__}
    for probe in probes():
        if not probe.matches or names.intersection(probe.matches):
            return probe
    raise AssertionError("the fallback matches everything")


def innermost(optimizer: Any) -> Optimizer:
    """The torch optimizer inside wrappers such as accelerate's.

    A wrapper may inherit from Optimizer without running its constructor; its own hooks then fail.

    Raises:
        TypeError: there is no torch optimizer inside.
    """
    seen = optimizer
    for _ in range(WRAPPERS):
        if hasattr(seen, "_optimizer_step_post_hooks") or not hasattr(seen, "optimizer"):
            break
        seen = seen.optimizer
    if not isinstance(seen, Optimizer) or not hasattr(seen, "_optimizer_step_post_hooks"):
        raise TypeError(f"{type(optimizer).__name__} holds no torch.optim.Optimizer")
    return seen
