"""RMSprop: a mean of squares divides, without bias correction.

Hinton 2012 (lecture 6e); centered: Graves 2013, eq. 38-41, where the variance divides.
`momentum_buffer` sums gradients that were divided already. It has not the size of a gradient, so it
is no first moment: it is read by the rule alone. Decay is part of the gradient. bitsandbytes keeps
the mean of squares in state1, where others keep m; it takes `momentum` and does not use it.
"""

import torch
from torch import Tensor

from optdoctor.optimizers.adam import not_overridden
from optdoctor.optimizers.probe import Elements, Group, Layout, Moment, Number, Probe, State
from optdoctor.optimizers.quantized import blockwise_moment
from optdoctor.optimizers.settings import named


def layout(state: State, group: Group) -> Layout:
    """square_avg; centered, less the square of grad_avg."""
    divisor = Moment("grad_avg", decode=variance) if group.get("centered") else None
    return Layout(second=Moment("square_avg"), divisor=divisor)


def variance(state: State, group: Group) -> Tensor:
    """Mean of squares less square of the mean, rounded as the optimizer does: it can fall below 0,
    and then the optimizer too makes a NaN of it."""
    mean: Tensor = state["grad_avg"]
    square: Tensor = state["square_avg"]
    return square.addcmul(mean, mean, value=-1)


def corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """A gradient that stays moves the weights by (1 - momentum^t) / (1 - momentum) times
    rate / (√v + eps): so much of it the buffer sums."""
    momentum = group.get("momentum", 0.0)
    return (1 - momentum) / (1 - momentum**step) if momentum else 1.0, 1.0


def foretell(e: Elements) -> Tensor:
    """-lr * g / (√v + eps), or -lr times the buffer that sums such quotients."""
    if e.group["momentum"]:
        return -e.rate * e.state["momentum_buffer"]
    assert e.divisor is not None
    sign = -1.0 if e.group["maximize"] else 1.0
    gradient = sign * e.gradient + e["weight_decay"] * e.weight
    return -e.rate * gradient / (e.divisor.sqrt() + e["eps"])


def facts(group: Group) -> dict[str, float]:
    """alpha is what others call beta2."""
    return named(
        beta2=group.get("alpha"),
        eps=group.get("eps"),
        weight_decay=group.get("weight_decay"),
        momentum=group.get("momentum"),
    )


def blockwise_layout(state: State, group: Group) -> Layout:
    """The mean of squares under state1."""
    return Layout(second=blockwise_moment(state, "state1"))


def blockwise_foretell(e: Elements) -> Tensor:
    """The same from the mean before: what divided was not yet rounded to 8 bits."""
    gradient = e.gradient + e["weight_decay"] * e.weight
    alpha: float = e.group["betas"][0]
    square = (1 - alpha) * gradient.square()
    if "second" in e.before:
        square = square + alpha * e.before["second"]
    return -e.rate * gradient / (square.sqrt() + e["eps"])


def blockwise_facts(group: Group) -> dict[str, float]:
    """Its betas are alpha and the momentum that it does not use."""
    return named(
        beta2=group["betas"][0], eps=group.get("eps"), weight_decay=group.get("weight_decay")
    )


PROBES = (
    Probe(
        family="rmsprop",
        matches=("torch.optim.rmsprop.RMSprop",),
        layout=layout,
        facts=facts,
        adaptive=True,
        corrections=corrections,
        foretell=foretell,
        reads=("momentum_buffer",),
    ),
    Probe(
        family="rmsprop",
        matches=tuple(
            f"bitsandbytes.optim.rmsprop.{name}"
            for name in ("RMSprop", "RMSprop8bit", "RMSprop32bit")
        ),
        layout=blockwise_layout,
        facts=blockwise_facts,
        adaptive=True,
        foretell=blockwise_foretell,
        keeps=("second",),
        own=("mng", "args"),
        knows=not_overridden,
        state_dtype=lambda dtype: torch.float32,
    ),
)
