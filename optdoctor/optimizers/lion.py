"""Lion: the sign of a blend of momentum and gradient (Chen et al. 2023, program 1).

The blend takes the momentum from before the update. Decay is decoupled. Variants:

- lion_pytorch keeps `decoupled_weight_decay` on itself: decay is then divided by the first rate.
  Its cautious variant scales by the mean over the tensor of what agrees with the gradient.
- bitsandbytes keeps the momentum in state1.
- pytorch_optimizer adds coupled decay, and centralizes, in place: its gradient holds both already.
- DeepSpeed moves a weight whose blend is 0 as if it were positive (CPU: copysign) or negative
  (fused), where the others let it rest. `exp_avg_sq` of the one on CPU stays 0. Of the fused one
  the step counts of all tensors but the last of a group stand still.
- Tiger (pytorch_optimizer; Su 2023) takes the sign of the momentum itself, from after the update.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
    rate_times_decay,
    setting_of,
)
from optdoctor.optimizers.quantized import blockwise_moment
from optdoctor.optimizers.settings import adam_facts, named


def layout(state: State, group: Group) -> Layout:
    """exp_avg."""
    return Layout(Moment("exp_avg"))


def blockwise_layout(state: State, group: Group) -> Layout:
    """The momentum under state1."""
    return Layout(blockwise_moment(state, "state1"))


def own_decay_apart(group: Group) -> Number:
    """lion_pytorch: over the first rate where that is asked."""
    decay = rate_times_decay(group)
    return decay / group["_init_lr"] if group["decoupled_wd"] else decay


def optional_decay_apart(group: Group) -> Number:
    """pytorch_optimizer: may be coupled, or free of the rate."""
    if not group["weight_decouple"]:
        return 0.0
    return -setting_of(group, "weight_decay") if group["fixed_decay"] else rate_times_decay(group)


def sign(blend: Tensor) -> Tensor:
    """0 stays 0."""
    return blend.sgn()


def sign_of_copy(blend: Tensor) -> Tensor:
    """0 counts as its own sign bit says."""
    return torch.ones_like(blend).copysign(blend)


def sign_of_branch(blend: Tensor) -> Tensor:
    """0 counts as negative."""
    return torch.where(blend > 0, 1.0, -1.0).to(blend.dtype)


def ruled(
    decay: Callable[[Group], Number], signed: Callable[[Tensor], Tensor] = sign
) -> Callable[[Elements], Tensor]:
    """-lr * sign(beta1 * m before + (1 - beta1) * g), and the decay."""

    def foretell(e: Elements) -> Tensor:
        return e.fit(decay(e.group)) * e.weight - e.rate * signed(_blend(e))

    return foretell


def foretell_cautious(e: Elements) -> Tensor:
    """lion_pytorch.cautious_lion: what agrees with the gradient counts fully, the rest by
    `cautious_factor`, all over their mean (Liang et al. 2024, algorithm 2); decay on request only
    where the update points away from zero (arXiv 2510.12402)."""
    update, factor = _blend(e).sgn(), e.group["cautious_factor"]
    if factor < 1:
        scale = torch.where(update * e.gradient > 0, 1.0, factor).to(update.dtype)
        update = update * (scale / scale.mean().clamp(min=1e-5))
    decay = own_decay_apart(e.group) * e.weight
    if e.group["cautious_wd"]:
        decay = torch.where(update * e.weight > 0, decay, 0.0)
    return decay - e.rate * update


def foretell_tiger(e: Elements) -> Tensor:
    """-lr * sign(m), and the decay."""
    assert e.first is not None
    return e.fit(optional_decay_apart(e.group)) * e.weight - e.rate * e.first.sgn()


def tiger_facts(group: Group) -> dict[str, float]:
    """Its one beta, and decay."""
    return named(beta1=group.get("beta"), weight_decay=group.get("weight_decay"))


def no_count(state: State, group: Group) -> Any:
    """Nobody counts truly."""
    return None


def incautious(group: Group) -> bool:
    """pytorch_optimizer: without its mask over the tensor."""
    return not group.get("cautious")


def _blend(e: Elements) -> Tensor:
    beta1: float = e.group["betas"][0]
    fresh = (1 - beta1) * e.gradient
    return beta1 * e.before["first"] + fresh if "first" in e.before else fresh


LION_PYTORCH = Probe(
    family="lion",
    matches=("lion_pytorch.lion_pytorch.Lion", "lion_pytorch.foreach.Lion"),
    layout=layout,
    facts=adam_facts,
    foretell=ruled(own_decay_apart),
    keeps=("first",),
    own=("decoupled_wd", "_init_lr"),
    decay_apart=own_decay_apart,
)

PROBES = (
    LION_PYTORCH,
    replace(
        LION_PYTORCH,
        matches=("lion_pytorch.cautious_lion.Lion",),
        foretell=foretell_cautious,
        scope="tensor",
        decay_apart=lambda group: 0.0 if group["cautious_wd"] else own_decay_apart(group),
    ),
    replace(
        LION_PYTORCH,
        matches=tuple(
            f"bitsandbytes.optim.lion.{paged}Lion{bits}"
            for paged in ("", "Paged")
            for bits in ("", "8bit", "32bit")
        ),
        layout=blockwise_layout,
        foretell=ruled(rate_times_decay),
        own=("mng", "args"),
        knows=not_overridden,
        decay_apart=rate_times_decay,
        state_dtype=lambda dtype: torch.float32,
    ),
    replace(
        LION_PYTORCH,
        matches=("pytorch_optimizer.optimizer.lion.Lion",),
        foretell=ruled(optional_decay_apart),
        own=(),
        knows=incautious,
        decay_apart=optional_decay_apart,
    ),
    replace(
        LION_PYTORCH,
        matches=("pytorch_optimizer.optimizer.tiger.Tiger",),
        facts=tiger_facts,
        foretell=foretell_tiger,
        keeps=(),
        own=(),
        decay_apart=optional_decay_apart,
    ),
    replace(
        LION_PYTORCH,
        matches=("deepspeed.ops.lion.cpu_lion.DeepSpeedCPULion",),
        foretell=ruled(rate_times_decay, sign_of_copy),
        own=(),
        decay_apart=rate_times_decay,
        state_dtype=lambda dtype: torch.float32,
    ),
    replace(
        LION_PYTORCH,
        matches=("deepspeed.ops.lion.fused_lion.FusedLion",),
        count=no_count,
        foretell=ruled(rate_times_decay, sign_of_branch),
        own=(),
        decay_apart=rate_times_decay,
    ),
)
