"""What an optimizer meant to do: rates from its moments, and its rule beside what was done."""

from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from optdoctor.live import shares
from optdoctor.live.before import WHOLE, Before
from optdoctor.live.gaps import Gaps
from optdoctor.live.parts import Part, Stack
from optdoctor.live.sums import Sheet
from optdoctor.live.units import HALF, array_of, plain
from optdoctor.live.watched import Watched
from optdoctor.optimizers.elements import elements, wide
from optdoctor.optimizers.probe import Elements, Number, fit


class Rule:
    """Follows the rule of one optimizer in the tensors of one sample."""

    def __init__(self, watched: Watched, before: Before) -> None:
        self._watched, self._before = watched, before
        self.gaps = Gaps()
        """What of its settings and states could not be read."""

    def means(self, stack: Stack) -> shares.Means:
        """The moments of a stack with what they are divided by."""
        values, group, count = stack.values, stack.part.group, stack.values.get("count")
        # What lies there in fewer bits is not what the update was divided by.
        adaptive = self._watched.probe.adaptive and count is not None and stack.form != "quantized"
        eps = group.get("eps") if adaptive else None
        c1: Number = 1.0
        c2: Number = 1.0
        rate = None
        if eps is not None and count is not None:
            with self.gaps:
                c1, c2 = (fit(c, stack.like) for c in self._watched.probe.corrections(group, count))
                rate = self._rate(stack, count)
        usable = isinstance(rate, float | Tensor)
        return shares.Means(
            first=values.get("first"),
            second=values.get("second"),
            divisor=values.get("divisor"),
            form=stack.form,
            stored=stack.stored,
            c1=c1,
            c2=c2,
            eps=float(eps) if isinstance(eps, Real) and usable else None,
            rate=1.0 if rate is None else fit(rate, stack.like),
        )

    def follow(self, sheet: Sheet, stack: Stack, *, careful: bool) -> None:
        """What of the change that the rule asks for was made."""
        with self.gaps:
            self._follow(sheet, stack, careful=careful)

    def _follow(self, sheet: Sheet, stack: Stack, *, careful: bool) -> None:
        around = self._around(stack)
        if around is None or self._watched.probe.foretell is None:
            return
        moved = wide(shares.thin(stack.values["weight"])) - around.weight
        foretold = self._watched.probe.foretell(around)
        if stack.part.group.get("fused") and "second" in stack.values and stack.stored in HALF:
            # It divided by a float32 of which 16 bits hold next to nothing where that is small.
            held = shares.thin(stack.values["second"]) >= torch.finfo(stack.stored).tiny
            foretold, moved = (torch.where(held, t, 0) for t in (foretold, moved))
        share = shares.realized(moved, foretold, careful=careful)
        sheet.put("update_realized", array_of(stack.positions), share)

    def follow_whole(self, sheet: Sheet, part: Part, old: Tensor) -> None:
        """The rule of one tensor after another, for a rule that needs them whole."""
        unit, probe = part.unit, self._watched.probe
        if not part.gradients or unit.num_elements > WHOLE or not probe.knows(part.group):
            return
        weights = part.of_whole(old) if unit.stacked else old.reshape(1, -1)
        if weights.shape[1] != unit.num_elements or not part.states:
            return
        for i in range(len(unit.positions)):
            with self.gaps:
                self._follow_one(sheet, part, i, weights[i])

    def _follow_one(self, sheet: Sheet, part: Part, i: int, old: Tensor) -> None:
        unit, probe, position = part.unit, self._watched.probe, part.unit.positions[i]
        weight = old.view(plain(part.parameters[i]).shape)
        before = self._before.whole.get(position)
        if before is None and probe.keeps:
            return
        around = elements(
            probe,
            part.states[i],
            part.group,
            weight=weight,
            gradient=plain(part.gradients[i]),
            before=before or {},
            take=plain,
            num_elements=unit.num_elements,
            rate=self._before.rate(unit.group),
        )
        assert probe.foretell is not None
        foretold = probe.foretell(around).reshape(1, -1)
        moved = (wide(plain(part.parameters[i])) - wide(weight)).reshape(1, -1)
        share = shares.realized(moved, foretold, careful=True)
        sheet.put("update_realized", np.array([position]), share)

    def _around(self, stack: Stack) -> Elements | None:
        values, group = stack.values, stack.part.group
        count, layout = values.get("count"), stack.part.layout
        needed = [f"keep {name}" in values for name in self._watched.probe.keeps]
        known = self._watched.follows_elements and self._watched.probe.knows(group)
        if not known or not {"gradient", "old"} <= values.keys() or not layout.aligned:
            return None
        if any(needed) and not all(needed):
            return None
        named = layout if stack.part.states else self._watched.probe.layout({}, group)
        means = {"first": named.first, "second": named.second, "divisor": named.divisor}
        if any(moment is not None and name not in values for name, moment in means.items()):
            return None

        def thin(value: Any) -> Any:
            two = isinstance(value, Tensor) and value.dim() == 2
            return wide(shares.thin(value)) if two else value

        count = float("nan") if count is None else count
        moments = {n: thin(values[n]) for n in ("first", "second", "divisor") if n in values}
        rate = self._rate(stack, count)
        c1, c2 = self._watched.probe.corrections(group, count)
        weight = thin(values["old"])
        return Elements(
            weight=weight,
            gradient=thin(values["gradient"]),
            first=moments.get("first"),
            second=moments.get("second"),
            divisor=moments.get("divisor"),
            state={
                n.removeprefix("state "): thin(v)
                for n, v in values.items()
                if n.startswith("state ")
            },
            before={
                n.removeprefix("keep "): thin(v) for n, v in values.items() if n.startswith("keep ")
            },
            group=group,
            rate=fit(rate, weight),
            step=count,
            c1=fit(c1, weight),
            c2=fit(c2, weight),
        )

    def _rate(self, stack: Stack, count: Number) -> Any:
        """The rate that the step used."""
        kept = self._before.rate(stack.part.unit.group)
        rate = self._watched.probe.rate(stack.part.group, count) if kept is None else kept
        return float(rate) if isinstance(rate, Real) else rate  # numpy's numbers too
