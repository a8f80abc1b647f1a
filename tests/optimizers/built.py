"""One optimizer that the probe contract tries, and how a training with it is made."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

STEPS = 6


def plain_step(optimizer: Optimizer, loss: Callable[[], torch.Tensor]) -> None:
    """Backward, then step."""
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def closure_step(optimizer: Optimizer, loss: Callable[[], torch.Tensor]) -> None:
    """The optimizer calls for gradients itself."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


@dataclass(frozen=True)
class Built:
    """An optimizer with settings that use every part of its rule (decay, momentum, ...)."""

    name: str
    """As its users write it: "torch.optim.AdamW, amsgrad"."""
    make: Callable[[nn.Module], Optimizer]
    """Two groups with settings of their own where it allows that."""
    package: str = "torch"
    """Skipped where this cannot be imported; the import stands inside of `make`."""
    bound: float = 1e-5
    """Of the largest difference between change foretold and change measured, relative to the
    largest change, in float64."""
    because: str = ""
    """Why a bound is looser than 1e-5."""
    dtype: torch.dtype = torch.float64
    """float32 where it knows no float64."""
    model: Callable[[], nn.Module] | None = None
    """Another network than the usual one (embedding, linear, norm, head): from words [N] to
    logits [N, 11]."""
    step: Callable[[Optimizer, Callable[[], torch.Tensor]], None] = plain_step

    @property
    def available(self) -> bool:
        """Whether its package is installed."""
        return importlib.util.find_spec(self.package) is not None


def groups(model: nn.Module, **second: object) -> list[dict[str, object]]:
    """All parameters in two groups, the second with settings of its own."""
    parameters = list(model.parameters())
    half = len(parameters) // 2
    return [{"params": parameters[:half]}, {"params": parameters[half:], **second}]


def every() -> list[Built]:
    """Of all files `<family>_built.py` of this folder."""
    package = importlib.import_module(__package__)
    names = [m.name for m in pkgutil.iter_modules(package.__path__) if m.name.endswith("_built")]
    modules = [importlib.import_module(f"{__package__}.{name}") for name in names]
    return [built for module in modules for built in module.BUILT]
