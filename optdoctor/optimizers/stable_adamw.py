"""StableAdamW: AdamW whose rate falls where a tensor's gradients outgrow their second moment.

Wortsman et al. 2023, algorithm 2, of pytorch_optimizer: -lr / r * m / (√v + eps) with
r = max(1, √mean(g² / max(v, eps²))), one number a tensor. Both betas are corrected as they are used
(beta * (1 - beta^(t-1)) / (1 - beta^t)), so that neither moment is in need of it afterwards.

With bfloat16 or float16 weights `kahan_comp` keeps what rounding took from an update and adds it to
the next one. What the rule foretells is then the change that is due now: the update less what was
postponed. The measured change lacks the part that is lost for good: of the decay, which multiplies
the weights outside of the compensation, and of the compensation's own rounding.

Kahan's sum uses the gradient as scratch space: p.grad holds no gradient after the step. So r is
found from two states of the first moment.
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
    """exp_avg, exp_avg_sq."""
    return Layout(Moment("exp_avg"), Moment("exp_avg_sq"))


def foretell(e: Elements) -> Tensor:
    """-lr / r * (m / (√v + eps) + decay * w), the decay where decoupled, less what is postponed."""
    assert e.first is not None
    assert e.second is not None
    rate = e.rate / excess(e, e.first, e.second)
    change = -rate * e.first / (e.second.sqrt() + e["eps"])
    if e.group["weight_decouple"]:
        change = change - rate * e["weight_decay"] * e.weight
    if "kahan_comp" in e.state:
        change = change - (e.state["kahan_comp"] - e.before.get("kahan_comp", 0.0))
    return change


def excess(e: Elements, first: Tensor, second: Tensor) -> Tensor:
    """r, from the gradient that led from the first moment before to the one after."""
    beta1 = e.group["betas"][0]
    kept = e.fit((beta1 - beta1**e.step) / (1 - beta1**e.step))
    gradient = (first - kept * e.before.get("first", 0.0)) / (1 - kept)
    ratio = gradient.square() / second.clamp(min=e.group["eps"] ** 2)
    return ratio.mean().sqrt().clamp(min=1.0)


def decay_apart(group: Group) -> Number:
    """Of the whole rate: at most, for r is at least 1."""
    if not group["weight_decouple"]:
        return 0.0
    return -setting_of(group, "lr") * setting_of(group, "weight_decay")


PROBES = (
    Probe(
        family="stable_adamw",
        matches=("pytorch_optimizer.optimizer.adamw.StableAdamW",),
        layout=layout,
        facts=adam_facts,
        foretell=foretell,
        scope="tensor",
        overwrites_gradient=True,
        reads=("kahan_comp",),
        keeps=("first", "kahan_comp"),
        decay_apart=decay_apart,
    ),
)
