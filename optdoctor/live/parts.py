"""What a unit of tensors holds at one moment: matrices of weights, gradients and moments."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor

from optdoctor.live.room import Room
from optdoctor.live.units import BLOCK, MEASURED, Unit, chosen, plain
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

    def some(self, positions: Collection[int]) -> "Part":
        """Those of its members that are at these positions."""
        rows = [row for row, i in enumerate(self.unit.positions) if i in positions]
        if len(rows) == len(self.unit.positions):
            return self
        return replace(
            self,
            unit=of_rows(self.unit, rows),
            rows=tuple(rows if self.rows is None else [self.rows[row] for row in rows]),
            parameters=[self.parameters[row] for row in rows],
            gradients=[self.gradients[row] for row in rows] if self.gradients else [],
            states=[self.states[row] for row in rows] if self.states else [],
        )

    def matrix(self, tensors: Sequence[Tensor], room: Room | None = None) -> Tensor:
        """[S, K] of one tensor of each member."""
        into = None
        if room is not None and len(tensors) > 1:
            into = room.empty(len(tensors) * self.unit.num_elements, tensors[0].dtype)
        return self.unit.matrix(tensors, into)

    def mean(self, moment: Moment | None, room: Room | None = None) -> Tensor | None:
        """[S, K] of one moment; None where it is missing or is no moment."""
        if moment is None or not self.states:
            return None
        try:
            if moment.decode is None:
                matrix = self.matrix([state[moment.key] for state in self.states], room)
            else:
                matrix = self.matrix([moment.read(s, self.group) for s in self.states], room)
        except (KeyError, TypeError, RuntimeError, AttributeError):
            return None  # not there, of several shapes, or no tensor
        size = matrix.shape[1]
        if matrix.dtype not in MEASURED or not size:
            return None
        return matrix if size == self.unit.num_elements or not moment.aligned else None

    def entries(self, name: str) -> Tensor | None:
        """An entry of the states: [S, k] where it has an element for each weight, [S, 1] where it
        is one number, else as it is where S is 1."""
        values = [state.get(name) for state in self.states]
        if not values or any(value is None for value in values):
            return None
        try:
            several = [plain(v) if isinstance(v, Tensor) else _on_host(v) for v in values]
            if several[0].numel() == self.unit.num_elements > 1:
                return wide(self.unit.sampled(self.unit.matrix(several)))
            if several[0].numel() == 1:
                device = self.unit.device
                return torch.stack([v.reshape(1) for v in several]).to(device, non_blocking=True)
        except (TypeError, ValueError, RuntimeError):
            return None  # no number, or of several shapes
        return several[0] if len(several) == 1 else None

    def count(self, probe: Probe, *, known: bool = False) -> Number | None:
        """Updates that the states have seen: [S, 1] float64, or a number where all agree and that
        is `known` without waiting. None where one of them holds none."""
        counts = [probe.count(state, self.group) for state in self.states]
        if not counts or any(count is None for count in counts):
            return None
        if all(isinstance(count, Tensor) for count in counts):
            try:
                stacked = self.unit.matrix(counts)
            except RuntimeError:  # of several shapes
                if any(count.numel() != 1 for count in counts):
                    return None
                stacked = torch.stack([plain(count).reshape(1) for count in counts])
            if stacked.shape[1] != 1:
                return None
            if known and stacked.device.type == "cpu":
                low, high = stacked.aminmax()
                if low == high and low > 0:  # of a tensor a division by 0 is no error
                    return low.item()
            return stacked.double().view(-1, 1).to(self.unit.device, non_blocking=True)
        if not all(isinstance(count, int | float) for count in counts):
            return None
        if len(set(counts)) == 1 and counts[0] > 0:
            return float(counts[0])
        return torch.tensor(counts, dtype=torch.float64, device=self.unit.device).view(-1, 1)


def parts_of(
    unit: Unit,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    read: Read,
    probe: Probe,
    group: Group,
    fresh: Collection[int] = (),
) -> list[Part]:
    """The unit itself, as a rule; in parts where some members have no gradient or no state, or had
    none before (`fresh`), or where they are held in another way. `parameters`, `gradients` [P]."""
    members = [parameters[i] for i in unit.positions]
    states = [read(p) for p in members]
    given = [grad for i in unit.positions if (grad := gradients[i]) is not None]
    if len(given) == len(members) and all(states) and not fresh:
        layout, dtypes = probe.layout(states[0], group), _dtypes(given)
        if len(dtypes) == 1 and dtypes <= MEASURED and held_alike(states, layout):
            return [Part(unit, None, unit, members, given, states, group, layout)]
    given_as = [_gradient_kind(gradients[i]) for i in unit.positions]
    has = [
        (kind, _state_kind(state, probe, group), i in fresh)
        for i, kind, state in zip(unit.positions, given_as, states, strict=True)
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
                [
                    g
                    for i in rows
                    if has_gradient and (g := gradients[unit.positions[i]]) is not None
                ],
                [states[i] for i in rows] if has_state else [],
                group,
                probe.layout(states[rows[0]], group) if has_state else Layout(),
            )
        )
    return found


DTYPE = attrgetter("dtype")


def _dtypes(tensors: Sequence[Tensor]) -> set[torch.dtype]:
    return set(map(DTYPE, tensors))


def held_alike(states: Sequence[State], layout: Layout) -> bool:
    """Whether the layout of the first state is that of all, and the dtypes of its moments are.

    By looks that take 0.2 ms of 800 states; to ask the probe of each takes many times that.
    """
    if len(set(map(len, states))) > 1:
        return False
    for moment in (layout.first, layout.second, layout.divisor):
        if moment is None or moment.key not in states[0]:
            continue
        try:
            held = list(map(itemgetter(moment.key), states))
        except KeyError:
            return False
        kinds = set(map(type, held))
        if len(kinds) > 1 or (issubclass(kinds.pop(), Tensor) and len(_dtypes(held)) > 1):
            return False
    return True


def _gradient_kind(gradient: Tensor | None) -> object:
    """What tells gradients apart; None where there is none that can be measured."""
    return gradient.dtype if gradient is not None and gradient.dtype in MEASURED else None


def _state_kind(state: State, probe: Probe, group: Group) -> tuple[object, ...]:
    """What tells states apart that are not held alike; empty where there is none."""
    if not state:
        return ()
    layout = probe.layout(state, group)
    kinds: list[object] = [len(state)]
    for moment in (layout.first, layout.second, layout.divisor):
        held = None if moment is None else state.get(moment.key)
        how = None if moment is None else (moment.key, moment.form, moment.decode is None)
        kinds.append((how, type(held), getattr(held, "dtype", None)))
    return tuple(kinds)


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
        kind = (unit.device, unit.dtype, unit.group)
        return (*kind, self.form, self.stored, tuple(widths))


def joined(stacks: Sequence[Stack]) -> list[Stack]:
    """Stacks of one key as few as a host can hold in its cache."""
    found: list[list[Stack]] = []
    room = 0
    for stack in stacks:
        size = stack.values["weight"].numel()
        if not found or size > room:
            found.append([])
            room = BLOCK if stack.part.unit.device.type == "cpu" else 1 << 62
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
    return replace(stacks[0], positions=positions, values=values)


def _joined(values: Sequence[Any], lengths: Sequence[int]) -> Any:
    if not any(isinstance(value, Tensor) for value in values) and len(set(values)) == 1:
        return values[0]
    return torch.cat([_rows(v, n) for v, n in zip(values, lengths, strict=True)])


def _rows(value: Any, length: int) -> Tensor:
    return (
        value
        if isinstance(value, Tensor)
        else torch.full((length, 1), value, dtype=torch.float64, device="cpu")
    )


def _on_host(value: object) -> Tensor:
    """A number as a tensor."""
    return torch.tensor(float(value), device="cpu")  # type: ignore[arg-type]
