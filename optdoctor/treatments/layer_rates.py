"""Layer rates: layers that move far faster or slower than the median layer get another rate.

What is compared is how far a layer moves in a step, over the size of its weights: gradients say
nothing of that where the optimizer divides by their size. At each look, with u the ratio of a layer
as it would be at the rate that the user set, the rate is to be multiplied by

    (median of u / u) ** alpha, between `floor` and `ceiling`,

where all of them are shifted by one factor such that their geometric mean over layers is 1: each
layer counts once, and one at twice its rate is made up for by one at half. (The formula that this
stands in for, 1 plus the z-score of gradient norms, gives rates of zero and below.)

What it is worth: the ratios of healthy layers differ as well, so that it acts on healthy runs too.
Elsewhere, giving layers other rates made a deep network whose gradients vanish worse (final loss
1.72 in place of 0.23, 0.05 with residual connections); attention at twenty times its rate was cured
by giving it its rate, which is a factor that this does not reach, and what is wrong alike in most
layers it does not see. On digits, one layer of four at 20 times or at a twentieth of its rate: with
SGD 0.74 became 0.50 and 0.17 became 0.13, with AdamW 0.169 became 0.172 and 0.37 became 0.40
(medians of 3 seeds). It presumes that layers ought to move alike, for which there is no proof.
Rates that were set by layer on purpose it works against, within its bounds.
"""

import math
from collections.abc import Mapping
from typing import Any

from optdoctor.treatments.intervention import Intervention, Refused
from optdoctor.treatments.layer_balance import SLACK, Balance
from optdoctor.treatments.layer_units import Movement, units_of
from optdoctor.treatments.needs import whole_gradients
from optdoctor.treatments.rate_needs import obeyed_rates, separate_rates
from optdoctor.treatments.rates import Split


class LayerRates(Intervention):
    """Multiplies the rates of layers by factors between `floor` and `ceiling`.

    All of one kind in a numbered block is one layer, with its biases; outside of blocks each module
    is. Norms, embeddings, heads by name, adapters, tensors below 64 elements and layers whose
    weights are below a tenth of the usual size keep their rates. It looks at each `every` steps,
    keeps at most 4096 elements of each tensor for that, and waits for the device once. Rates move
    only where a wish has differed by a quarter in three looks in a row, then by a fifth of the way
    at each look, until none differs by as much.

    Refuses: no model, fewer than two layers, sharded weights, and optimizers that have something of
    all tensors in their state (L-BFGS, Prodigy, D-Adaptation, schedule-free) or do not move by the
    rates of their groups.
    """

    name = "layer-rates"
    safety = "risky"

    def __init__(
        self, *, floor: float = 0.5, ceiling: float = 2.0, alpha: float = 0.5, every: int = 20
    ) -> None:
        if not 0 < floor < 1 < ceiling < math.inf:
            raise ValueError(
                f"floor {floor!r} and ceiling {ceiling!r} must be around 1 and above 0"
            )
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha must be above 0 and at most 1, not {alpha!r}")
        if every < 1:
            raise ValueError(f"every must be at least 1 step, not {every!r}")
        self.floor, self.ceiling, self.alpha, self.every = floor, ceiling, alpha, every
        self._split: Split | None = None
        self._movement: Movement | None = None

    @property
    def multipliers(self) -> dict[str, float]:
        """{layer: factor of its rate} as of now; empty while it is switched off."""
        if self._movement is None:
            return {}
        return {
            n: math.exp(v) for n, v in zip(self._movement.layers, self._balance.logs, strict=True)
        }

    def check(self) -> None:
        """Refuses where layers cannot have rates of their own, or there is nothing to compare."""
        obeyed_rates(self.name, self.optimizer)
        separate_rates(self.name, self.optimizer)
        if self.model is None:
            raise Refused(f"{self.name} knows layers by their names", "give it the model")
        whole_gradients(self.name, self.model)
        if any(hasattr(p, "to_local") for p in self.parameters()):
            raise Refused(
                f"{self.name} would compare shards, which differ from process to process",
                "train it without sharding",
            )
        layers = set(units_of(self.model, self.parameters()).values())
        if len(layers) < 2:
            found = f"only {layers.pop()}" if layers else "none"
            raise Refused(
                f"{self.name} compares layers, and the optimizer has {found}", "set its rate"
            )

    def begin(self) -> None:
        """All at 1; how large the layers are."""
        assert self.model is not None
        self._units = units_of(self.model, self.parameters())
        self._split = Split(self.optimizer)
        self._movement = Movement(self._units, self.parameters())
        bounds = math.log(self.floor), math.log(self.ceiling)
        self._balance = Balance(len(self._movement.layers), *bounds, self.alpha)
        self._told, self._taken = list(self._balance.logs), 0

    def before(self) -> None:
        """Rates by layer for this step; the groups are divided alike at every step."""
        if self._split is None or self._movement is None:
            return
        if self._taken % self.every == 0:
            self._movement.keep()
        self._split.open(self._units, self.multipliers)

    def after(self) -> None:
        """The groups as they were, and a look."""
        if self._split is None or self._movement is None:
            return
        self._split.close()
        looks, self._taken = self._taken % self.every == 0, self._taken + 1
        if looks:
            self._balance.learn(self._movement.ratios())
            if self._balance.move():
                self._tell_if_far()

    def _tell_if_far(self) -> None:
        far = [abs(log - told) for log, told in zip(self._balance.logs, self._told, strict=True)]
        if max(far) <= SLACK / 2:
            return
        assert self._movement is not None
        i = far.index(max(far))
        old, new = math.exp(self._told[i]), math.exp(self._balance.logs[i])
        low, high = math.exp(min(self._balance.logs)), math.exp(max(self._balance.logs))
        self.note(
            f"{self.name}: the rate of {self._movement.layers[i]} goes from {old:.3g} to {new:.3g}"
            f" of what is set, those of all {len(far)} layers are {low:.3g} to {high:.3g} of it",
            old,
            new,
        )
        self._told = list(self._balance.logs)

    def end(self) -> None:
        """The rates of the user."""
        if self._split is not None:
            self._split.close()
        factors = self.multipliers.values()
        if any(factor != 1 for factor in factors):
            low, high = min(factors), max(factors)
            self.note(
                f"{self.name} leaves: rates of layers go from {low:.3g} to {high:.3g} of what is"
                " set to all of it",
                kind="undo",
            )
        self._split = self._movement = None

    def state_dict(self) -> dict[str, Any]:
        """What it knows of each layer, by name."""
        if self._movement is None:
            return {}
        one = self._balance
        columns = (one.logs, self._told, one.known, one.rows)
        rows = map(list, zip(*columns, strict=True))
        return {
            "taken": self._taken,
            "layers": dict(zip(self._movement.layers, rows, strict=True)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes it up where it was left, if the layers are the same."""
        if self._movement is None or set(state.get("layers", ())) != set(self._movement.layers):
            return
        rows = [state["layers"][name] for name in self._movement.layers]
        columns = [list(column) for column in zip(*rows, strict=True)]
        one = self._balance
        one.logs, self._told, one.known, one.rows = columns
        self._taken = int(state["taken"])


INTERVENTION = LayerRates
