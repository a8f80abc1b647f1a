"""Any other optimizer: what it did is measured from the weights, its state is not interpreted."""

from collections.abc import Mapping
from typing import Any

import torch

from optdoctor.optimizers import Moments, Probe


def facts(group: Mapping[str, Any]) -> dict[str, float]:
    """The decay and momentum that it names as torch does."""
    given = {name: group.get(name) for name in ("weight_decay", "momentum")}
    return {name: float(v) for name, v in given.items() if isinstance(v, int | float)}


PROBE = Probe(
    family="other",
    matches=(),
    moments=lambda state: Moments(),
    facts=facts,
    adaptive=False,
    make=lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9),
)
