"""One tap before the clip for every framework: `clip_grad_norm_` is wrapped while a run is watched.

Seen: torch 2.13 clips inside `torch.nn.utils.clip_grad._clip_grads_with_norm_`, which is looked up
at each call, so that a `from torch.nn.utils import clip_grad_norm_` of before is caught too, and
`_get_total_norm`, which raises where `error_if_nonfinite` asks for it; the public names are
wrapped besides, for releases without these. Accelerate (hence the Trainer) and Lightning call the
public name.
"""

import threading
import weakref
from collections.abc import Callable
from functools import wraps
from types import GeneratorType, ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from optdoctor.optimizers.untraced import untraced

NORM = (clip_grad, "_get_total_norm")
PLACES: tuple[tuple[ModuleType, str], ...] = (
    (torch.nn.utils, "clip_grad_norm_"),
    (clip_grad, "clip_grad_norm_"),
    (clip_grad, "_clip_grads_with_norm_"),
    NORM,
)


class Tap(Protocol):
    """Who wants to see gradients before they are clipped."""

    def before_clip(self, parameters: list[Tensor]) -> None:
        """`parameters` are about to be clipped."""

    def after_clip(self, parameters: list[Tensor]) -> None:
        """They were."""

    def refused(self, gradients: list[Tensor]) -> None:
        """A clip raised because these are not finite."""


_TAPS: "weakref.WeakSet[Tap]" = weakref.WeakSet()
_WITHIN = threading.local()
"""Of this thread: whether a clip is at work, which calls the others by their names."""
_INNER: dict[tuple[ModuleType, str], tuple[Callable[..., Any], Callable[..., Any]]] = {}


def listen(tap: Tap) -> None:
    """Begins to tell `tap` of every clip; it is held weakly."""
    _TAPS.add(tap)
    for module, name in PLACES:
        inner = getattr(module, name, None)
        if inner is not None and (module, name) not in _INNER:
            outer = _refusing(inner) if (module, name) == NORM else _tapped(inner)
            _INNER[module, name] = (inner, outer)
            setattr(module, name, outer)


def leave(tap: Tap) -> None:
    """Ends it; the last one takes the wrappers off, unless somebody has wrapped them meanwhile."""
    _TAPS.discard(tap)
    if _TAPS:
        return
    for (module, name), (inner, outer) in list(_INNER.items()):
        if getattr(module, name) is outer:
            setattr(module, name, inner)
            del _INNER[module, name]


def _tell(method: str, tensors: list[Tensor]) -> None:
    for tap in list(_TAPS):
        getattr(tap, method)(tensors)


def _tapped(inner: Callable[..., Any]) -> Callable[..., Any]:
    tell = untraced(_tell)

    @wraps(inner)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not _TAPS or getattr(_WITHIN, "clip", False):
            return inner(parameters, *args, **kwargs)
        several = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        # torch warns of an empty generator, so a generator it must stay.
        given = (p for p in several) if isinstance(parameters, GeneratorType) else several
        tell("before_clip", several)
        _WITHIN.clip = True
        try:
            result = inner(given, *args, **kwargs)
        finally:
            _WITHIN.clip = False
        tell("after_clip", several)
        return result

    return clip


def _refusing(inner: Callable[..., Any]) -> Callable[..., Any]:
    tell = untraced(_tell)

    @wraps(inner)
    def total_norm(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        several = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        try:
            return inner(several, *args, **kwargs)
        except RuntimeError:
            tell("refused", several)
            raise

    return total_norm
