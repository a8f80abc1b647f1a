"""NAdam: Adam with Nesterov's look ahead, its momentum warmed up (Dozat 2016).

torch.optim.nadam: mu_t = beta1 * (1 - 0.96^(t * momentum_decay) / 2); the state holds the product
of all mu in `mu_product`. The step is a sum of the gradient and the mean, each with a correction of
its own, so that no single rate belongs to an element.
"""

from torch import Tensor

from optdoctor.optimizers.adam import decay_apart, layout
from optdoctor.optimizers.probe import Elements, Number, Probe, adam_corrections
from optdoctor.optimizers.settings import adam_facts


def foretell(e: Elements) -> Tensor:
    """-lr * ((1 - mu_t) / (1 - Πmu) * g + mu_next / (1 - Πmu * mu_next) * m) / (√v̂ + eps)."""
    assert e.first is not None
    assert e.second is not None
    sign = -1.0 if e.group.get("maximize") else 1.0
    gradient = sign * e.gradient
    if not e.group.get("decoupled_weight_decay"):
        gradient = gradient + e["weight_decay"] * e.weight
    product = e.state["mu_product"].double()
    mu, mu_next = momentum(e, e.step), momentum(e, e.step + 1)
    of_gradient = e.fit((1 - mu) / (1 - product))
    of_mean = e.fit(mu_next / (1 - product * mu_next))
    look_ahead = of_gradient * gradient + of_mean * e.first
    change = -e.rate * look_ahead / ((e.second / e.c2).sqrt() + e["eps"])
    return change + e.fit(decay_apart(e.group)) * e.weight


def momentum(e: Elements, step: Number) -> Number:
    """mu of this step."""
    warm: Number = 0.96 ** (step * e["momentum_decay"])
    beta1: Number = e.group["betas"][0]
    return beta1 * (1 - 0.5 * warm)


PROBES = (
    Probe(
        family="nadam",
        matches=("torch.optim.nadam.NAdam",),
        layout=layout,
        facts=adam_facts,
        corrections=adam_corrections,
        foretell=foretell,
        reads=("mu_product",),
        decay_apart=decay_apart,
    ),
)
