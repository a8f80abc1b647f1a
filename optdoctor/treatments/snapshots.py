"""Weights and optimizer state as they were, kept in memory and put back to the bit."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from optdoctor.optimizers import layers

PLAIN = (Tensor, nn.Parameter)


@dataclass(frozen=True)
class _Kept:
    """A tensor, wherever its copy lies."""

    value: Tensor
    device: torch.device

    def back(self, now: Any) -> Tensor:
        """Into the tensor that is there now, if it can take it, or as a new one."""
        if isinstance(now, Tensor) and _is_alike(now, self.value):
            now.detach().copy_(self.value)
            return now
        return self.value.to(self.device, copy=True)


class Snapshot:
    """Of an optimizer's weights, of its state and of what else changes within its steps.

    Settings that only the user changes (rates, decay) are none of it, nor are random generators,
    schedules and gradient scalers: data and schedules go on. Gradients are left alone.
    """

    def __init__(
        self,
        optimizer: Any,
        model: nn.Module | None,
        step: int,
        device: torch.device | str | None = None,
    ) -> None:
        """`device` is where copies are kept, None where the tensors lie."""
        self.step = step
        self._layers = layers(optimizer)
        tensors = {id(p): p for one in self._layers for g in one.param_groups for p in g["params"]}
        buffers = {} if model is None else {id(b): b for b in model.buffers()}
        with torch.no_grad():
            self._tensors = [(t, _copied(t, device)) for t in {**tensors, **buffers}.values()]
            self._states = [
                {p: _copied(state, device) for p, state in one.state.items()}
                for one in self._layers
            ]
        self._settings = [[numbers_of(group) for group in one.param_groups] for one in self._layers]

    def restore(self, own: Iterable[str] = ()) -> None:
        """Puts everything back; entries that came later go. `own` are settings of groups that the
        optimizer itself changes within steps, as a count."""
        with torch.no_grad():
            for tensor, kept in self._tensors:
                tensor.detach().copy_(kept.value)
            for one, states in zip(self._layers, self._states, strict=True):
                for key in [key for key in one.state if key not in states]:
                    del one.state[key]
                for key, kept in states.items():
                    one.state[key] = _back(kept, one.state.get(key))
        for one, settings in zip(self._layers, self._settings, strict=True):
            for group, kept in zip(one.param_groups, settings, strict=True):
                group.update({key: kept[key] for key in own if key in kept})


def numbers_of(group: Mapping[str, Any]) -> dict[str, float]:
    """Settings of a group that are numbers."""
    return {key: value for key, value in group.items() if isinstance(value, int | float)}


def _copied(value: Any, device: torch.device | str | None) -> Any:
    if isinstance(value, Tensor):
        plain = type(value) in PLAIN
        moved = value.detach().to(device, copy=True) if plain and device is not None else None
        return _Kept(value.detach().clone() if moved is None else moved, value.device)
    if isinstance(value, Mapping):
        return {key: _copied(one, device) for key, one in value.items()}
    if isinstance(value, list):
        return [_copied(one, device) for one in value]
    return copy.deepcopy(value)


def _back(kept: Any, now: Any) -> Any:
    if isinstance(kept, _Kept):
        return kept.back(now)
    if isinstance(kept, dict):
        there = now if isinstance(now, dict) else {}
        for key in [key for key in there if key not in kept]:
            del there[key]
        there.update({key: _back(one, there.get(key)) for key, one in kept.items()})
        return there
    if isinstance(kept, list):
        old = now if isinstance(now, list) and len(now) == len(kept) else [None] * len(kept)
        return [_back(one, was) for one, was in zip(kept, old, strict=True)]
    return copy.deepcopy(kept)


def _is_alike(one: Tensor, other: Tensor) -> bool:
    kinds = type(one) is type(other) or (type(one) in PLAIN and type(other) in PLAIN)
    form = (one.shape, one.dtype, one.layout) == (other.shape, other.dtype, other.layout)
    return kinds and form
