"""Counts the updates that a gradient scaler skips: calls of its `step` that fired no hook."""

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any

from torch.amp import GradScaler

from optdoctor.live.run import Run
from optdoctor.optimizers import innermost

# One wrapper a class, however many scalers and doctors there are; what it knows of them is weak.
_RUNS: "weakref.WeakKeyDictionary[Any, weakref.WeakSet[Run]]" = weakref.WeakKeyDictionary()
_WATCHED: "weakref.WeakSet[Run]" = weakref.WeakSet()
"""Every run: a scaler that nobody named divides their gradients too."""
_INNER: dict[type, Any] = {}


def check_scaler(scaler: Any) -> None:
    """Refuses what is no scaler.

    Raises:
        TypeError: its class has no `step`.
    """
    if scaler is not None and not callable(getattr(type(scaler), "step", None)):
        raise TypeError(f"scaler is a {type(scaler).__name__}, which has no step")


def count_skips(scaler: Any, runs: Sequence[Run]) -> Callable[[], None]:
    """Makes skipped updates of these runs known to them; returns how to stop that.

    The class is wrapped, not the object, so that a copy or pickle of the scaler is what it was.
    """
    known = _RUNS.setdefault(scaler, weakref.WeakSet())
    known.update(runs)
    for run in runs:
        run.counts_skips = True
    if type(scaler) not in _INNER:
        _wrap(type(scaler))
    reference = weakref.ref(scaler)

    def undo() -> None:
        living = reference()
        left = _RUNS.get(living) if living is not None else None
        if left is not None:
            for run in runs:
                left.discard(run)
            if not left:
                _RUNS.pop(living, None)
        _unwrap_unused()

    return undo


def beware(runs: Sequence[Run]) -> Callable[[], None]:
    """Keeps these runs from taking a scaled gradient for one; returns how to stop that.

    Of torch's own scalers, whoever made them; they need not be given to the doctor for it.
    """
    _WATCHED.update(runs)
    if GradScaler not in _INNER:
        _wrap(GradScaler)

    def undo() -> None:
        for run in runs:
            _WATCHED.discard(run)
        _unwrap_unused()

    return undo


def _wrap(kind: type) -> None:
    inner = kind.step  # type: ignore[attr-defined]

    @wraps(inner)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        watched = [run for run in _RUNS.get(self, ()) if run.optimizer is _innermost(optimizer)]
        before = [run.step for run in watched]
        for run in list(_WATCHED):
            if run.optimizer is _innermost(optimizer) and _holds_scaled(self, optimizer):
                run.forget_gradients()
        result = inner(self, optimizer, *args, **kwargs)
        for run, count in zip(watched, before, strict=True):
            if run.step == count:
                run.skip()
        return result

    _INNER[kind] = (step, kind.__dict__.get("step"))
    kind.step = step  # type: ignore[attr-defined]


def _unwrap_unused() -> None:
    for kind, (step, own) in list(_INNER.items()):
        used = any(type(scaler) is kind for scaler in list(_RUNS))
        used |= kind is GradScaler and bool(_WATCHED)
        if used or kind.__dict__.get("step") is not step:  # or somebody has wrapped it meanwhile
            continue
        if own is None:
            del kind.step  # type: ignore[attr-defined]
        else:
            kind.step = own  # type: ignore[attr-defined]
        del _INNER[kind]


def _innermost(optimizer: Any) -> Any:
    with suppress(TypeError):
        return innermost(optimizer)
    return None


def _holds_scaled(scaler: Any, optimizer: Any) -> bool:
    """Whether the scaler's factor is still in this optimizer's gradients.

    Its own table says so, a private one: seen in torch 2.13 with the stages READY, UNSCALED and
    STEPPED. A scaler without such a table is believed to be asked to unscale before a clip.
    """
    table = getattr(scaler, "_per_optimizer_states", None)
    if table is None or not scaler.is_enabled():
        return False
    known = table.get(id(optimizer))
    return known is None or getattr(known.get("stage"), "name", "") != "UNSCALED"
