"""LARS: momentum of gradients that are scaled, for each tensor, by the norm of its weights.

You et al. 2017, algorithm 1. Each library has a variant of its own.

pytorch_optimizer: the gradient and its decay are scaled before they enter the momentum, matrices
only; vectors keep the plain rate and have no decay. It writes the step into p.grad, which holds no
gradient afterwards.

bitsandbytes, 32-bit: the momentum itself is scaled by min(1, max_unorm * |w| / |momentum|), so that
a tensor of zeros never moves; the norm is as in LAMB. 8-bit tensors are not scaled at all: SGD.
Dampening and Nesterov are taken as arguments and ignored.
"""

import torch
from torch import Tensor

from optdoctor.optimizers.lamb import blockwise_knows, bounded_trust
from optdoctor.optimizers.probe import Elements, Group, Layout, Moment, Probe, State
from optdoctor.optimizers.quantized import blockwise_moment
from optdoctor.optimizers.settings import momentum_facts, named


def layout(state: State, group: Group) -> Layout:
    """momentum_buffer, where there is a momentum."""
    return Layout(Moment("momentum_buffer") if "momentum_buffer" in state else None)


def foretell(e: Elements) -> Tensor:
    """-lr * buffer; Nesterov adds what entered the buffer to momentum * buffer."""
    assert e.first is not None
    if not e.group["nesterov"]:
        return -e.rate * e.first
    entered = e.first - e["momentum"] * e.before.get("first", torch.zeros_like(e.first))
    return -e.rate * (entered / (1 - e["dampening"]) + e["momentum"] * e.first)


def knows(group: Group) -> bool:
    """Without momentum nothing is left of the gradient that the step began with."""
    return bool(group["momentum"] > 0)


def blockwise_layout(state: State, group: Group) -> Layout:
    """state1, plain or quantized."""
    return Layout(blockwise_moment(state, "state1"))


def blockwise_facts(group: Group) -> dict[str, float]:
    """Momentum, which lies where Adam has its first beta, and decay."""
    return named(momentum=group["betas"][0], weight_decay=group["weight_decay"])


def blockwise_foretell(e: Elements) -> Tensor:
    """-lr * trust * (momentum * buffer + g + decay * w).

    From the buffer before the update: one of 8 bits is rounded only after it has moved the weights.
    """
    momentum: float = e.group["betas"][0]
    entered = e.gradient + e["weight_decay"] * e.weight
    return -e.rate * (bounded_trust(e) * (momentum * e.before.get("first", 0.0) + entered))


PROBES = (
    Probe(
        family="lars",
        matches=("pytorch_optimizer.optimizer.lars.LARS",),
        layout=layout,
        facts=momentum_facts,
        foretell=foretell,
        keeps=("first",),
        overwrites_gradient=True,
        knows=knows,
    ),
    Probe(
        family="lars",
        matches=(
            "bitsandbytes.optim.lars.LARS",
            "bitsandbytes.optim.lars.LARS8bit",
            "bitsandbytes.optim.lars.LARS32bit",
        ),
        layout=blockwise_layout,
        facts=blockwise_facts,
        foretell=blockwise_foretell,
        scope="tensor",
        reads=("unorm_vec",),
        keeps=("first",),
        knows=blockwise_knows,
        own=("args", "mng"),
        state_dtype=lambda dtype: torch.float32,
    ),
)
