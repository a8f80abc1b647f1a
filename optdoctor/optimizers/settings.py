"""Settings of parameter groups under the names of run channels."""

from math import isfinite
from numbers import Real
from typing import Any

from optdoctor.optimizers.probe import Group


def named(**values: Any) -> dict[str, float]:
    """{run channel: number} of what is one; a tensor is read where that waits for nobody."""
    found = {name: _number(value) for name, value in values.items()}
    return {name: number for name, number in found.items() if isfinite(number)}


def adam_facts(group: Group) -> dict[str, float]:
    """Betas, epsilon, decay; a subclass may lack some."""
    betas = dict(zip(("beta1", "beta2"), group.get("betas") or (), strict=False))
    return named(**betas, eps=group.get("eps"), weight_decay=group.get("weight_decay"))


def momentum_facts(group: Group) -> dict[str, float]:
    """Momentum and decay."""
    return named(momentum=group.get("momentum"), weight_decay=group.get("weight_decay"))


def _number(value: Any) -> float:
    if hasattr(value, "tolist") and getattr(value, "numel", lambda: 0)() == 1:
        value = value.detach().reshape(-1).tolist()[0]
    return float(value) if isinstance(value, int | float | Real) else float("nan")
