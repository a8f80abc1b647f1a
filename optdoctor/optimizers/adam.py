"""Adam and AdamW: moments of the gradient, both bias-corrected.

Kingma & Ba 2015, algorithm 1; Loshchilov & Hutter 2019, algorithm 2 (decoupled decay).

What the sources say beyond that:
- torch.optim.SparseAdam adds epsilon to a root that is not corrected, and moves those elements
  alone that its sparse gradient holds; the moments of all others rest.
- bitsandbytes decouples the decay of `Adam` as of `AdamW`. On CPU decay precedes the step, on CUDA
  (by its source, not run) it follows, a difference of lr * weight_decay of the step.
- bitsandbytes and torchao quantize the moments after they have moved the weights, so the change is
  foretold from the moments before and the gradient.
- DeepSpeedCPUAdam holds on itself, not in its groups, whether decay is decoupled.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
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
from optdoctor.optimizers.quantized import blockwise_moment, subclass_moment
from optdoctor.optimizers.settings import adam_facts

KEPT_SETTINGS = {"optim_bits", "min_8bit_size"}
"""What bitsandbytes may override for single tensors without another rule."""


def layout(state: State, group: Group) -> Layout:
    """exp_avg, exp_avg_sq; with amsgrad the running maximum is what divides."""
    divisor = Moment("max_exp_avg_sq") if group.get("amsgrad") else None
    return Layout(Moment("exp_avg"), Moment("exp_avg_sq"), divisor)


def blockwise_layout(state: State, group: Group) -> Layout:
    """bitsandbytes: state1, state2; its `amsgrad` is not read by anything."""
    return Layout(blockwise_moment(state, "state1"), blockwise_moment(state, "state2"))


def subclass_layout(state: State, group: Group) -> Layout:
    """torchao: the keys of torch, quantized or not; its amsgrad takes plain tensors alone."""
    first, second = subclass_moment(state, "exp_avg"), subclass_moment(state, "exp_avg_sq")
    return Layout(first, second, layout(state, group).divisor)


def with_decay(decay: Callable[[Group], Number]) -> Callable[[Elements], Tensor]:
    """-lr * m̂ / (√v̂ + eps), and `decay` times the weights."""

    def foretell(e: Elements) -> Tensor:
        assert e.first is not None
        assert e.divisor is not None
        return _step(e, e.first, e.divisor) + e.fit(decay(e.group)) * e.weight

    return foretell


def foretell_sparse(e: Elements) -> Tensor:
    """-lr / c1 * √c2 * m / (√v + eps) of the elements that the gradient holds.

    One that it holds as zero shows in its mean, which has shrunk, or has nothing to move it.
    """
    assert e.first is not None
    assert e.second is not None
    before = e.before.get("first")
    change = -e.rate / e.c1 * e.c2**0.5 * e.first / (e.second.sqrt() + e["eps"])
    held = (e.gradient != 0) | (e.first != (0 if before is None else before))
    return torch.where(held, change, 0.0)


def foretell_before_quantizing(e: Elements) -> Tensor:
    """AdamW from the moments before the update."""
    return _fresh(e, e.gradient) + e.fit(decay_always_apart(e.group)) * e.weight


def foretell_before_quantizing_coupled(e: Elements) -> Tensor:
    """Adam likewise, decay part of the gradient."""
    return _fresh(e, e.gradient + e["weight_decay"] * e.weight)


def decay_apart(group: Group) -> Number:
    """Adam's own decay is part of the gradient unless the group says that it is not."""
    return decay_always_apart({"decoupled_weight_decay": False, **group})


def decay_always_apart(group: Group) -> Number:
    """AdamW before torch 2.7 has no mark in its groups."""
    if not group.get("decoupled_weight_decay", True):
        return 0.0
    return rate_times_decay(group)


def deepspeed_decay_apart(group: Group) -> Number:
    """`adam_w_mode` lies on the optimizer."""
    return decay_always_apart({**group, "decoupled_weight_decay": group.get("adam_w_mode", True)})


def deepspeed_corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """Those of Adam, or none on request."""
    return adam_corrections(group, step) if group.get("bias_correction", True) else (1.0, 1.0)


def not_overridden(group: Group) -> bool:
    """Whether no tensor has a rate or betas of its own from bitsandbytes' GlobalOptimManager, and
    the optimizer neither clips updates nor skips zeros."""
    configs = getattr(group.get("mng"), "pid2config", {}).values()
    args = group.get("args")
    plain = not getattr(args, "max_unorm", 0) and not getattr(args, "skip_zeros", False)
    return plain and all(KEPT_SETTINGS.issuperset(config) for config in configs)


def _step(e: Elements, first: Tensor, divisor: Tensor) -> Tensor:
    return -e.rate * (first / e.c1) / (divisor.sqrt() / e.c2**0.5 + e["eps"])


def _fresh(e: Elements, gradient: Tensor) -> Tensor:
    beta1, beta2 = e.group["betas"][:2]
    zero = torch.zeros_like(gradient)
    first = beta1 * e.before.get("first", zero) + (1 - beta1) * gradient
    second = beta2 * e.before.get("second", zero) + (1 - beta2) * gradient.square()
    plain = e.divisor if e.group.get("amsgrad") else None
    return _step(e, first, second if plain is None else plain)


ADAM = Probe(
    family="adam",
    matches=("torch.optim.adam.Adam",),
    layout=layout,
    facts=adam_facts,
    adaptive=True,
    corrections=adam_corrections,
    foretell=with_decay(decay_apart),
    decay_apart=decay_apart,
)

BITSANDBYTES = [
    f"bitsandbytes.optim.{module}.{paged}{name}{bits}"
    for module, name in (("adam", "Adam"), ("adamw", "AdamW"))
    for paged in ("", "Paged")
    for bits in ("", "8bit", "32bit")
]

PROBES = (
    ADAM,
    replace(
        ADAM,
        matches=("torch.optim.adamw.AdamW",),
        foretell=with_decay(decay_always_apart),
        decay_apart=decay_always_apart,
    ),
    replace(
        ADAM,
        matches=("torch.optim.sparse_adam.SparseAdam",),
        adaptive=False,
        foretell=foretell_sparse,
        keeps=("first",),
        decay_apart=lambda group: 0.0,
    ),
    replace(
        ADAM,
        matches=tuple(BITSANDBYTES),
        layout=blockwise_layout,
        foretell=foretell_before_quantizing,
        keeps=("first", "second"),
        own=("mng", "args"),
        knows=not_overridden,
        decay_apart=decay_always_apart,
        state_dtype=lambda dtype: torch.float32,
    ),
    replace(
        ADAM,
        matches=tuple(f"torchao.optim.adam.AdamW{bits}" for bits in ("8bit", "4bit", "Fp8")),
        in_float32=True,
        layout=subclass_layout,
        foretell=foretell_before_quantizing,
        keeps=("first", "second"),
        decay_apart=decay_always_apart,
    ),
    replace(
        ADAM,
        matches=tuple(f"torchao.optim.adam.Adam{bits}" for bits in ("8bit", "4bit", "Fp8")),
        in_float32=True,
        layout=subclass_layout,
        foretell=foretell_before_quantizing_coupled,
        keeps=("first", "second"),
    ),
    replace(
        ADAM,
        matches=("deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam",),
        own=("adam_w_mode",),
        corrections=deepspeed_corrections,
        foretell=with_decay(deepspeed_decay_apart),
        decay_apart=deepspeed_decay_apart,
        state_dtype=lambda dtype: torch.float32,
    ),
)
