"""Prodigy and D-Adaptation: Adam with a rate d that estimates the distance to the solution.

Mishchenko & Defazio 2023, algorithm 4; Defazio & Mishchenko 2023, algorithm 5 (version 3). The
update uses d * lr with the d of before it, and moves d on: the rate is asked before the update. m
and v are scaled by the d of each time:

    Prodigy      m ~ d g, v ~ (d g)^2:   -d lr * m / (sqrt(v) + d' eps), d' moved on already
    DAdaptAdam   m ~ d lr g, v ~ g^2:    -m / (sqrt(v) + eps)

In pytorch_optimizer the rate, the bias corrections and the betas of the first group hold for all
groups; a Prodigy decay that is not decoupled is added to the gradient after it was used, and does
nothing; `step` of Prodigy counts from 1. prodigyopt takes the largest rate of all groups.
"""

from collections.abc import Callable
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
    setting_of,
)
from optdoctor.optimizers.settings import adam_facts


def layout(state: State, group: Group) -> Layout:
    """exp_avg (prodigyopt has none where beta1 is 0), exp_avg_sq."""
    return Layout(Moment("exp_avg"), Moment("exp_avg_sq"))


def later_count(state: State, group: Group) -> Any:
    """`step` starts at 1 in pytorch_optimizer's Prodigy."""
    count = group.get("step")
    return count if count is None else count - 1


def k_count(state: State, group: Group) -> Any:
    """`k` in prodigyopt."""
    return group.get("k")


def first_rate(group: Group, step: Any) -> Any:
    """Of the update that follows this count, from the first of all groups."""
    first = group["param_groups"][0]
    scaled = first["d"] * first["lr"]
    return scaled / _correction(first, step, "bias_correction")


def largest_rate(group: Group, step: Any) -> Any:
    """Of the update that follows this count, from the largest of all groups."""
    several = group["param_groups"]
    rate = several[0]["d"] * max(one["lr"] for one in several)
    return rate / _correction(several[0], step, "use_bias_correction")


def _correction(group: Group, count: Any, option: str) -> Number:
    """(1 - beta1^t) / sqrt(1 - beta2^t) on request, with t the update to come."""
    if not group.get(option):
        return 1.0
    beta1, beta2 = group["betas"]
    step = 1 if count is None else count + 1
    corrected: Number = (1 - beta1**step) / (1 - beta2**step) ** 0.5
    return corrected


def by_distance(group: Group, step: Number) -> tuple[Number, Number]:
    """v is of gradients times d."""
    return 1.0, setting_of(group, "d") ** 2


def foretell_prodigy(e: Elements) -> Tensor:
    """Epsilon of None asks for the angle in place of the quotient."""
    assert e.first is not None
    assert e.second is not None
    decay = _decay(e, e.group.get("weight_decouple", e.group.get("decouple")))
    root = e.second.sqrt()
    if e["eps"] is None:
        return decay - e.rate * torch.atan2(e.first, root)
    return decay - e.rate * e.first / (root + e["d"] * e["eps"])


def foretell_d_adapt(e: Elements) -> Tensor:
    """The rate is in m already."""
    assert e.first is not None
    assert e.second is not None
    decayed = _decay(e, e.group["weight_decouple"])
    return decayed - e.first / (e.second.sqrt() + e["eps"])


def _decay(e: Elements, apart: object) -> Tensor | float:
    if not apart:
        return 0.0
    rate = 1.0 if e.group.get("fixed_decay") else e.rate
    return -rate * e["weight_decay"] * e.weight


def _probe(name: str, rate: Callable[[Group, Any], Any], **others: Any) -> Probe:
    return Probe(
        family="prodigy",
        matches=(name,),
        layout=layout,
        facts=adam_facts,
        rate=rate,
        rate_before=True,
        own=("param_groups",),
        adaptive=True,
        **others,
    )


PROBES = (
    _probe(
        "pytorch_optimizer.optimizer.prodigy.Prodigy",
        first_rate,
        count=later_count,
        corrections=by_distance,
        foretell=foretell_prodigy,
    ),
    _probe(
        "prodigyopt.prodigy.Prodigy",
        largest_rate,
        count=k_count,
        corrections=by_distance,
        foretell=foretell_prodigy,
        knows=lambda group: group["betas"][0] > 0,
    ),
    _probe(
        "pytorch_optimizer.optimizer.dadapt.DAdaptAdam",
        first_rate,
        foretell=foretell_d_adapt,
    ),
)
