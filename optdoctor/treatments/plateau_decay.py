"""Decay on a plateau: rates are halved each time that evaluations have not improved for a while.

Ordinary practice, with the counting of torch's ReduceLROnPlateau: the factor falls at the first
evaluation beyond `patience` that have not been better, in a row, than the best by `threshold` of
its size. In small trainings decay that came while the loss was still falling cost 14 %: a loss that
stands still because the rate is already too small, or because weights are rounded away, needs the
opposite. It cannot tell these apart.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from optdoctor.treatments.multiplied import Multiplied

Watched = Literal["eval_loss", "loss"]


class PlateauDecay(Multiplied):
    """Multiplies all rates, and decay that goes with them, by `factor` for good on each plateau,
    down to `min_factor` of what the user's schedule gives.

    It has to be told the losses: `observe({"eval_loss": 0.3})`, which the doctor calls by itself
    with what is logged. With `of="loss"` each logged loss counts as an evaluation; a loss of single
    batches is too noisy for that unless `patience` is in the hundreds. A loss that is not finite
    is no evaluation. Refuses optimizers that do not move by the rate of their groups.
    """

    name = "plateau-decay"
    safety = "risky"

    def __init__(
        self,
        factor: float = 0.5,
        *,
        patience: int = 5,
        min_factor: float = 0.01,
        threshold: float = 1e-4,
        of: Watched = "eval_loss",
    ) -> None:
        super().__init__()
        if not 0 < factor < 1:
            raise ValueError(f"factor must be between 0 and 1, not {factor!r}")
        if patience < 0:
            raise ValueError(f"patience must be at least 0 evaluations, not {patience!r}")
        if not 0 < min_factor < 1:
            raise ValueError(f"min_factor must be between 0 and 1, not {min_factor!r}")
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold must be from 0 to below 1, not {threshold!r}")
        if of not in get_args(Watched):
            raise ValueError(f"of must be 'eval_loss' or 'loss', not {of!r}")
        self.factor, self.patience, self.min_factor = factor, patience, min_factor
        self.threshold, self.of = threshold, of
        self._forget()

    def _forget(self) -> None:
        self._now, self._best, self._bad = 1.0, math.inf, 0

    def begin(self) -> None:
        """The first evaluation is the best."""
        self._forget()

    def factor_now(self) -> float:
        """What is left of the rates."""
        return self._now

    def observe(self, values: Mapping[str, float]) -> None:
        """Takes what the loop has logged; only the loss that it watches counts."""
        value = float(values.get(self.of, math.nan))
        if not self.applied or not math.isfinite(value):
            return
        if self._best == math.inf or value < self._best - self.threshold * abs(self._best):
            self._best, self._bad = value, 0
            return
        self._bad += 1
        if self._bad <= self.patience:
            return
        lower = max(self._now * self.factor, self.min_factor)
        if lower < self._now:
            self.note(
                f"{self.name}: {self.of} has not been below {self._best:.4g} for {self._bad}"
                f" evaluations, rates go from {self._now:.3g} to {lower:.3g} of what is set",
                self._now,
                lower,
            )
        self._now, self._bad = lower, 0

    def state_dict(self) -> dict[str, Any]:
        """The factor, and what it waits for."""
        return {"now": self._now, "best": self._best, "bad": self._bad}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes it up where it was left."""
        if state:
            self._now, self._best = float(state["now"]), float(state["best"])
            self._bad = int(state["bad"])


INTERVENTION = PlateauDecay
