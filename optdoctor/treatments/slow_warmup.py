"""Warm-up in the shape of a cosine, or slower still at its beginning.

With p the share of the warm-up that is over, the rate is multiplied by

    cosine:  (1 - cos(pi p)) / 2
    slow:    0.1 (1 - cos(10 pi p)) / 2                    in the first tenth,
             0.1 + 0.9 (1 - cos(pi (p - 0.1) / 0.9)) / 2   from there on.

Both begin and end flat. At a tenth the first stands at 2.4 %, the second at 10 %, where a straight
line stands too: what is slower about it is what comes between there and the middle. That either is
better than a straight line has been claimed and not been measured here; in small trainings too
short a warm-up did harm and a longer one mended it.
"""

import math
from typing import Literal, get_args

from optdoctor.treatments.ramp import Ramp
from optdoctor.treatments.rate_needs import obeyed_rates, tenth_of_run

Shape = Literal["cosine", "slow"]
TENTH = 0.1


class SlowWarmup(Ramp):
    """Raises the rates of all groups to what is set, schedule included, over `steps` steps.

    Without `steps` it takes a tenth of the run where its length is known, else as many as the
    second moment needs, 2 / (1 - beta2), and 100 where there is no beta2. For the beginning of a
    training: a schedule that warms up by itself is multiplied by it. Refuses optimizers that do not
    move by the rate of their groups.
    """

    name = "slow-warmup"
    safety = "risky"

    def __init__(self, steps: int | None = None, *, shape: Shape = "cosine") -> None:
        super().__init__(steps)
        if shape not in get_args(Shape):
            raise ValueError(f"shape must be 'cosine' or 'slow', not {shape!r}")
        self.shape = shape

    def check(self) -> None:
        """Refuses where the rate does not move the weights."""
        obeyed_rates(self.name, self.optimizer)

    def default_steps(self) -> int:
        """A tenth of the run."""
        return tenth_of_run(self.facts) or super().default_steps()

    def share(self, progress: float) -> float:
        """Of the rate."""
        if self.shape == "cosine":
            return risen(progress)
        if progress <= TENTH:
            return TENTH * risen(progress / TENTH)
        return TENTH + (1 - TENTH) * risen((progress - TENTH) / (1 - TENTH))


def risen(progress: float) -> float:
    """Half a wave, from 0 at 0 to 1 at 1."""
    return (1 - math.cos(math.pi * progress)) / 2


INTERVENTION = SlowWarmup
