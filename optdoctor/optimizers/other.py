"""Any other optimizer: what it did is measured from the weights; its moments are not read."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch

from optdoctor.optimizers import Moments, Probe, number_of


def moments(state: Mapping[str, Any]) -> Moments:
    """Only how many updates it has seen, where it counts them as torch does."""
    step = number_of(state.get("step"))
    return Moments(step=step if isfinite(step) else None)


def facts(group: Mapping[str, Any]) -> dict[str, float]:
    """The decay and momentum that it names as torch does."""
    given = {name: number_of(group.get(name)) for name in ("weight_decay", "momentum")}
    return {name: value for name, value in given.items() if isfinite(value)}


PROBE = Probe(
    family="other",
    matches=(),
    moments=moments,
    facts=facts,
    adaptive=False,
    make=lambda params: torch.optim.RMSprop(params, lr=1e-2),
)
