"""Shampoo: a preconditioner for each side of a tensor (Gupta et al. 2018, algorithm 2).

pytorch_optimizer's `momentum_buffer` is no mean of gradients: it holds the last preconditioned
direction, with any decay that is not decoupled, also where there is no momentum; the next gradient
is mixed with it and then preconditioned. So the change is read from the state, whatever matrix
roots led to it. Its step writes momentum and decay into `p.grad`.
"""

from torch import Tensor

from optdoctor.optimizers.probe import Elements, Group, Number, Probe, setting_of
from optdoctor.optimizers.settings import adam_facts, momentum_facts


def foretell(e: Elements) -> Tensor:
    """-lr * direction, and decay where it is decoupled."""
    return -e.rate * e.state["momentum_buffer"] + decay_apart(e.group) * e.weight


def decay_apart(group: Group) -> Number:
    """Decoupled on request; `fixed_decay` leaves out the rate."""
    if not group.get("weight_decouple"):
        return 0.0
    decay = setting_of(group, "weight_decay")
    return -decay if group.get("fixed_decay") else -setting_of(group, "lr") * decay


PROBES = (
    Probe(
        family="shampoo",
        matches=("pytorch_optimizer.optimizer.shampoo.Shampoo",),
        facts=momentum_facts,
        foretell=foretell,
        reads=("momentum_buffer",),
        decay_apart=decay_apart,
        overwrites_gradient=True,
    ),
    Probe(
        family="shampoo",
        matches=("pytorch_optimizer.optimizer.shampoo.ScalableShampoo",),
        facts=adam_facts,
        unforetold="matrix roots, grafted to the size of another update",
    ),
)
