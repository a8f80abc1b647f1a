"""What a unit of tensors holds at one moment: matrices of weights, gradients and moments."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from optdoctor.live.units import CHUNK, Unit, chosen, plain
from optdoctor.optimizers.elements import wide
from optdoctor.optimizers.probe import Form, Group, Layout, Moment, Number, Probe, State
from optdoctor.trace import SAMPLED

Read = Callable[[Tensor], State]
"""The state of a parameter; reading creates no entry."""


@dataclass(frozen=True, slots=True)
class Part:
    """The members of a unit that are alike in what exists of them: a gradient, a state."""

    unit: Unit
    rows: tuple[int, ...] | None
    """Their places among the members of the whole unit; None: all of it."""
    whole: Unit
    parameters: Sequence[Tensor]
    gradients: Sequence[Tensor]
    """Of all, or empty."""
    states: Sequence[State]
    """Of all, or empty."""
    group: Group
    layout: Layout

    def of_whole(self, matrix: Tensor) -> Tensor:
        """Its rows of a matrix of the whole unit."""
        return matrix if self.rows is None else matrix[list(self.rows)]

    def mean(self, moment: Moment | None) -> Tensor | None:
        """[S, K] of one moment; None where it is missing or is no moment."""
        if moment is None or not self.states:
            return None
        try:
            matrix = self.unit.matrix([moment.read(state, self.group) for state in self.states])
        except (KeyError, TypeError, RuntimeError, AttributeError):
            return None  # not there, of several shapes, or no tensor
        size = matrix.shape[1]
        if not matrix.is_floating_point() or not size:
            return None
        return matrix if size == self.unit.num_elements or not moment.aligned else None

    def entries(self, name: str) -> Tensor | None:
        """An entry of the states: [S, k] where it has an element for each weight, [S, 1] where it
        is one number, else as it is where S is 1."""
        values = [state.get(name) for state in self.states]
        if not values or any(value is None for value in values):
            return None
        several = [plain(v) if isinstance(v, Tensor) else torch.tensor(float(v)) for v in values]  # type: ignore[arg-type]
        if several[0].numel() == self.unit.num_elements > 1:
            return wide(self.unit.sampled(self.unit.matrix(several)))
        if several[0].numel() == 1:
            device = self.unit.device
            return torch.stack([v.reshape(1) for v in several]).to(device, non_blocking=True)
        return several[0] if len(several) == 1 else None

    def count(self, probe: Probe) -> Number | None:
        """Updates that the states have seen: a number where all agree, else [S, 1] float64."""
        counts = [probe.count(state, self.group) for state in self.states]
        if not counts or any(count is None for count in counts):
            return None
        if isinstance(counts[0], Tensor):
            stacked = self.unit.matrix(counts)
            return stacked.double().view(-1, 1).to(self.unit.device, non_blocking=True)
        if not all(isinstance(count, int | float) for count in counts):
            return None
        if len(set(counts)) == 1:
            return float(counts[0])
        return torch.tensor(counts, dtype=torch.float64, device=self.unit.device).view(-1, 1)


def parts_of(
    unit: Unit,
    parameters: Sequence[Tensor],
    gradient: Callable[[int], Tensor | None],
    read: Read,
    probe: Probe,
    group: Group,
    fresh: Collection[int] = (),
) -> list[Part]:
    """The unit itself, as a rule; in parts where some members have no gradient or no state, or had
    none before (`fresh`)."""
    members = [parameters[i] for i in unit.positions]
    gradients = [gradient(i) for i in unit.positions]
    states = [read(p) for p in members]
    has = [
        (grad is not None, bool(state), i in fresh)
        for grad, state, i in zip(gradients, states, unit.positions, strict=True)
    ]
    kinds = dict.fromkeys(has)
    found = []
    for kind in kinds:
        whole = len(kinds) == 1
        rows = range(len(members)) if whole else [i for i, one in enumerate(has) if one == kind]
        has_gradient, has_state, _ = kind
        found.append(
            Part(
                unit if whole else of_rows(unit, rows),
                None if whole else tuple(rows),
                unit,
                [members[i] for i in rows],
                [g for i in rows if (g := gradients[i]) is not None] if has_gradient else [],
                [states[i] for i in rows] if has_state else [],
                group,
                probe.layout(states[rows[0]], group) if has_state else Layout(),
            )
        )
    return found


def of_rows(unit: Unit, rows: Sequence[int]) -> Unit:
    """Some of its members."""
    index = None if unit.index is None else unit.index[list(rows)]
    return replace(unit, positions=tuple(unit.positions[row] for row in rows), index=index)


def sampled_of(unit: Unit, matrix: Tensor, aligned: bool) -> Tensor:
    """[S, k] of a matrix of moments, whose elements may not be those of the weights."""
    if aligned or matrix.shape[1] == unit.num_elements:
        return unit.sampled(matrix)
    if matrix.shape[1] <= SAMPLED:
        return matrix
    places = chosen("projected", matrix.shape[1])
    assert places is not None
    return matrix.index_select(1, places.to(matrix.device))


@dataclass(slots=True)
class Stack:
    """The sampled elements [S, k] of alike tensors around one update."""

    positions: tuple[int, ...]
    values: dict[str, Any]
    """weight, old, gradient, first, second, divisor, second_old, count, "keep <entry>" from before
    and "state <entry>" from after the update; what was not there is missing."""
    part: Part
    """The first of them; group and layout are those of all."""
    stored: torch.dtype
    """Of the second moment."""

    @property
    def form(self) -> Form:
        """Of the second moment."""
        second = self.part.layout.second
        return "full" if second is None else second.form

    @property
    def like(self) -> Tensor:
        """An empty tensor in the precision of its arithmetic."""
        return wide(self.values["weight"][:0])

    @property
    def key(self) -> tuple[object, ...]:
        """What stacks share that may be joined."""
        widths = sorted(
            (name, value.shape[1:] if isinstance(value, Tensor) and value.shape[1:] != (1,) else ())
            for name, value in self.values.items()
        )
        unit = self.part.unit
        return (unit.device, unit.dtype, unit.group, self.form, self.stored, tuple(widths))


def joined(stacks: Sequence[Stack]) -> list[Stack]:
    """Stacks of one key as few as a host can hold in its cache."""
    found: list[list[Stack]] = []
    room = 0
    for stack in stacks:
        size = stack.values["weight"].numel()
        if not found or size > room:
            found.append([])
            room = CHUNK if stack.part.unit.device.type == "cpu" else 1 << 62
        found[-1].append(stack)
        room -= size
    return [some[0] if len(some) == 1 else _one(some) for some in found]


def _one(stacks: Sequence[Stack]) -> Stack:
    positions = tuple(i for stack in stacks for i in stack.positions)
    lengths = [len(stack.positions) for stack in stacks]
    values = {
        name: _joined([stack.values[name] for stack in stacks], lengths)
        for name in stacks[0].values
    }
    return Stack(positions, values, stacks[0].part, stacks[0].stored)


def _joined(values: Sequence[Any], lengths: Sequence[int]) -> Any:
    if not any(isinstance(value, Tensor) for value in values) and len(set(values)) == 1:
        return values[0]
    return torch.cat([_rows(v, n) for v, n in zip(values, lengths, strict=True)])


def _rows(value: Any, length: int) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full((length, 1), value).double()
