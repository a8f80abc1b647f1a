"""LAMB: a step of Adam, scaled for each tensor by the norm of its weights over that of the step.

You et al. 2020, algorithm 2. Each library has a variant of its own.

pytorch_optimizer: trust = min(|w|, 10) / (|u| + eps), u = m / (√v + eps), where v is not corrected
and m only by the rate; the trust ratio of the last update lies in the state. Decoupled decay comes
before u and outside of the trust ratio; coupled decay is part of u.

bitsandbytes, 32-bit: trust = min(1, max_unorm * |w| / |u|): a tensor of zeros (a bias) never moves.
|u| lies in the state as `unorm_vec`, outside of the CPU as its square (by its source, not run).
8-bit tensors have no trust ratio at all: AdamW.
"""

import torch
from torch import Tensor

from optdoctor.optimizers.adam import not_overridden
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
    setting_of,
)
from optdoctor.optimizers.quantized import blockwise_moment
from optdoctor.optimizers.settings import adam_facts


def layout(state: State, group: Group) -> Layout:
    """exp_avg, exp_avg_sq."""
    return Layout(Moment("exp_avg"), Moment("exp_avg_sq"))


def corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """1 - beta1^t unless `adam_debias` forgoes it; the second moment is never corrected."""
    return 1.0 if group.get("adam_debias") else 1 - group["betas"][0] ** step, 1.0


def foretell(e: Elements) -> Tensor:
    """-lr / c1 * trust * m / (√v + eps), and the decay."""
    assert e.first is not None
    assert e.second is not None
    update = e.first / (e.second.sqrt() + e["eps"])
    if not e.group["weight_decouple"]:
        update = update + e["weight_decay"] * e.weight
    if not e.group["adam"]:
        update = update * e.state["trust_ratio"]
    return -e.rate / e.c1 * update + decay_apart(e.group) * e.weight


def decay_apart(group: Group) -> Number:
    """Decoupled decay multiplies the weights, by a factor of its own or of the rate."""
    if not group["weight_decouple"]:
        return 0.0
    decay = setting_of(group, "weight_decay")
    return -decay if group["fixed_decay"] else -setting_of(group, "lr") * decay


def knows(group: Group) -> bool:
    """Rectified updates (`rectify`) have a rule of their own."""
    return not group["rectify"]


def blockwise_layout(state: State, group: Group) -> Layout:
    """state1, state2, plain or quantized."""
    return Layout(blockwise_moment(state, "state1"), blockwise_moment(state, "state2"))


def blockwise_foretell(e: Elements) -> Tensor:
    """-lr * trust * m̂ / (√v̂ + eps), and -lr * decay * w.

    From the moments before the update: those of 8 bits are rounded only after they have moved the
    weights.
    """
    beta1, beta2 = e.group["betas"]
    first = beta1 * e.before.get("first", 0.0) + (1 - beta1) * e.gradient
    second = beta2 * e.before.get("second", 0.0) + (1 - beta2) * e.gradient.square()
    step: Tensor = (first / e.c1) / ((second / e.c2).sqrt() + e["eps"])
    return -e.rate * (bounded_trust(e) * step) + rate_times_decay(e.group) * e.weight


def bounded_trust(e: Elements) -> Number:
    """min(1, max_unorm * |w| / |u|) of bitsandbytes; |u| stays 0 for a tensor of 8 bits."""
    if "unorm_vec" not in e.state:
        return 1.0
    norm = e.state["unorm_vec"].reshape(()).to(e.weight.dtype)
    norm = norm if e.weight.device.type == "cpu" else norm.sqrt()
    allowed = e.group["args"].max_unorm * e.weight.norm()
    return torch.where(norm > allowed, allowed / norm, 1.0)


def blockwise_knows(group: Group) -> bool:
    """Nothing overridden for single tensors, no zeros skipped; `max_unorm` may be any."""
    skips = getattr(group.get("args"), "skip_zeros", False)
    return not skips and not_overridden({**group, "args": None})


PROBES = (
    Probe(
        family="lamb",
        matches=("pytorch_optimizer.optimizer.lamb.Lamb",),
        layout=layout,
        facts=adam_facts,
        corrections=corrections,
        foretell=foretell,
        reads=("trust_ratio",),
        knows=knows,
        decay_apart=decay_apart,
    ),
    Probe(
        family="lamb",
        matches=(
            "bitsandbytes.optim.lamb.LAMB",
            "bitsandbytes.optim.lamb.LAMB8bit",
            "bitsandbytes.optim.lamb.LAMB32bit",
        ),
        layout=blockwise_layout,
        facts=adam_facts,
        corrections=adam_corrections,
        foretell=blockwise_foretell,
        scope="tensor",
        reads=("unorm_vec",),
        keeps=("first", "second"),
        knows=blockwise_knows,
        own=("args", "mng"),
        decay_apart=rate_times_decay,
        state_dtype=lambda dtype: torch.float32,
    ),
)
