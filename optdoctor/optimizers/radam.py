"""RAdam: Adam that divides by no second moment before it has seen enough gradients.

Liu et al. 2020, algorithm 2. torch.optim.radam: rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t), with
rho_inf = 2 / (1 - beta2) - 1, is how many gradients the second moment stands for; up to 5 (the
first five updates of beta2 = 0.999) the step is -lr * m̂. Epsilon is added to a root that is not
corrected, so an element's rate is not that of Adam even afterwards.
"""

import torch
from torch import Tensor

from optdoctor.optimizers.adam import decay_apart, layout
from optdoctor.optimizers.probe import Elements, Number, Probe, adam_corrections
from optdoctor.optimizers.settings import adam_facts

LEAST_RHO = 5.0


def foretell(e: Elements) -> Tensor:
    """-lr * m̂, from rho > 5 on times r * √c2 / (√v + eps)."""
    assert e.first is not None
    assert e.second is not None
    plain = -e.rate * (e.first / e.c1)
    decay = e.fit(decay_apart(e.group)) * e.weight
    beta2 = e.group["betas"][1]
    most: Number = 2 / (1 - beta2) - 1
    rho: Number = most - 2 * e.step * beta2**e.step / (1 - beta2**e.step)
    if not isinstance(rho, Tensor):
        return (plain * rectified(e, rho, most) if rho > LEAST_RHO else plain) + decay
    return torch.where(rho > LEAST_RHO, plain * rectified(e, rho, most), plain) + decay


def rectified(e: Elements, rho: Number, most: Number) -> Tensor:
    """r_t of the paper, and what divides."""
    assert e.second is not None
    squared = (rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho)
    return e.fit((squared) ** 0.5) * e.c2**0.5 / (e.second.sqrt() + e["eps"])


PROBES = (
    Probe(
        family="radam",
        matches=("torch.optim.radam.RAdam",),
        layout=layout,
        facts=adam_facts,
        corrections=adam_corrections,
        foretell=foretell,
        decay_apart=decay_apart,
    ),
)
