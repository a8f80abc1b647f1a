"""Sophia: momentum over an estimate of the Hessian's diagonal, each element clipped.

Liu et al. 2024, algorithm 3, of pytorch_optimizer (SophiaH): -lr * clip(m / max(h, eps), ±p).
h (`hessian_moment`) is a mean of curvatures, at times negative, and of no gradient's size: it is
not told as a second moment.
"""

from torch import Tensor

from optdoctor.optimizers.lamb import decay_apart
from optdoctor.optimizers.probe import Elements, Group, Layout, Moment, Probe, State
from optdoctor.optimizers.settings import named


def layout(state: State, group: Group) -> Layout:
    """momentum."""
    return Layout(Moment("momentum"))


def facts(group: Group) -> dict[str, float]:
    """Betas and decay; eps bounds curvatures, not gradients."""
    beta1, beta2 = group["betas"]
    return named(beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"])


def foretell(e: Elements) -> Tensor:
    """-lr * clip(m / max(h, eps), ±p), and the decay where it is decoupled."""
    assert e.first is not None
    steps = e.first / e.state["hessian_moment"].clamp(min=e.group["eps"])
    bound = e.group["p"]
    return -e.rate * steps.clamp(-bound, bound) + decay_apart(e.group) * e.weight


PROBES = (
    Probe(
        family="sophia",
        matches=("pytorch_optimizer.optimizer.sophia.SophiaH",),
        layout=layout,
        facts=facts,
        foretell=foretell,
        reads=("hessian_moment",),
        decay_apart=decay_apart,
    ),
)
