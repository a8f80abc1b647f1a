"""Warm-up after a restart: rates rise linearly while moments that are lost or stale fill again.

After a resume without the optimizer's state, or a change of the data, the second moment is of few
gradients, or of others, and single updates may be far too large. The rate is multiplied by k /
`steps` at step k, and by nothing from there on. Without `steps` it takes 2 / (1 - beta2) steps
(Ma & Yarats, arXiv 1910.04209), at least 10 and at most 2000, and 100 where there is no beta2.

What it is worth: in small trainings a state that was lost on resume did no lasting harm, with or
without this; it costs the steps that it makes shorter. It does not help a model to learn data that
have changed, nor does anything else that was tried.
"""

from optdoctor.treatments.ramp import Ramp
from optdoctor.treatments.rate_needs import obeyed_rates


class WarmupRestart(Ramp):
    """Raises the rates of all groups linearly from 1/`steps` to 1 of what is set and scheduled.

    Decay that is multiplied by the rate rises with it. Refuses optimizers that do not move by the
    rate of their groups.
    """

    name = "warmup-restart"
    safety = "risky"

    def check(self) -> None:
        """Refuses where the rate does not move the weights."""
        obeyed_rates(self.name, self.optimizer)


INTERVENTION = WarmupRestart
