"""One sampled step of one optimizer: the weights before, then everything after the step.

Sums, sums of squares and extremes are of whole tensors; shares come from at most 4096 elements of
each. All numbers of a sample cross to the host together. On a host they are read at once, and what
they leave open (a sum that is not finite, a smallest element of zero) is looked at with care before
anything is told; on a device they are read at the next sample, which then takes that care.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from optdoctor.live import shares, sums
from optdoctor.live.before import Before
from optdoctor.live.digest import CHANNELS, Doubts, channels_of, doubts_of, layers_of, settled
from optdoctor.live.followed import Rule
from optdoctor.live.histograms import Cell, Histograms, binned
from optdoctor.live.parts import Part, Stack, joined, parts_of, sampled_of
from optdoctor.live.room import Room
from optdoctor.live.snapshot import LEAST_BYTES
from optdoctor.live.sums import Sheet
from optdoctor.live.tensors import Tracked, local
from optdoctor.live.transfer import Transfer
from optdoctor.live.units import HALF, STACKED, Unit, array_of, plain
from optdoctor.live.watched import Watched
from optdoctor.optimizers import number_of, reader_of
from optdoctor.optimizers.elements import wide
from optdoctor.optimizers.probe import Probe
from optdoctor.trace import SAMPLED

TENSOR_CHANNELS = CHANNELS
"""What a sample may hold."""
FOLLOWED = 3
"""Samples at which the rule of the optimizer is followed in every tensor; later only where the
update is so small that rounding may swallow some of it."""
WHOLE = 1 << 20
"""Elements of a tensor up to which a rule that needs it as a whole is followed."""

HISTOGRAMS = {
    "weight": "weight",
    "gradient": "gradient",
    "moment1": "first",
}
"""{quantity: what of a stack it shows}; besides, log10 of the second moment, and the update."""

Rows = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A sample whose numbers have arrived."""

    step: int
    values: dict[str, float]
    tensors: Rows
    gaps: tuple[str, ...] = ()
    """Errors in what it left out, each told once."""


class Collector:
    """Measures the tensors of one optimizer. `before` in the pre-hook, `after` in the post-hook."""

    def __init__(
        self,
        optimizer: Optimizer,
        probe: Probe,
        tracked: Tracked,
        room_bytes: int | None = LEAST_BYTES,
    ) -> None:
        self._watched = Watched(optimizer, probe, tracked)
        self._before = Before(self._watched, room_bytes)
        self._rule, self._room = Rule(self._watched, self._before), Room()
        self.rows_only = self._before.snapshot.rows_only
        """Positions of tensors of which the update is that of a part of them."""
        self._transfer = Transfer(len(tracked.tensors))
        self._host = all(unit.device.type == "cpu" for unit in self._watched.units)
        self._doubts = Doubts()
        """What the numbers of the last sample left open, where they are read late."""
        self._raw = Sheet()
        self._raw_rows: dict[str, NDArray[np.float64]] = {}
        self._num_samples = 0
        self._parts: dict[int, Part] = {}
        sizes = np.array([local(p).numel() for p in tracked.parameters], np.float64)
        self._sizes = {name: sizes.copy() for name in ("weight", "update", "moment1", "moment2")}
        self._number_limits = np.full((3, len(sizes)), np.nan)
        self._still = np.array([t.in_optimizer and not t.trainable for t in tracked.tensors], bool)
        self._layers = layers_of([t.layer for t in tracked.tensors])
        groups = np.array([t.group if t.in_optimizer else -1 for t in tracked.tensors], int)
        self._in_group = [np.flatnonzero(groups == i) for i in range(len(optimizer.param_groups))]
        for unit in self._watched.units:
            self._number_limits[2, list(unit.positions)] = torch.finfo(unit.dtype).eps

    @property
    def dropped(self) -> int:
        """Samples that never arrived, because too many were on their way."""
        return self._transfer.dropped

    @property
    def snapshot_bytes(self) -> int:
        """What copies of weights take at most."""
        return self._before.snapshot.num_bytes

    @torch.no_grad()
    def before_clip(self, positions: Iterable[int]) -> None:
        """Measures these gradients, which are about to be clipped."""
        chosen = set(positions)
        sheet = Sheet() if self._host else self._raw
        for unit in self._watched.units:
            found = [(i, self._watched.gradient(i)) for i in unit.positions if i in chosen]
            held = {i: gradient for i, gradient in found if gradient is not None}
            if held:
                some = replace(unit, positions=tuple(held))
                self._put(sheet, "raw", some, some.matrix(list(held.values())))
        if not self._host:
            return
        rows = self._transfer.read(sheet)
        again = Sheet()
        for i in sums.suspects(rows, "raw", self._num_elements("raw")):
            if (gradient := self._watched.gradient(i)) is not None:
                again.put_all("raw", np.array([i]), sums.careful(plain(gradient)))
        rows |= self._transfer.read(again, rows)
        for known in self._raw_rows.values():  # of an update that was dropped, or of a first clip
            known[list(chosen)] = np.nan
        for name, row in rows.items():
            known = self._raw_rows.setdefault(name, np.full(self._watched.num_tensors, np.nan))
            known[list(chosen)] = row[list(chosen)]

    def forget(self) -> None:
        """Lets go of all that belongs to one update: it was not made, or is measured."""
        self._raw, self._raw_rows, self._parts = Sheet(), {}, {}
        self._before.drop()

    @torch.no_grad()
    def before(self) -> None:
        """Keeps what the step is about to change: weights, and of moments the sampled elements."""
        self._parts = {}
        self._before.take()

    def histograms(self) -> Histograms:
        """Of the sampled elements of the step last measured."""
        parts = {id(part): part for part in self._parts.values()}
        return binned(cell for part in parts.values() for cell in self._cells(self._stack(part)))

    @torch.no_grad()
    def after(self, step: int) -> list[Reading]:
        """Measures the step just made; returns the samples that have arrived, rising in step.

        Until `forget`, gradients and states are held, for histograms.
        """
        sheet = self._measure(self._doubts)
        context = (step, self._rates(sheet))
        if not self._host:
            self._transfer.send(sheet, context)
            arrived = [self._told(rows, *told) for rows, told in self._transfer.arrived()]
        else:
            rows = self._transfer.read(sheet)
            doubts = doubts_of(rows, self._num_elements, self._limits())
            if doubts:
                again = Sheet()
                self._look_again(again, doubts)
                rows = self._transfer.read(again, rows)
            arrived = [self._told(settled(rows, doubts) | self._raw_rows, *context)]
        self._before.snapshot.drop()
        return arrived

    def flush(self) -> list[Reading]:
        """The samples still on their way; waits for them."""
        return [self._told(rows, *told) for rows, told in self._transfer.arrived(wait=True)]

    def rate(self, group: int) -> Any:
        """The learning rate of a group now, a number or a tensor."""
        settled = self._watched.settings(group)
        count = settled.get("step", 1)
        return self._watched.probe.rate(settled, count if isinstance(count, int | float) else 1)

    def _told(
        self, rows: dict[str, NDArray[np.float64]], step: int, rates: NDArray[np.float64]
    ) -> Reading:
        self._doubts = (
            Doubts() if self._host else doubts_of(rows, self._num_elements, self._limits())
        )
        rates = np.where(np.isnan(rates), rows.get("rate", np.nan), rates)
        values, tensors = channels_of(
            rows, self._num_elements, rates, self._layers, self._watched.probe.adaptive, self._still
        )
        return Reading(step, values, tensors, self._rule.gaps.news())

    def _measure(self, doubts: Doubts) -> Sheet:
        """The hot path: nothing in it reads a number."""
        sheet, self._raw = self._raw, Sheet()
        watched, gradients = self._watched, self._before.gradients()
        read = reader_of(watched.optimizer)
        waiting: dict[tuple[object, ...], list[Stack]] = {}
        for unit in watched.units:
            parts = parts_of(
                unit,
                watched.tracked.parameters,
                gradients,
                read,
                watched.probe,
                watched.settings(unit.group),
                self._before.fresh,
            )
            for part in parts:
                self._parts |= dict.fromkeys(part.unit.positions, part)
                stack = self._stack(part, sheet)
                if part.unit.fills:
                    self._measure_stack(sheet, stack, doubts)
                else:
                    waiting.setdefault(stack.key, []).append(stack)
                self._room.clear()  # nothing that waits lies in it
        for several in waiting.values():
            for stack in joined(several):
                self._measure_stack(sheet, stack, doubts)
                self._room.clear()
        self._num_samples += 1
        if doubts:
            self._look_again(sheet, doubts)
        return sheet

    def _measure_stack(self, sheet: Sheet, stack: Stack, doubts: Doubts) -> None:
        careful = bool(doubts.rates.intersection(stack.positions))
        self._share(sheet, stack)
        if not self._host:
            sheet.put_plain(array_of(stack.positions), shares.of_second(self._rule.means(stack)))
        self._rate(sheet, stack, careful=careful)
        if not self._host or self._num_samples < FOLLOWED:
            self._rule.follow(sheet, stack, careful=careful)

    def _stack(self, part: Part, sheet: Sheet | None = None) -> Stack:
        """Its sampled elements; statistics of all elements go to the sheet, where there is one."""
        unit, layout, values = part.unit, part.layout, dict[str, Any]()
        positions = array_of(unit.positions)
        room = self._room if sheet is not None and unit.fills else None
        new = part.matrix(part.parameters, room)
        self._put(sheet, "param", unit, new)
        values["weight"] = unit.sampled(new)
        old = self._before.snapshot.of(part.whole)
        if old is not None and sheet is not None:
            self._put_update(sheet, part, new, old)
        values |= self._before.values(part)
        if part.gradients:
            gradient = part.matrix(part.gradients, room)
            self._put(sheet, "grad", unit, gradient, extremes=True)
            values["gradient"] = unit.sampled(gradient)
        moments = {"first": layout.first, "second": layout.second}
        for (name, moment), channel in zip(moments.items(), ("moment1", "moment2"), strict=True):
            if (matrix := part.mean(moment, room)) is None or moment is None:
                continue
            self._sizes[channel][positions] = matrix.shape[1]
            self._put(sheet, channel, unit, matrix, extremes=name == "second")
            values[name] = sampled_of(unit, matrix, moment.aligned)
        if layout.divisor is not None and (matrix := part.mean(layout.divisor)) is not None:
            values["divisor"] = sampled_of(unit, matrix, layout.divisor.aligned)
        elif layout.divisor is None and "second" in values:
            values["divisor"] = values["second"]
        if part.states and (count := part.count(self._watched.probe, known=self._host)) is not None:
            values["count"] = count
        if self._watched.follows_elements:
            for name in self._watched.probe.reads:
                if (entry := part.entries(name)) is not None:
                    values[f"state {name}"] = entry
            for name, moment in layout.further.items():
                if (matrix := part.mean(moment)) is not None:
                    values[f"state {name}"] = sampled_of(unit, matrix, moment.aligned)
        stored = values["second"].dtype if "second" in values else unit.dtype
        limits = torch.finfo(stored)
        self._number_limits[0, positions] = limits.tiny
        self._number_limits[1, positions] = limits.max / 2
        return Stack(unit.positions, values, part, stored)

    def _put(
        self, sheet: Sheet | None, of: str, unit: Unit, matrix: Tensor, *, extremes: bool = False
    ) -> None:
        positions = array_of(unit.positions)
        if sheet is None:
            return
        if matrix.shape[1] <= STACKED:
            sheet.put_all(of, positions, sums.rows(matrix, extremes=extremes))
            return
        for i in range(len(positions)):
            column = sums.pieces(matrix[i], self._room, extremes=extremes)
            sheet.put_all(of, positions[i : i + 1], column)

    def _put_update(self, sheet: Sheet, part: Part, new: Tensor, old: Tensor) -> None:
        unit, positions = part.unit, array_of(part.unit.positions)
        if unit.stacked:
            sheet.put_all("update", positions, sums.changes(new, part.of_whole(old), self._room))
        else:
            here = self._before.snapshot.now(part.whole, plain(part.parameters[0]))
            column = sums.differences(here.reshape(-1), old.reshape(-1), self._room)
            sheet.put_all("update", positions, column)
            self._sizes["update"][positions] = here.numel()
        if self._watched.foretells and not self._watched.follows_elements:
            self._rule.follow_whole(sheet, part, old)

    def _share(self, sheet: Sheet, stack: Stack) -> None:
        """Shares of the sampled elements of a stack that are what they were."""
        values, positions = stack.values, array_of(stack.positions)
        new, old, gradient = (values.get(n) for n in ("weight", "old", "gradient"))
        if new is None or gradient is None:
            return
        moving = shares.differs(gradient, 0, self._room)
        num_moving, num_sampled = moving.sum(1), gradient.shape[1]
        sheet.put("grad_zero", positions, (num_sampled - num_moving) / num_sampled)
        if old is None:
            return
        share = shares.unchanged(moving, num_moving, new, old, self._room)
        sheet.put("update_unchanged", positions, share)
        if (second_old := values.get("second_old")) is not None and "second" in values:
            second = values["second"]
            share = shares.unchanged(moving, num_moving, second, second_old, self._room)
            sheet.put("moment2_unchanged", positions, share)
        group = stack.part.group
        if not self._watched.probe.knows(group):
            return
        apart: Any = 0.0
        with self._rule.gaps:
            apart = self._watched.probe.decay_apart(group)
        in_float32 = group.get("fused") and old.dtype in HALF  # rounds once, after all
        # float16 also where a weight is subnormal, from 6e-5 down.
        least = 1.0 if old.dtype == torch.float16 else 2 * torch.finfo(old.dtype).eps
        may_round = isinstance(apart, Tensor) or 0 < abs(apart) < least
        if not in_float32 and (isinstance(apart, Tensor) or apart):
            if not may_round:
                sheet.put("decay_unchanged", positions, old.new_zeros(len(positions)))
                return
            share = shares.decay_unchanged(shares.thin(old), apart)
            sheet.put("decay_unchanged", positions, share)

    def _rate(self, sheet: Sheet, stack: Stack, *, careful: bool) -> None:
        """Means over the sampled elements of a stack, which one odd element spoils."""
        positions, means = array_of(stack.positions), self._rule.means(stack)
        with self._rule.gaps:
            sheet.put_plain(positions, shares.of_rates(means, careful=careful))
        if (line := shares.line(means)) is not None:
            own = stack.part.layout.divisor is None
            bound = line if own else torch.full_like(line, torch.inf)
            sheet.put("moment2 line", positions, bound.expand(len(positions), 1).reshape(-1))

    def _look_again(self, sheet: Sheet, doubts: Doubts) -> None:
        """With care, at what the numbers left open."""
        for of, several in doubts.sums.items():
            for i in several:
                if (whole := self._whole(of, i)) is not None:
                    sheet.put_all(of, np.array([i]), sums.careful(*whole))
        if self._host:
            odd = doubts.counts | doubts.rates | doubts.rounding
            for part in {id(self._parts[i]): self._parts[i] for i in odd}.values():
                self._look_again_at(sheet, self._stack(part.some(odd)), doubts)
        for i in doubts.counts:
            large = i in self._parts and self._sizes["moment2"][i] > SAMPLED
            if large and (means := self._whole_means(self._parts[i], i)) is not None:
                sheet.put_plain(np.array([i]), shares.of_second(means))

    def _look_again_at(self, sheet: Sheet, stack: Stack, doubts: Doubts) -> None:
        if not doubts.counts.isdisjoint(stack.positions):
            sheet.put_plain(array_of(stack.positions), shares.of_second(self._rule.means(stack)))
        spoilt = not doubts.rates.isdisjoint(stack.positions)
        if spoilt:
            self._rate(sheet, stack, careful=True)
        if spoilt or not doubts.rounding.isdisjoint(stack.positions):
            self._rule.follow(sheet, stack, careful=True)

    def _whole(self, of: str, position: int) -> tuple[Tensor, Tensor | None] | None:
        """The whole tensor of a quantity, of an update with what it was before."""
        part = self._parts.get(position)
        if part is None:
            return None
        row, snapshot = part.unit.positions.index(position), self._before.snapshot
        parameter = part.parameters[row]
        if of == "param":
            return plain(parameter), None
        if of == "grad":
            return (plain(part.gradients[row]), None) if part.gradients else None
        if of == "update":
            old = snapshot.of(part.whole)
            if old is None:
                return None
            if part.whole.stacked:
                return plain(parameter), part.of_whole(old)[row]
            return snapshot.now(part.whole, plain(parameter)), old
        moment = part.layout.first if of == "moment1" else part.layout.second
        mean = part.some({position}).mean(moment)
        return None if mean is None else (mean, None)

    def _whole_means(self, part: Part, position: int) -> shares.Means | None:
        """The moments of one tensor with all their elements."""
        part, layout = part.some({position}), part.layout
        values: dict[str, Any] = {}
        moments = {"first": layout.first, "second": layout.second}
        for name, moment in (moments | {"divisor": layout.divisor or layout.second}).items():
            if (matrix := part.mean(moment)) is not None:
                values[name] = matrix
        if "second" not in values:
            return None
        values["weight"] = plain(part.parameters[0]).reshape(1, -1)
        if (count := part.count(self._watched.probe)) is not None:
            values["count"] = count
        return self._rule.means(Stack((position,), values, part, values["second"].dtype))

    def _rates(self, sheet: Sheet) -> NDArray[np.float64]:
        """[P]: the rate of each tensor; one that is a tensor goes with the sheet."""
        rates = np.full(len(self._watched.tracked.tensors), np.nan)
        for group, positions in enumerate(self._in_group):
            rate = self.rate(group)
            if isinstance(rate, Tensor) and rate.numel() == 1:
                rate = plain(rate).detach().reshape(1).double()
                sheet.put("rate", positions, rate.expand(len(positions)))
            else:
                rates[positions] = number_of(rate)
        return rates

    def _num_elements(self, of: str) -> NDArray[np.float64]:
        """[P]: elements that a sum goes over."""
        return self._sizes.get(of, self._sizes["weight"])

    def _limits(self) -> NDArray[np.float64]:
        """[3, P]: smallest normal and half the largest number of the second moments' dtypes, and
        the distance from 1 to the next weight."""
        return self._number_limits

    def _cells(self, stack: Stack) -> Iterable[Cell]:
        if not stack.part.unit.trainable:
            return
        values = dict(stack.values)
        taken = {
            name: values[key]
            for name, key in HISTOGRAMS.items()
            if key in values and values[key].shape[1] == values["weight"].shape[1]
        }
        if (v := values.get("second")) is not None:
            taken["log10_moment2"] = torch.where(v > 0, v, torch.nan).double().log10()
        if "old" in values:
            taken["update"] = wide(values["weight"]) - wide(values["old"])
        names = [self._watched.tracked.tensors[i].name for i in stack.positions]
        for quantity, matrix in taken.items():
            yield from ((quantity, name, row) for name, row in zip(names, matrix, strict=True))
