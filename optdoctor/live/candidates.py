"""What a trial tries: treatments, settings of the optimizer, and several of these at once."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from optdoctor.errors import did_you_mean
from optdoctor.trace import Fact
from optdoctor.treatments import Intervention, Refused, make
from optdoctor.treatments.rates import Borrowed

Asked = str | Intervention | Mapping[str, Any]
"""A treatment by name or made, or settings of groups as {"lr": 1e-4}."""
UNTREATED = "untreated"


class Settings(Intervention):
    """Gives all groups these settings while a step is at work, whatever a schedule says.

    Groups without such a setting are left alone.
    """

    name = "settings"
    safety = "manual"

    def __init__(self, values: Mapping[str, Any]) -> None:
        if not values or "params" in values:
            raise ValueError(f"{dict(values)!r} are no settings of an optimizer's groups")
        self.values, self._borrowed = dict(values), Borrowed()

    def check(self) -> None:
        """Refuses what no group has: nothing would read it."""
        known = {key for group in self.optimizer.param_groups for key in group} - {"params"}
        for key in self.values:
            if key not in known:
                told = did_you_mean(key, known, f"it has {', '.join(sorted(known))}")
                kind = type(self.optimizer).__name__
                raise Refused(f"{kind} has no setting named {key!r}", told)

    def before(self) -> None:
        """Sets them; what was a tensor stays one, on its device."""
        for group in self.optimizer.param_groups:
            for key, value in self.values.items():
                if isinstance(old := group.get(key), Tensor) and not isinstance(value, Tensor):
                    self._borrowed.put(group, key, torch.full_like(old, value))
                elif key in group:
                    self._borrowed.put(group, key, value)

    def after(self) -> None:
        """Gives back what was set."""
        self._borrowed.give_back()

    def __repr__(self) -> str:
        return ", ".join(
            f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.values.items()
        )


@dataclass(frozen=True)
class Trained:
    """One optimizer of the training, and what treatments of it may know."""

    optimizer: Optimizer
    facts: Mapping[str, Fact] = field(default_factory=dict)
    treated: Sequence[Intervention] = ()
    """Those switched on already: they act in all candidates."""


@dataclass
class Candidate:
    """Interventions to be tried together, none of them switched on yet."""

    name: str
    parts: Sequence[Intervention] = ()
    _on: list[Intervention] = field(default_factory=list)

    def apply(self, model: nn.Module, trained: Iterable[Trained]) -> None:
        """Switches copies on, one for each optimizer, so that what was given stays as it is.

        Raises:
            Refused: it cannot act on this training; then none is switched on.
        """
        try:
            for one in trained:
                for part in self.parts:
                    self._switch_on(part, one, model)
        except BaseException:
            self.undo()
            raise

    def _switch_on(self, part: Intervention, one: Trained, model: nn.Module) -> None:
        if part.applied or any(other.name == part.name for other in one.treated):
            raise Refused(f"{part.name} is switched on already", "undo it before a trial of it")
        own = copy.deepcopy(part)
        own.apply(one.optimizer, model, facts=one.facts)
        self._on.append(own)

    @property
    def on(self) -> tuple[Intervention, ...]:
        """The copies that were switched on."""
        return tuple(self._on)

    @property
    def failure(self) -> str:
        """What one said that failed and was taken away; "" if all act."""
        failed = [one for one in self._on if not one.applied]
        return "".join(one.notes[-1] if one.notes else f"{one.name} failed" for one in failed[:1])

    def undo(self) -> None:
        """Switches all off."""
        on, self._on = self._on, []
        for one in reversed(on):
            with suppress(Exception):  # what it has left behind is put back besides
                one.undo()


def candidates(asked: Asked | Iterable[Asked | Sequence[Asked]]) -> list[Candidate]:
    """Those named, in order; a list among them is one candidate made of several.

    Raises:
        ValueError: there is no treatment of a name, or settings that are none.
    """
    several: list[Any]
    several = [asked] if isinstance(asked, str | Intervention | Mapping) else list(asked)
    if not several:
        raise ValueError("a trial needs a treatment to try")
    made = [_candidate(one) for one in several]
    for one in made:
        if one.name == UNTREATED:
            raise ValueError("untreated is always tried")
    return made


def _candidate(asked: Any) -> Candidate:
    if isinstance(asked, list | tuple):
        if not asked:
            raise ValueError("a combination of no treatments is the untreated run")
        parts = [_made(one) for one in asked]
        return Candidate(" + ".join(map(_name, asked, parts)), parts)
    part = _made(asked)
    return Candidate(_name(asked, part), [part])


def _made(asked: Any) -> Intervention:
    return Settings(asked) if isinstance(asked, Mapping) else make(asked)


def _name(asked: Any, part: Intervention) -> str:
    return asked if isinstance(asked, str) else repr(part)
