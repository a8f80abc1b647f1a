"""APOLLO: gradients scaled by what Adam would do to a random projection of them (Zhu et al. 2024).

Matrices of a group with a `rank` are projected, as by GaLore. All others follow Adam with epsilon
beside the uncorrected root. In pytorch_optimizer a decoupled decay comes after the step and is
scaled by its corrected size, lr * sqrt(1 - beta2^t) / (1 - beta1^t), not by lr.
"""

from torch import Tensor

from optdoctor.optimizers.galore import corrections, layout, step_of
from optdoctor.optimizers.probe import Elements, Group, Number, Probe, setting_of
from optdoctor.optimizers.settings import adam_facts


def foretell(e: Elements) -> Tensor:
    """The step, then decay of the sum; a decay that is not decoupled is part of the gradient."""
    change = step_of(e)
    return change + e.fit(decay_apart(e.group)) * (e.weight + change)


def decay_apart(group: Group) -> Number:
    """By the size of the corrected step, unless `fixed_decay`."""
    if not group.get("weight_decouple", True):
        return 0.0
    decay = setting_of(group, "weight_decay")
    if group.get("fixed_decay"):
        return -decay
    c1, _ = corrections(group, setting_of(group, "step"))
    return -setting_of(group, "lr") / c1 * decay


PROBES = (
    Probe(
        family="apollo",
        matches=("pytorch_optimizer.optimizer.apollo.APOLLO",),
        layout=layout,
        facts=adam_facts,
        corrections=corrections,
        adaptive=True,
        foretell=foretell,
        decay_apart=decay_apart,
    ),
)
