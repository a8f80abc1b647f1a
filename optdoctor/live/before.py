"""What a step is about to change and a sample needs from before it: copies, until dropped."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from optdoctor.live.parts import Part, held_alike, of_rows
from optdoctor.live.snapshot import Snapshot
from optdoctor.live.units import HALF, Unit, plain
from optdoctor.live.watched import Watched
from optdoctor.optimizers import reader_of
from optdoctor.optimizers.elements import kept

WHOLE = 1 << 20
"""Elements of a tensor up to which a rule that needs it as a whole is followed."""


class Before:
    """Weights within a number of bytes; of all weights and of some moments the sampled elements."""

    def __init__(self, watched: Watched, room_bytes: int | None) -> None:
        self._watched = watched
        self.snapshot = Snapshot(watched.units, room_bytes)
        self._reads = bool(watched.probe.keeps) or any(unit.dtype in HALF for unit in watched.units)
        self.drop()

    def drop(self) -> None:
        """Lets go of all of it."""
        self._sampled: dict[tuple[int, ...], dict[str, Any]] = {}
        self.whole: dict[int, dict[str, Tensor]] = {}
        """{position: what a rule of scope "tensor" keeps of it}"""
        self.fresh: set[int] = set()
        """Positions without a state, in units of which others had one."""
        self._gradients: dict[int, Tensor] = {}
        self._rates: dict[int, Any] = {}
        self.snapshot.drop()

    def take(self) -> None:
        """Copies what the step will change."""
        self.drop()
        probe, parameters = self._watched.probe, self._watched.tracked.parameters
        self.snapshot.take(parameters)
        if probe.overwrites_gradient:
            held = ((i, self._watched.gradient(i)) for i in range(len(parameters)))
            self._gradients = {i: g.detach().clone() for i, g in held if g is not None}
        if probe.rate_before:
            for i in range(len(self._watched.optimizer.param_groups)):
                group = self._watched.settings(i)
                self._rates[i] = probe.rate(group, probe.count({}, group))
        if self._reads:
            self._read = reader_of(self._watched.optimizer)
        for unit in self._watched.units:
            if unit.trainable:
                self._sampled[unit.positions] = self._kept(unit)

    def values(self, part: Part) -> dict[str, Any]:
        """[S, k] each, of its members: "old" weights, "second_old", "keep <entry>"."""
        found = self._sampled.get(part.whole.positions, {})
        fresh = part.unit.positions[0] in self.fresh
        return {n: part.of_whole(m) for n, m in found.items() if n == "old" or not fresh}

    def gradients(self) -> list[Tensor | None]:
        """[P]: what the step consumed; some leave something else where it was."""
        found = [p.grad for p in self._watched.tracked.parameters]
        for i, grad in self._gradients.items():
            found[i] = grad
        return [grad if grad is not None and grad.numel() else None for grad in found]

    def rate(self, group: int) -> Any:
        """The rate of a group, where it moves on within the step; else None: it still stands."""
        return self._rates.get(group)

    def _kept(self, unit: Unit) -> dict[str, Any]:
        """What the sampled elements of a unit are before the step: copies."""
        members = [self._watched.tracked.parameters[i] for i in unit.positions]
        old = self.snapshot.of(unit) if unit.stacked else None
        matrix = unit.matrix(members) if old is None else old
        values = {"old": _copy(unit.sampled(matrix), members)}
        if not (self._watched.probe.keeps or unit.dtype in HALF):
            return values
        states = [self._read(p) for p in members]
        rows = [row for row, state in enumerate(states) if state]
        if not rows:
            return values
        group, whole = self._watched.settings(unit.group), len(rows) == len(members)
        if not whole:
            self.fresh.update(i for i, s in zip(unit.positions, states, strict=True) if not s)
        layout = self._watched.probe.layout(states[rows[0]], group)
        if not held_alike([states[row] for row in rows], layout):
            # Unknown, not 0: only until the table of tensors has been built anew.
            unknown = matrix.new_full((len(members), 1), torch.nan)
            return values | {f"keep {name}": unknown for name in self._watched.probe.keeps}
        part = Part(
            unit if whole else of_rows(unit, rows),
            None if whole else tuple(rows),
            unit,
            [members[row] for row in rows],
            (),
            [states[row] for row in rows],
            group,
            layout,
        )
        before = self._held(part)
        return values | (before if whole else _spread(before, rows, len(members)))

    def _held(self, part: Part) -> dict[str, Any]:
        """What of the states a step changes, and shares and rule need from before it: copies."""
        unit, values = part.unit, dict[str, Any]()
        second = part.layout.second
        if second is not None and second.form in ("full", "rooted"):
            held = part.mean(second)
            if held is not None and held.dtype in HALF:
                values["second_old"] = _copy(unit.sampled(held), part.parameters)
        if self._watched.foretells and self._watched.probe.keeps:
            self._keep(part, values)
        return values

    def _keep(self, part: Part, values: dict[str, Any]) -> None:
        """What the rule needs from before the step, besides the weights."""
        unit, probe, layout = part.unit, self._watched.probe, part.layout
        if probe.scope == "tensor":
            if unit.num_elements <= WHOLE and self.snapshot.of(part.whole) is not None:
                for i, state in zip(unit.positions, part.states, strict=True):
                    self.whole[i] = kept(probe, state, part.group, plain, unit.num_elements)
            return
        moments = {"first": layout.first, "second": layout.second, "divisor": layout.divisor}
        for name in probe.keeps:
            moment = (moments | dict(layout.further)).get(name)
            if moment is None:
                entry = part.entries(name)
            else:
                matrix = part.mean(moment)
                entry = None if matrix is None else unit.sampled(matrix)
            if entry is not None:
                values[f"keep {name}"] = entry.clone()


def _spread(values: dict[str, Any], rows: Sequence[int], num_rows: int) -> dict[str, Any]:
    """Matrices [R, k] with the rows of others, which nobody reads, between theirs."""
    found = {}
    for name, matrix in values.items():
        if len(matrix) == len(rows):
            found[name] = matrix.new_zeros((num_rows, *matrix.shape[1:]))
            found[name][list(rows)] = matrix
    return found


def _copy(matrix: Tensor, of: Sequence[Tensor]) -> Tensor:
    """A matrix that the step does not change: that of one tensor may be a view of it."""
    return matrix.clone() if len(of) == 1 else matrix
