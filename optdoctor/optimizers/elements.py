"""One tensor around its update, in the form that the rules of optimizers read."""

from collections.abc import Callable, Mapping

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
    fit,
)

Take = Callable[[Tensor], Tensor]
"""Elements [1, K] of a tensor that has one for each weight, or the tensor itself."""


def wide(tensor: Tensor) -> Tensor:
    """At least float32; what is not floating stays."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor


def kept(
    probe: Probe, state: State, group: Group, take: Take, num_elements: int
) -> dict[str, Tensor]:
    """Copies of what the rule needs from before the update, moments decoded; missing ones are left
    out: before its first update an optimizer may hold none."""
    layout = probe.layout(state, group)
    moments = {
        "first": layout.first,
        "second": layout.second,
        **layout.further,
    }
    found = {
        name: _mean(moments[name], state, group, take)
        if name in moments
        else _entry(state[name], take, num_elements)
        for name in probe.keeps
        if name in moments or state.get(name) is not None
    }
    return {name: value.clone() for name, value in found.items() if value is not None}


def elements(
    probe: Probe,
    state: State,
    group: Group,
    *,
    weight: Tensor,
    gradient: Tensor,
    before: Mapping[str, Tensor],
    take: Take,
    num_elements: int,
    rate: Number | None = None,
) -> Elements:
    """`weight`, `gradient` and `before` as taken already; the rest is taken from the state.

    `rate` is the one of before the update, where the probe wants that (`rate_before`).
    """
    layout = probe.layout(state, group)
    second = _mean(layout.second, state, group, take)
    weight = wide(weight)
    step = probe.count(state, group)
    step = step.detach().double() if isinstance(step, Tensor) else step
    c1, c2 = (fit(c, weight) for c in probe.corrections(group, step))
    return Elements(
        weight=weight,
        gradient=wide(gradient),
        first=_mean(layout.first, state, group, take),
        second=second,
        divisor=second if layout.divisor is None else _mean(layout.divisor, state, group, take),
        state={
            **_entries(probe, state, take, num_elements),
            **_further(layout, state, group, take),
        },
        before=before,
        group=group,
        rate=fit(probe.rate(group, step) if rate is None else rate, weight),
        step=step,
        c1=c1,
        c2=c2,
    )


def _entries(probe: Probe, state: State, take: Take, num_elements: int) -> dict[str, Tensor]:
    """What the probe reads of the state; an entry may be None where an option is off."""
    return {
        name: _entry(state[name], take, num_elements)
        for name in probe.reads
        if state.get(name) is not None
    }


def _further(layout: Layout, state: State, group: Group, take: Take) -> dict[str, Tensor]:
    means = {name: _mean(moment, state, group, take) for name, moment in layout.further.items()}
    return {name: mean for name, mean in means.items() if mean is not None}


def _mean(moment: Moment | None, state: State, group: Group, take: Take) -> Tensor | None:
    if moment is None or moment.key not in state:
        return None
    mean = moment.read(state, group).detach()
    return wide(take(mean) if moment.aligned else mean)


def _entry(value: object, take: Take, num_elements: int) -> Tensor:
    """One number a tensor stays one; what has an element for each weight is taken from."""
    if isinstance(value, Tensor):
        tensor = value.detach()
    else:
        tensor = torch.tensor(float(value), device="cpu")  # type: ignore[arg-type]
    return wide(take(tensor)) if tensor.numel() == num_elements > 1 else tensor
