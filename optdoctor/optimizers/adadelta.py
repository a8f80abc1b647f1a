"""Adadelta: the ratio of two running roots is the rate (Zeiler 2012, algorithm 1).

Epsilon stands inside of both roots, and `lr` multiplies the whole (1 in the paper). The numerator
is the mean of squared steps from before this one. Decay is part of the gradient.
"""

from torch import Tensor, zeros_like

from optdoctor.optimizers.probe import Elements, Group, Layout, Moment, Probe, State
from optdoctor.optimizers.settings import named


def layout(state: State, group: Group) -> Layout:
    """square_avg."""
    return Layout(second=Moment("square_avg"))


def foretell(e: Elements) -> Tensor:
    """-lr * √(mean of squared steps before + eps) / √(v + eps) * g."""
    assert e.second is not None
    sign = -1.0 if e.group["maximize"] else 1.0
    gradient = sign * e.gradient + e["weight_decay"] * e.weight
    steps = e.before["acc_delta"] if "acc_delta" in e.before else zeros_like(e.second)
    return -e.rate * gradient * (steps + e["eps"]).sqrt() / (e.second + e["eps"]).sqrt()


def facts(group: Group) -> dict[str, float]:
    """rho is what others call beta2."""
    return named(
        beta2=group.get("rho"), eps=group.get("eps"), weight_decay=group.get("weight_decay")
    )


PROBES = (
    Probe(
        family="adadelta",
        matches=("torch.optim.adadelta.Adadelta",),
        layout=layout,
        facts=facts,
        foretell=foretell,
        keeps=("acc_delta",),
    ),
)
