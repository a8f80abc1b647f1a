"""How a training stands at one moment, so that it can go on from there again."""

import copy
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from optdoctor.live.kept import OPENED, Kept

DEVICES = ("cuda", "xpu", "mps")
"""Kinds that have generators of their own."""
LOADERS = ("generator", "sampler", "batch_sampler")
"""Where a DataLoader holds generators."""


class Standing:
    """Weights, buffers, gradients, settings and mode of each module; state and settings of each
    optimizer; schedules, scalers and others; generators of torch, numpy and Python.

    What is not seen from these, as a file or a counter of the loop's own, is not kept.
    """

    def __init__(self, model: nn.Module, optimizers: Iterable[Any], also: Iterable[Any]) -> None:
        """`also`: schedules, scalers, averaged models, loaders, generators, or anything else with
        `state_dict` and `load_state_dict`.

        Raises:
            ValueError: the model has parameters whose shape the first batch gives.
            TypeError: one of `also` has no state that can be kept.
        """
        self._kept, self._loading = Kept(), []  # type: tuple[Kept, list[Callable[[], None]]]
        self._keep_model(model)
        for one in optimizers:
            self._kept.keep(one)
        for one in also:
            self._keep_other(one)
        self._generators = generators()

    def restore(self) -> None:
        """All of it is again what it was; an interruption waits until then."""
        try:
            self._restore()
        except KeyboardInterrupt:
            self._restore()
            raise

    def _restore(self) -> None:
        for load in self._loading:
            load()
        self._kept.restore()
        for put_back in self._generators:
            put_back()
        torch.clear_autocast_cache()  # copies of weights that were others

    def _keep_model(self, model: nn.Module) -> None:
        if any(map(is_lazy, [*model.parameters(), *model.buffers()])):
            raise ValueError(
                "the model has parameters that its first batch gives a shape: give it one before"
            )
        for module in model.modules():
            self._kept.keep(module)
        for tensor in (*model.parameters(), *model.buffers()):
            self._kept.keep(tensor)

    def _keep_other(self, one: Any) -> None:
        if isinstance(one, nn.Module):
            self._keep_model(one)
        elif isinstance(one, OPENED):
            self._kept.keep(one)
        elif hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
            state = copy.deepcopy(one.state_dict())
            self._loading.append(lambda: one.load_state_dict(copy.deepcopy(state)))
        elif isinstance(one, torch.Generator | random.Random) or type(one).__module__.startswith(
            "numpy.random"
        ):
            self._kept.keep(one)
        elif any(hasattr(one, name) for name in LOADERS):
            self.keep_loader(one)
        else:
            raise TypeError(
                f"a {type(one).__name__} has no state_dict and load_state_dict to be kept by"
            )

    def keep_loader(self, loader: Any) -> None:
        """Generators of a loader and of its samplers, where it has any."""
        several = [loader, *(getattr(loader, name, None) for name in LOADERS)]
        several.append(getattr(getattr(loader, "batch_sampler", None), "sampler", None))
        for one in several:
            generator = one if isinstance(one, torch.Generator) else getattr(one, "generator", None)
            if isinstance(generator, torch.Generator | np.random.Generator):
                self._kept.keep(generator)


def generators() -> list[Callable[[], None]]:
    """How the generators of this process are put back."""
    on_host, plain, of_numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    several: list[Callable[[], None]] = [
        lambda: torch.set_rng_state(on_host),
        lambda: random.setstate(plain),
        lambda: np.random.set_state(of_numpy),  # noqa: NPY002
    ]
    for kind in DEVICES:
        several += _on_device(kind)
    return several


def _on_device(kind: str) -> list[Callable[[], None]]:
    """Of devices of this kind that are in use: asking the others would start them."""
    part = getattr(torch, kind, None)
    if part is None or not getattr(part, "is_available", torch.backends.mps.is_available)():
        return []
    if hasattr(part, "get_rng_state_all"):
        if not part.is_initialized():
            return []
        states = part.get_rng_state_all()
        return [lambda: part.set_rng_state_all(states)]
    state = part.get_rng_state()
    return [lambda: part.set_rng_state(state)]
