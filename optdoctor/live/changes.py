"""Notices that parameters were exchanged, added, cast or cut in mid-run, at next to no cost."""

from collections.abc import Iterator
from typing import Literal

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from optdoctor.live.tensors import Tracked, lazy, state_dtypes
from optdoctor.optimizers import state_of
from optdoctor.optimizers.probe import Probe

TURN = 4
"""Parameters looked at in each update, one after the other. Who casts a model casts all of it: that
is seen at once, a single one within P / 4 updates, and at a sample in any case."""
TURN_STATE = 16
"""Tensors whose state is looked at in each sample."""
FIRST = 3
"""Samples in which the state of all is: the first update makes it."""


class Changes:
    """What must stay the same for a table of tensors to stay true."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        probe: Probe,
        tracked: Tracked,
        earlier: "Changes | None" = None,
    ) -> None:
        self._probe, self._tracked = probe, tracked
        self._lazy = lazy(model, optimizer)
        self._given, self._lengths = _given(optimizer), _lengths(optimizer)
        self._trained: set[int] = set() if earlier is None else earlier._trained
        """Parameters that ever were trained, by identity: who freezes and thaws them in turn is
        told of once."""
        self._trained |= {id(p) for p in _parameters(optimizer) if p.requires_grad}
        self._places = [
            (g, k)
            for g, group in enumerate(optimizer.param_groups)
            for k in range(len(group["params"]))
        ]
        self._dtypes = [p.dtype for p in tracked.parameters]
        self._shapes = [p.shape for p in tracked.parameters]
        self._shape_of = {id(p): p.shape for p in tracked.parameters}
        self._states = [self._state(optimizer, i) for i in range(len(tracked.parameters))]
        self._foretold = {i for i, p in enumerate(tracked.parameters) if not state_of(optimizer, p)}
        """Positions whose state the first update has yet to make, of whatever dtype."""
        self._turn = self._state_turn = self._samples = 0
        self.suspected = False
        """Whether somebody has loaded a state, which may cast it."""

    def seen(self, optimizer: Optimizer) -> bool:
        """The look before each update: how many parameters there are, and a few of them."""
        groups = optimizer.param_groups
        if self.regrouped(optimizer):
            return True
        if self._lazy and not all(map(is_lazy, self._lazy)):
            return True
        if self.suspected:
            self.suspected = False
            states = range(len(self._states))
            return self.seen_closely(optimizer) or self._differ(optimizer, states) == "cast"
        turn, self._turn = self._turn, self._turn + TURN
        if self._turn >= len(self._places):
            self._turn = 0
        for at in range(turn, min(turn + TURN, len(self._places))):
            group, place = self._places[at]
            if group >= len(groups) or place >= len(groups[group]["params"]):
                return True
            parameter = groups[group]["params"][place]
            if (id(parameter), parameter.dtype) != self._given[at]:
                return True
            known = self._shape_of.get(id(parameter))
            if known is not None and parameter.shape != known:  # through its .data
                return True
            if parameter.requires_grad and id(parameter) not in self._trained:
                return True
        return False

    def regrouped(self, optimizer: Optimizer) -> bool:
        """Whether there are other groups, or as many of other lengths."""
        return _lengths(optimizer) != self._lengths

    def seen_closely(self, optimizer: Optimizer) -> bool:
        """The look before a sample: every parameter."""
        dtypes = [p.dtype for p in self._tracked.parameters]
        if _given(optimizer) != self._given or dtypes != self._dtypes:
            return True
        if [p.shape for p in self._tracked.parameters] != self._shapes:
            return True
        return any(p.requires_grad and id(p) not in self._trained for p in _parameters(optimizer))

    def seen_in_state(self, optimizer: Optimizer) -> Literal["", "new", "cast"]:
        """The look after a sampled update, at the dtype of the state that it left.

        "new": what nobody could foretell is there now.
        """
        self._samples += 1
        if self._samples <= FIRST:
            return self._differ(optimizer, range(len(self._states)))
        turn, self._state_turn = self._state_turn, self._state_turn + TURN_STATE
        if self._state_turn >= len(self._states):
            self._state_turn = 0
        return self._differ(optimizer, range(turn, min(turn + TURN_STATE, len(self._states))))

    def _differ(self, optimizer: Optimizer, positions: range) -> Literal["", "new", "cast"]:
        differing = [i for i in positions if self._state(optimizer, i) != self._states[i]]
        if not differing:
            return ""
        was_there = (any(self._states[i]) for i in differing if i not in self._foretold)
        return "cast" if any(was_there) else "new"

    def _state(self, optimizer: Optimizer, i: int) -> tuple[str, str]:
        info, parameter = self._tracked.tensors[i], self._tracked.parameters[i]
        group = info.group if info.in_optimizer else None
        if group is not None and group >= len(optimizer.param_groups):
            return "", ""
        return state_dtypes(parameter, optimizer, self._probe, group)


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _lengths(optimizer: Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def _given(optimizer: Optimizer) -> list[tuple[int, object]]:
    """(identity, dtype) of all parameters in all groups."""
    return [(id(p), p.dtype) for p in _parameters(optimizer)]
