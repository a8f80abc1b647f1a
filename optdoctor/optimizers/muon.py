"""Muon: the momentum of a matrix, made orthogonal (Jordan 2024).

The first moment is a plain mean of gradients, never corrected for its start at zero: five steps of
Newton-Schulz forget its size. So an update has the size that shape and rate give it, whatever the
gradients. To foretell it would be to make it again.

pytorch_optimizer mixes groups of two kinds: those without `use_muon` are AdamW, moments and rule.
With Nesterov (its default) it leaves the blend of gradient and momentum where the gradient was.
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
    adam_corrections,
    rate_times_decay,
)
from optdoctor.optimizers.settings import adam_facts, momentum_facts

COSTLY = "to orthogonalize again would cost as much as the update"


def layout(state: State, group: Group) -> Layout:
    """momentum_buffer."""
    return Layout(Moment("momentum_buffer"))


def is_adam(group: Group) -> bool:
    """Whether these tensors are left to AdamW."""
    return not group.get("use_muon", True)


def mixed_layout(state: State, group: Group) -> Layout:
    """exp_avg and exp_avg_sq in the groups of AdamW, else momentum_buffer."""
    adam = Layout(Moment("exp_avg"), Moment("exp_avg_sq"))
    return adam if is_adam(group) else layout(state, group)


def mixed_corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """Those of Adam in its groups."""
    return adam_corrections(group, step) if is_adam(group) else (1.0, 1.0)


def mixed_decay_apart(group: Group) -> Number:
    """-lr * weight_decay where it is decoupled."""
    return rate_times_decay(group) if group.get("weight_decouple", True) else 0.0


def mixed_facts(group: Group) -> dict[str, float]:
    """Those of either kind."""
    return {**momentum_facts(group), **adam_facts(group)}


def foretell_adam(e: Elements) -> Tensor:
    """-lr * m̂ / (√v̂ + eps), and the decay."""
    assert e.first is not None
    assert e.divisor is not None
    change = -e.rate * (e.first / e.c1) / ((e.divisor / e.c2).sqrt() + e["eps"])
    return change + mixed_decay_apart(e.group) * e.weight


PROBES = (
    Probe(
        family="muon",
        matches=("torch.optim.Muon", "torch.optim._muon.Muon"),
        layout=layout,
        facts=momentum_facts,
        unforetold=COSTLY,
        decay_apart=rate_times_decay,
    ),
    Probe(
        family="muon",
        matches=("pytorch_optimizer.optimizer.muon.muon.Muon",),
        layout=mixed_layout,
        facts=mixed_facts,
        adaptive=True,
        corrections=mixed_corrections,
        foretell=foretell_adam,
        unforetold=COSTLY,
        knows=is_adam,
        overwrites_gradient=True,
        decay_apart=mixed_decay_apart,
    ),
)
