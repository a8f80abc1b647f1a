"""AdEMAMix: Adam with a second, slower momentum beside the first.

Pagliardini et al. 2024, algorithm 1: -lr * (m̂ + alpha * slow) / (√v̂ + eps); the slow mean is not
corrected, and alpha may grow to its value over the first T updates.

bitsandbytes keeps both means in `state1` [2, *shape]. Its AdEMAMix32bit and PagedAdEMAMix32bit are
no such classes: their state has no room for the slow mean.
"""

from functools import partial
from math import log

import torch
from torch import Tensor

from optdoctor.optimizers.adam import not_overridden
from optdoctor.optimizers.lamb import decay_apart
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
from optdoctor.optimizers.quantized import blockwise_moment, decoded
from optdoctor.optimizers.settings import adam_facts


def layout(state: State, group: Group) -> Layout:
    """exp_avg, exp_avg_sq, and exp_avg_slow."""
    slow = {"slow": Moment("exp_avg_slow")}
    return Layout(Moment("exp_avg"), Moment("exp_avg_sq"), further=slow)


def foretell(e: Elements) -> Tensor:
    """-lr * (m̂ + alpha * slow) / (√v̂ + eps), and the decay where it is decoupled."""
    assert e.first is not None
    assert e.second is not None
    alpha = warmed(e, e.group["t_alpha_beta3"])
    return mixed(e, e.first, e.state["slow"], e.second, alpha) + decay_apart(e.group) * e.weight


def mixed(e: Elements, fast: Tensor, slow: Tensor, second: Tensor, alpha: Number) -> Tensor:
    """-lr * (m̂ + alpha * slow) / (√v̂ + eps)."""
    return -e.rate * (fast / e.c1 + alpha * slow) / ((second / e.c2).sqrt() + e["eps"])


def warmed(e: Elements, num_updates: float | None) -> Number:
    """alpha, or its linear growth over so many updates."""
    alpha: float = e.group["alpha"]
    return at_most(alpha, e.fit(e.step * (alpha / num_updates))) if num_updates else alpha


def slower(e: Elements) -> Number:
    """beta3, or on the way there from beta1: 1 / ln(beta) grows linearly with the updates."""
    beta1, _, beta3 = e.group["betas"]
    num_updates = e.group["t_beta3"]
    if not num_updates:
        return float(beta3)
    done = e.step / num_updates
    grown = beta1 ** (log(beta3) / ((1 - done) * log(beta3) + done * log(beta1)))
    return at_most(beta3, e.fit(grown))


def at_most(bound: float, number: Number) -> Number:
    """The smaller of both."""
    return number.clamp(max=bound) if isinstance(number, Tensor) else min(number, bound)


def knows(group: Group) -> bool:
    """`cautious` and `stable_adamw` change the rule."""
    return not group.get("cautious") and not group.get("stable_adamw")


def blockwise_layout(state: State, group: Group) -> Layout:
    """Both means from state1 [2, *shape], state2."""
    form = blockwise_moment(state, "state1").form
    fast, slow = (Moment("state1", form, partial(row, number=number)) for number in (0, 1))
    return Layout(fast, blockwise_moment(state, "state2"), further={"slow": slow})


def row(state: State, group: Group, number: int) -> Tensor:
    """The fast mean (0) or the slow one (1)."""
    held: Tensor = state["state1"][number]
    if held.dtype != torch.uint8:
        return held
    return decoded(held, state["qmap1"], state["absmax1"][number])


def blockwise_foretell(e: Elements) -> Tensor:
    """-lr * (m̂ + alpha * slow) / (√v̂ + eps), and -lr * decay * w.

    From the means before the update: those of 8 bits are rounded only after they have moved the
    weights.
    """
    beta1, beta2, _ = e.group["betas"]
    beta3, gradient = slower(e), e.gradient
    fast = beta1 * e.before.get("first", 0.0) + (1 - beta1) * gradient
    slow = beta3 * e.before.get("slow", 0.0) + (1 - beta3) * gradient
    second = beta2 * e.before.get("second", 0.0) + (1 - beta2) * gradient.square()
    change = mixed(e, fast, slow, second, warmed(e, e.group["t_alpha"]))
    return change + rate_times_decay(e.group) * e.weight


PROBES = (
    Probe(
        family="ademamix",
        matches=("pytorch_optimizer.optimizer.ademamix.AdEMAMix",),
        layout=layout,
        facts=adam_facts,
        corrections=adam_corrections,
        foretell=foretell,
        knows=knows,
        decay_apart=decay_apart,
    ),
    Probe(
        family="ademamix",
        matches=("bitsandbytes.optim.ademamix.AdEMAMix",),
        layout=blockwise_layout,
        facts=adam_facts,
        corrections=adam_corrections,
        foretell=blockwise_foretell,
        keeps=("first", "second", "slow"),
        knows=not_overridden,
        own=("args", "mng"),
        decay_apart=rate_times_decay,
        state_dtype=lambda dtype: torch.float32,
    ),
)
