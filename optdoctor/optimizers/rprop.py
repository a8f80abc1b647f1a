"""Rprop: each weight has a step size of its own; of a gradient only the sign counts.

Riedmiller & Braun 1993, in the form without backtracking: where the sign turned, the weight rests
and `prev` is 0. `lr` is the first step size alone, so that an update has no rate. `prev` is the
last gradient and no mean.
"""

from typing import Any

from torch import Tensor

from optdoctor.optimizers.probe import Elements, Group, Number, Probe


def no_rate(group: Group, step: Number) -> Any:
    """A schedule of `lr` changes nothing."""
    return None


def foretell(e: Elements) -> Tensor:
    """-sign(g) * step size, both as the update left them; nothing where the sign turned."""
    return -e.state["prev"].sign() * e.state["step_size"]


PROBES = (
    Probe(
        family="rprop",
        matches=("torch.optim.rprop.Rprop",),
        rate=no_rate,
        foretell=foretell,
        reads=("prev", "step_size"),
    ),
)
