"""The registry of optimizer families: what the state of each means. Adding one is adding a file."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from numbers import Real
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from optdoctor.optimizers.probe import Group, Probe, State

WRAPPERS = 8
"""Wrappers around one optimizer beyond which the search ends."""


@cache
def probes() -> tuple[Probe, ...]:
    """All kinds of all families of this folder, the fallback last.

    A file that holds no `PROBES` is no family.
    """
    modules = [
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    ]
    found = [probe for module in modules for probe in getattr(module, "PROBES", ())]
    return tuple(sorted(found, key=lambda probe: (not probe.matches, probe.family)))


def probe_of(optimizer: Optimizer) -> Probe:
    """What is known of this optimizer; of one that nobody knows, the fallback."""
    probe, _ = _probe_and_class(optimizer)
    inside = _inside(optimizer)
    if inside is None or probe.around is None:
        return probe
    return probe.around(probe_of(inside))


def keeps_rule(optimizer: Optimizer) -> bool:
    """Whether it moves weights by the rule of its probe: a subclass may have one of its own."""
    probe, base = _probe_and_class(optimizer)
    step = inspect.unwrap(type(optimizer).step)
    if not probe.matches or step is not inspect.unwrap(base.step):
        return False
    inside = _inside(optimizer)
    return inside is None or keeps_rule(inside)


def _probe_and_class(optimizer: Any) -> tuple[Probe, Any]:
    """The nearest base that is known decides."""
    kind: Any = type(optimizer)
    return _of_class(kind)


@cache
def _of_class(kind: Any) -> tuple[Probe, Any]:
    by_name = {name: probe for probe in probes() for name in probe.matches}
    for base in kind.__mro__:
        if probe := by_name.get(f"{base.__module__}.{base.__qualname__}"):
            return probe, base
    return probes()[-1], kind


def _inside(optimizer: Any) -> Any:
    """What a known wrapper is built around; None where there is nothing known."""
    probe, _ = _probe_and_class(optimizer)
    name = "base_optimizer" if _has_two_passes(optimizer) else probe.inside
    return getattr(optimizer, name, None) if name else None


def layers(optimizer: Any) -> list[Any]:
    """It and the optimizers inside of it, inward: the last holds the moments, and what is loaded is
    loaded through any of them."""
    found = [optimizer]
    while len(found) < WRAPPERS:
        inside = _inside(found[-1])
        inside = getattr(found[-1], "optimizer", None) if inside is None else inside
        if not isinstance(inside, Optimizer):
            break
        found.append(inside)
    return found


def settings_of(optimizer: Optimizer, group: Group) -> Group:
    """The group, and over it what the optimizer keeps on itself: what a probe is asked with."""
    own = probe_of(optimizer).own
    inward = reversed(layers(optimizer)) if own else ()
    kept = {name: getattr(one, name) for one in inward for name in own if hasattr(one, name)}
    return {**group, **kept} if kept else group


def state_of(optimizer: Optimizer, parameter: Tensor) -> Mapping[str, Any]:
    """What it holds of one tensor, empty if nothing. Asking creates no entry.

    A known wrapper's entries and those of the optimizer inside are one.
    """
    own = optimizer.state.get(parameter)
    own = own if isinstance(own, Mapping) else {}
    inside = _inside(optimizer)
    if inside is None or inside.state is optimizer.state:
        return own
    return {**own, **state_of(inside, parameter)}


def reader_of(optimizer: Optimizer) -> Callable[[Tensor], State]:
    """`state_of` of one optimizer as it is now, to be asked of many tensors."""
    inside = _inside(optimizer)
    if inside is not None and inside.state is not optimizer.state:
        return lambda parameter: state_of(optimizer, parameter)
    # To hash a tensor costs four times its id.
    states = {id(p): state for p, state in optimizer.state.items() if isinstance(state, Mapping)}
    return lambda parameter: states.get(id(parameter), {})


def number_of(value: Any) -> float:
    """A rate, setting or counter that may be a number or a tensor; NaN for anything else.

    Waits where the tensor lies on a device.
    """
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.detach()
        value = value.to_local() if hasattr(value, "to_local") else value
        return float(value.reshape(-1).tolist()[0])
    return float(value) if isinstance(value, int | float | Real) else float("nan")


def innermost(optimizer: Any) -> Optimizer:
    """The torch optimizer within whose step weights change as they do from update to update.

    Inside wrappers such as accelerate's, whose own hooks fail: they inherit from Optimizer without
    running its constructor. Not inside those that move weights after the step of the one inside
    (Lookahead), unless their hooks are never called; what they do outside of it is then not seen.

    Raises:
        TypeError: there is no torch optimizer inside.
    """
    seen = optimizer
    for _ in range(WRAPPERS):
        if _calls_hooks(seen) and not _moves_inside(seen):
            break
        inside = _inside(seen)
        seen = getattr(seen, "optimizer", None) if inside is None else inside
    if not isinstance(seen, Optimizer) or not _calls_hooks(seen):
        raise TypeError(f"{type(optimizer).__name__} holds no torch.optim.Optimizer")
    return seen


def _calls_hooks(optimizer: Any) -> bool:
    """Whether hooks of its step can be registered and are called: the constructor of Optimizer sees
    to both, to the latter by a mark on the step (run with torch 2.13; old sources have it too)."""
    marked = getattr(getattr(type(optimizer), "step", None), "hooked", False)
    return bool(marked) and hasattr(optimizer, "_optimizer_step_post_hooks")


def _moves_inside(optimizer: Any) -> bool:
    return _has_two_passes(optimizer) or _probe_and_class(optimizer)[0].moves_inside


def _has_two_passes(optimizer: Any) -> bool:
    """SAM as it is copied from project to project, under any name (github.com/davda54/sam): users
    call its two halves, never its step; the second restores weights and steps the one inside."""
    if _probe_and_class(optimizer)[0].matches or not hasattr(optimizer, "second_step"):
        return False
    return isinstance(getattr(optimizer, "base_optimizer", None), Optimizer)
