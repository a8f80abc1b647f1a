"""Tries treatments on a training as it stands, on the same batches, and puts it back."""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from optdoctor.errors import Told
from optdoctor.live.candidates import UNTREATED, Candidate, Trained
from optdoctor.live.standing import Standing
from optdoctor.live.verdicts import LEAST, Outcome, Trial, judged


class Supply:
    """An iterator of batches of which the first can be looked at before they are taken."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.source = batches
        self._rest = iter(batches)
        self._kept: deque[Any] = deque()

    def first(self, count: int) -> list[Any]:
        """The first so many, or all where there are fewer; they stay in the iterator."""
        while len(self._kept) < count:
            try:
                self._kept.append(next(self._rest))
            except StopIteration:
                break
        return [self._kept[i] for i in range(min(count, len(self._kept)))]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._kept.popleft() if self._kept else next(self._rest)


def checked_steps(steps: int) -> int:
    """Refuses so few that nothing can be told.

    Raises:
        ValueError: fewer than 10.
    """
    if steps < LEAST:
        raise ValueError(f"steps must be at least {LEAST}, not {steps!r}")
    return steps


def try_all(
    model: nn.Module,
    trained: Sequence[Trained],
    step_fn: Callable[..., Any],
    asked: Sequence[Candidate],
    *,
    supply: Supply | None,
    steps: int,
    wrappers: Iterable[Any] = (),
    also: Iterable[Any] = (),
) -> Trial:
    """Makes `steps` updates untreated and with each candidate, each from where the training stands
    now; that is where it stands again afterwards, also where `step_fn` raises.

    Raises:
        ValueError: there is no batch, or the model is not built yet.
        TypeError: `step_fn` returns no loss, or one of `also` has no state.
    """
    batches = None if supply is None else supply.first(steps)
    if batches is not None and not batches:
        raise ValueError("a trial needs a batch, and there is none")
    steps = steps if batches is None else len(batches)
    held = [one.optimizer for one in trained]
    treated = [one for each in trained for one in each.treated]
    standing = Standing(model, [*wrappers, *held, *treated], _with_loader(also, supply))
    outcomes = []
    for one in [Candidate(UNTREATED), *asked]:
        try:
            outcomes.append(_outcome(one, model, trained, step_fn, batches, steps))
        finally:
            one.undo()
            failed = [treatment for treatment in treated if not treatment.applied]
            for treatment in treated:
                _end_step(treatment)
            standing.restore()
            for treatment in failed:
                _stay_off(treatment)
    told, noise = judged(outcomes)
    return Trial(told, steps, noise, supply is not None, supply)


def _with_loader(also: Iterable[Any], supply: Supply | None) -> list[Any]:
    """A loader's own generators may move on within a step too."""
    source = None if supply is None else supply.source
    return [*also, source] if isinstance(source, torch.utils.data.DataLoader) else [*also]


def _outcome(
    one: Candidate,
    model: nn.Module,
    trained: Sequence[Trained],
    step_fn: Callable[..., Any],
    batches: Sequence[Any] | None,
    steps: int,
) -> Outcome:
    try:
        one.apply(model, trained)
    except Exception as error:
        said = str(error) if isinstance(error, Told) else f"{type(error).__name__}: {error}"
        return Outcome(one.name, refused=said)
    observing = [o.observe for o in _acting(one, trained) if hasattr(o, "observe")]
    losses: list[float | Tensor] = []
    try:
        for step in range(steps):
            loss = _loss(step_fn() if batches is None else step_fn(_own(batches[step])))
            losses.append(loss)
            for observe in observing:
                observe({"loss": float(loss)})
    except Exception as error:
        if not one.parts:  # it is the loop that fails, not a treatment
            raise
        where = f"stopped at step {len(losses) + 1}"
        return Outcome(one.name, _numbers(losses), f"{where}, {type(error).__name__}: {error}")
    return Outcome(one.name, _numbers(losses), one.failure)


def _acting(one: Candidate, trained: Iterable[Trained]) -> list[Any]:
    return [*(t for each in trained for t in each.treated), *one.on]


def _own(batch: Any) -> Any:
    """A copy, so that a step that changes its batch changes no later one's."""
    try:
        return copy.deepcopy(batch)
    except Exception:  # what cannot be copied is shared
        return batch


def _loss(value: Any) -> float | Tensor:
    """A number, or a copy of a tensor that holds one, which stays on its device."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().reshape(()).clone()
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"step_fn must return the loss, a number, and returned a {type(value).__name__}"
        ) from None


def _numbers(losses: Sequence[float | Tensor]) -> tuple[float, ...]:
    return tuple(float(loss) for loss in losses)


def _end_step(treatment: Any) -> None:
    """What it borrowed for a step that an exception left, it gives back before all is put back."""
    if treatment.applied:
        treatment._around.give_back()


def _stay_off(treatment: Any) -> None:
    """One that was on before and failed: it would have in the training."""
    treatment._around = treatment.optimizer = treatment.model = None
