"""Momentum warm-up: momentum rises linearly from a share of what is set to all of it.

Under SGD a momentum of m multiplies what a steady gradient moves in the long run by 1 / (1 - m):
this is a warm-up of that factor too, from 1 to 10 for 0.9. It has been attributed to a training
that did not use it; nothing speaks for it but that a mean of few gradients need not count for many.

Adam corrects its first moment as if beta1 had always been what it is. While beta1 rises from 0 at
the very beginning of a training that makes updates larger than the mean is: by 1.5 over 10 steps,
1.14 over 20, less than 1 % over 50. Once a training has run for a few dozen steps, it does not.
"""

from typing import Any

from optdoctor.optimizers import number_of, probe_of
from optdoctor.treatments.intervention import Refused
from optdoctor.treatments.ramp import Ramp

KEYS = ("momentum", "beta1")
"""Settings that hold it as one number; `betas` holds it first of several."""


class MomentumWarmup(Ramp):
    """Raises momentum, or the first of the betas, from `low` times what is set to what is set, at
    step k by k / `steps`; the schedule of the user, as of one cycle, is kept within.

    Without `steps` it takes 2 / (1 - beta2) steps, or 100 where there is no beta2. Refuses
    optimizers without momentum, and those that are schedule-free, which use theirs outside of steps
    too, to get from one set of weights to the other.
    """

    name = "momentum-warmup"
    safety = "risky"
    what = "momenta"

    def __init__(self, steps: int | None = None, *, low: float = 0.0) -> None:
        super().__init__(steps)
        if not 0 <= low < 1:
            raise ValueError(f"low must be a share of the momentum, from 0 to below 1, not {low!r}")
        self.low = low

    def check(self) -> None:
        """Refuses where there is no momentum, or it is needed between steps."""
        kind = type(self.optimizer).__name__
        if probe_of(self.optimizer).family == "schedule_free":
            raise Refused(
                f"{self.name} changes momentum within steps, and {kind} needs it between them too",
                "set the momentum of the optimizer itself",
            )
        if not any(momenta(group) for group in self.optimizer.param_groups):
            raise Refused(
                f"{self.name} raises momentum to what is set, and {kind} has none",
                "set the momentum of the optimizer",
            )

    def share(self, progress: float) -> float:
        """Of the momentum."""
        return self.low + (1 - self.low) * progress

    def multiply(self, share: float) -> None:
        """For the step that begins."""
        for group in self.optimizer.param_groups:
            for key, value in momenta(group).items():
                several = isinstance(value, list | tuple)
                lower = type(value)((value[0] * share, *value[1:])) if several else value * share
                self._borrowed.put(group, key, lower)


def momenta(group: dict[str, Any]) -> dict[str, Any]:
    """{setting: value} of those of one group that are momentum and not 0."""
    found = {key: group[key] for key in KEYS if number_of(group.get(key)) > 0}
    betas = group.get("betas")
    if isinstance(betas, list | tuple) and betas and number_of(betas[0]) > 0:
        found["betas"] = betas
    return found


INTERVENTION = MomentumWarmup
