"""Adan: momentum of the gradient and of its differences, over a second moment of both together.

Xie et al. 2024, algorithm 1, of pytorch_optimizer. With d the mean of the differences:
-lr * (m̂ + beta2 * d̂) / (√v̂ + eps); v's decay is the third beta. Weight decay by default is
proximal: the new weights are divided by 1 + lr * decay. One by one (foreach=False) its step leaves
p.grad negated.
"""

from torch import Tensor

from optdoctor.optimizers.probe import (
    Elements,
    Group,
    Layout,
    Moment,
    Number,
    Probe,
    State,
    setting_of,
)
from optdoctor.optimizers.settings import adam_facts


def layout(state: State, group: Group) -> Layout:
    """exp_avg, exp_avg_sq; exp_avg_diff is neither."""
    return Layout(Moment("exp_avg"), Moment("exp_avg_sq"))


def facts(group: Group) -> dict[str, float]:
    """As of Adam: beta2 is what the second moment decays by, here the third."""
    beta1, _, beta3 = group["betas"]
    return adam_facts({**group, "betas": (beta1, beta3)})


def corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """1 - beta1^t and 1 - beta3^t."""
    beta1, _, beta3 = group["betas"]
    return 1 - beta1**step, 1 - beta3**step


def foretell(e: Elements) -> Tensor:
    """-lr * (m̂ + beta2 * d̂) / (√v̂ + eps), and the decay, proximal or decoupled."""
    assert e.first is not None
    assert e.second is not None
    beta2: float = e.group["betas"][1]
    difference = e.state["exp_avg_diff"] * (beta2 / e.fit(1 - beta2**e.step))
    change = -e.rate * (e.first / e.c1 + difference) / ((e.second / e.c2).sqrt() + e["eps"])
    decay = decay_apart(e.group)
    if not e.group["weight_decouple"]:
        change = change * (1 + decay)
    return change + decay * e.weight


def decay_apart(group: Group) -> Number:
    """-lr * decay, or what dividing by 1 + lr * decay comes to."""
    decay = setting_of(group, "lr") * setting_of(group, "weight_decay")
    return -decay if group["weight_decouple"] else -decay / (1 + decay)


PROBES = (
    Probe(
        family="adan",
        matches=("pytorch_optimizer.optimizer.adan.Adan",),
        layout=layout,
        facts=facts,
        adaptive=True,
        corrections=corrections,
        foretell=foretell,
        reads=("exp_avg_diff",),
        overwrites_gradient=True,
        decay_apart=decay_apart,
    ),
)
