"""Schedule-free SGD and AdamW (Defazio et al. 2024, "The Road Less Scheduled", section 2).

Three sequences: z takes plain steps, x averages z, and gradients are taken at y between them. While
training, the parameters are y, and so is the update that is told: `optimizer.eval()` puts x in
their place and `train()` puts y back, both outside of any step. With c the weight of the newest z,

    y <- y + c (z - y) - rate (1 - beta1 (1 - c)) d,    z <- z - rate d

where d is the gradient, for AdamW divided by sqrt(v / (1 - beta2^t)) + eps, plus decay * y. Both
packages write d into `p.grad`. There is no first moment: z - y does its work. The denominator rules
z, whose full rate is told; y at once feels only (1 - beta1 (1 - c)) of it, hence not `adaptive`.

pytorch_optimizer adds 1e-15 under the root, and with `ams_bound` keeps the maximum of corrected
means, which are not to be corrected again.
"""

from dataclasses import replace
from typing import Any

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
)
from optdoctor.optimizers.settings import momentum_facts, named

UNDER_ROOT = 1e-15
AVERAGED = "weights average what the optimizer inside does"


def layout(state: State, group: Group) -> Layout:
    """exp_avg_sq of AdamW; `z` is no moment but weights."""
    second = Moment("exp_avg_sq") if "exp_avg_sq" in state else None
    return Layout(second=second, divisor=_maximum(group))


def _maximum(group: Group) -> Moment | None:
    return Moment("max_exp_avg_sq") if group.get("ams_bound") else None


def facts(group: Group) -> dict[str, float]:
    """The first beta of AdamW is the momentum of SGD: the place of y between z and x."""
    momentum, beta2 = group["betas"]
    return named(
        momentum=momentum, beta2=beta2, eps=group["eps"], weight_decay=group["weight_decay"]
    )


def count(state: State, group: Group) -> Any:
    """In the group: "step", or "k" in the package schedulefree."""
    return group.get("step", group.get("k"))


def rate(group: Group, step: Any) -> Any:
    """That of z: it rises linearly over `warmup_steps`."""
    warmup = group.get("warmup_steps", 0)
    if group.get("lr") is None or step is None or not warmup:
        return group.get("lr")
    if isinstance(step, Tensor):
        return group["lr"] * (step / warmup).clamp(max=1.0)
    return group["lr"] * min(1.0, step / warmup)


def averaging(e: Elements) -> Number:
    """c: the share of the newest z in the average, from the sums of after the update."""
    weight = e.step ** e["r"] * e["lr_max"] ** e["weight_lr_power"]
    total = e["weight_sum"]
    share = weight / total if isinstance(total, Tensor) or total else 0.0
    if not e.group.get("decoupling_c"):
        return e.fit(share)
    share = share * (1 - e.group["betas"][0]) * e["decoupling_c"]
    return e.fit(share.clamp(max=1.0) if isinstance(share, Tensor) else min(1.0, share))


def change(e: Elements, direction: Tensor, momentum: Number) -> Tensor:
    """Of y. Before its first update z is y."""
    c = averaging(e)
    pull = c * (e.before["z"] - e.weight) if "z" in e.before else 0.0
    return pull - e.rate * (1 - momentum * (1 - c)) * direction


def uphill(e: Elements) -> Tensor:
    """The gradient of what is made small."""
    return -e.gradient if e.group.get("maximize") else e.gradient


def foretell_sgd(e: Elements) -> Tensor:
    """Decay is part of the direction."""
    return change(e, uphill(e) + e["weight_decay"] * e.weight, e["momentum"])


def foretell_adamw(e: Elements) -> Tensor:
    """Decay is part of the direction, undivided."""
    return _adamw(e, 0.0)


def foretell_adamw_bounded(e: Elements) -> Tensor:
    """As pytorch_optimizer divides."""
    return _adamw(e, UNDER_ROOT)


def _adamw(e: Elements, under_root: float) -> Tensor:
    assert e.divisor is not None
    corrected = e.divisor if e.group.get("ams_bound") else e.divisor / e.c2
    denominator = torch.sqrt(corrected + under_root) + e["eps"]
    direction = uphill(e) / denominator + e["weight_decay"] * e.weight
    return change(e, direction, e.group["betas"][0])


def corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """Adam's second one."""
    return 1.0, adam_corrections(group, step)[1]


def of_both(inside: Probe) -> Probe:
    """A wrapper that averages: the optimizer inside moves z, with moments of its own."""
    return replace(
        inside,
        adaptive=False,
        foretell=None,
        unforetold=AVERAGED,
        decay_apart=lambda group: 0.0,
    )


PROBES = (
    Probe(
        family="schedule_free",
        matches=("pytorch_optimizer.optimizer.schedulefree.ScheduleFreeAdamW",),
        layout=layout,
        facts=facts,
        rate=rate,
        count=count,
        corrections=corrections,
        foretell=foretell_adamw_bounded,
        keeps=("z",),
        own=("maximize",),
        overwrites_gradient=True,
    ),
    Probe(
        family="schedule_free",
        matches=("schedulefree.adamw_schedulefree.AdamWScheduleFree",),
        layout=layout,
        facts=facts,
        rate=rate,
        count=count,
        corrections=corrections,
        foretell=foretell_adamw,
        keeps=("z",),
        overwrites_gradient=True,
    ),
    Probe(
        family="schedule_free",
        matches=(
            "pytorch_optimizer.optimizer.schedulefree.ScheduleFreeSGD",
            "schedulefree.sgd_schedulefree.SGDScheduleFree",
        ),
        facts=momentum_facts,
        rate=rate,
        count=count,
        foretell=foretell_sgd,
        keeps=("z",),
        own=("maximize",),
        overwrites_gradient=True,
    ),
    Probe(
        family="schedule_free",
        matches=(
            "pytorch_optimizer.optimizer.schedulefree.ScheduleFreeRAdam",
            "schedulefree.radam_schedulefree.RAdamScheduleFree",
        ),
        layout=layout,
        facts=facts,
        count=count,
        corrections=corrections,
        unforetold="its rectified rate is told nowhere",
        overwrites_gradient=True,
    ),
    Probe(
        family="schedule_free",
        matches=("pytorch_optimizer.optimizer.schedulefree.ScheduleFreeWrapper",),
        inside="optimizer",
        around=of_both,
        unforetold=AVERAGED,
    ),
)
