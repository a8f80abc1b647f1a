"""AdaBelief and AdaNorm, whose second moment is called exp_avg_var; of pytorch_optimizer.

AdaBelief (Zhuang et al. 2020, algorithm 2): a mean of (g - m)², to which eps is added at every
update, so that it ends at eps / (1 - beta2) above the true one.

AdaNorm (Dubey et al. 2024): a mean of g² in spite of its name; the gradient in m is scaled up to
its usual norm. Here eps is divided by the correction too: (√(v + 1e-15) + eps) / √c2.
"""

from torch import Tensor

from optdoctor.optimizers.lamb import decay_apart
from optdoctor.optimizers.probe import Elements, Group, Layout, Moment, Number, Probe, State
from optdoctor.optimizers.settings import adam_facts

UNDER_ROOT = 1e-15
"""Added to AdaNorm's second moment (`exp_avg_sq_eps`)."""


def layout(state: State, group: Group) -> Layout:
    """exp_avg, exp_avg_var; with ams_bound the running maximum is what divides."""
    divisor = Moment("max_exp_avg_var") if group.get("ams_bound") else None
    return Layout(Moment("exp_avg"), Moment("exp_avg_var"), divisor)


def corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """As of Adam; `adam_debias` forgoes the first."""
    beta1, beta2 = group["betas"]
    return 1.0 if group.get("adam_debias") else 1 - beta1**step, 1 - beta2**step


def foretell(e: Elements) -> Tensor:
    """-lr * m̂ / (√v̂ + eps), and the decay where it is decoupled."""
    assert e.first is not None
    assert e.divisor is not None
    change = -e.rate * (e.first / e.c1) / ((e.divisor / e.c2).sqrt() + e["eps"])
    return change + decay_apart(e.group) * e.weight


def adanorm_foretell(e: Elements) -> Tensor:
    """-lr * m̂ * √c2 / (√(v + 1e-15) + eps), and the decay where it is decoupled."""
    assert e.first is not None
    assert e.divisor is not None
    root = ((e.divisor + UNDER_ROOT).sqrt() + e["eps"]) / e.c2**0.5
    return -e.rate * (e.first / e.c1) / root + decay_apart(e.group) * e.weight


def knows(group: Group) -> bool:
    """Rectified updates (`rectify`) have a rule of their own."""
    return not group["rectify"]


PROBES = (
    Probe(
        family="adabelief",
        matches=("pytorch_optimizer.optimizer.adabelief.AdaBelief",),
        layout=layout,
        facts=adam_facts,
        adaptive=True,
        corrections=corrections,
        foretell=foretell,
        knows=knows,
        decay_apart=decay_apart,
    ),
    Probe(
        family="adabelief",
        matches=("pytorch_optimizer.optimizer.adanorm.AdaNorm",),
        layout=layout,
        facts=adam_facts,
        corrections=corrections,
        foretell=adanorm_foretell,
        decay_apart=decay_apart,
    ),
)
