"""ASGD: plain SGD whose rate falls, and a mean of the weights beside it.

Polyak & Juditsky 1992. `ax` is the mean of the weights: evaluation wants it, the update does not.
Each update computes the rate of the next (`eta`), so that a change of `lr` counts one update late.
`lambd` decays the weights in an operation of its own; `weight_decay` travels with the gradient.
"""

from torch import Tensor

from optdoctor.optimizers.probe import Elements, Group, Number, Probe, setting_of
from optdoctor.optimizers.settings import named


def rate(group: Group, step: Number) -> Number:
    """lr / (1 + lambd * lr * (t - 1))^alpha: what `eta` held, had `lr` not changed."""
    lr = setting_of(group, "lr")
    fall: Number = (1 + group["lambd"] * lr * (step - 1)) ** group["alpha"]
    return lr / fall


def foretell(e: Elements) -> Tensor:
    """-eta * (g + (weight_decay + lambd) * w), with the eta from before; lr at first."""
    sign = -1.0 if e.group["maximize"] else 1.0
    eta = e.fit(e.before["eta"]) if "eta" in e.before else e["lr"]
    decay = e["weight_decay"] + e["lambd"]
    return -eta * (sign * e.gradient + decay * e.weight)


def decay_apart(group: Group) -> Number:
    """-lr * lambd; eta differs from lr by little where lambd is small."""
    return -setting_of(group, "lr") * setting_of(group, "lambd")


def facts(group: Group) -> dict[str, float]:
    """Decay."""
    return named(weight_decay=group.get("weight_decay"))


PROBES = (
    Probe(
        family="asgd",
        matches=("torch.optim.asgd.ASGD",),
        facts=facts,
        rate=rate,
        foretell=foretell,
        keeps=("eta",),
        decay_apart=decay_apart,
    ),
)
