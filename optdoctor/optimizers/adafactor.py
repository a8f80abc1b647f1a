"""Adafactor: a second moment of rows and columns, updates of bounded size (Shazeer & Stern 2018).

Algorithms 4 and 6. An update is clipped by its root mean square over the tensor, and mostly scaled
by that of the weights, so that each element depends on all. `rate` is the relative step without
that scale. Where the three differ:

- torch (no momentum): eps[0] bounds the mean of the rows, and its square the estimate, from below;
  the default is the epsilon of the dtype. lr bounds the relative step and multiplies decay alone.
- transformers: eps[0] is added to each square. `lr` is None where the step is relative. State is
  at least float32.
- pytorch_optimizer: the same, but with `relative_step`, its default, a given `lr` is ignored. With
  `ams_bound` it keeps the largest √v and takes the root of that once more.

With a beta1 the last two hold a mean of finished updates in `exp_avg`, in bfloat16 for the latter:
it has the size of an update and is no first moment. It is what moves the weights.
"""

from typing import Any

import torch
from torch import Tensor

from optdoctor.optimizers.arithmetic import larger, rms, smaller
from optdoctor.optimizers.elements import wide
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
from optdoctor.optimizers.settings import named


def torch_layout(state: State, group: Group) -> Layout:
    """row_var and col_var, or the variance of a vector; what divides is bounded from below."""
    if "row_var" not in state:
        return Layout(None, Moment("variance"), Moment("variance", decode=bounded))
    return Layout(
        None, Moment("row_var", "factored", torch_estimate), Moment("row_var", "factored", bounded)
    )


def torch_estimate(state: State, group: Group) -> Tensor:
    """rows x columns / mean of the rows."""
    if "row_var" not in state:
        return wide(state["variance"])
    rows, columns = state["row_var"], state["col_var"]
    mean = wide(rows).mean(dim=-2, keepdim=True).clamp(min=_epsilon(rows, group))
    return wide(rows) / mean * wide(columns)


def bounded(state: State, group: Group) -> Tensor:
    """At least the square of epsilon."""
    held = state["row_var"] if "row_var" in state else state["variance"]
    return torch_estimate(state, group).clamp(min=_epsilon(held, group) ** 2)


def torch_rate(group: Group, step: Number) -> Number:
    """At most 1/√t."""
    return smaller(group["lr"], step**-0.5)


def torch_foretell(e: Elements) -> Tensor:
    """-rate * max(eps, rms(w)) * clipped g / √v, and the decay."""
    sign = -1.0 if e.group["maximize"] else 1.0
    scale = rms(e.weight).clamp(min=e.group["eps"][1])
    change = -e.rate * scale * sign * _clipped(e, e.group["d"])
    return change + rate_times_decay(e.group) * e.weight


def layout(state: State, group: Group) -> Layout:
    """exp_avg_sq_row and exp_avg_sq_col, or exp_avg_sq of a vector."""
    if "exp_avg_sq_row" not in state:
        return Layout(second=Moment("exp_avg_sq"))
    return Layout(second=Moment("exp_avg_sq_row", "factored", estimate))


def estimate(state: State, group: Group) -> Tensor:
    """rows x columns / mean of the rows."""
    rows, columns = wide(state["exp_avg_sq_row"]), wide(state["exp_avg_sq_col"])
    return (rows / rows.mean(dim=-1, keepdim=True)).unsqueeze(-1) * columns.unsqueeze(-2)


def rate(group: Group, step: Number) -> Any:
    """lr, or the relative step: at most 1/√t and 0.01, or 1e-6 t while it warms up."""
    if not group["relative_step"]:
        return group["lr"]
    return smaller(step**-0.5, 1e-6 * step if group["warmup_init"] else 1e-2)


def foretell(e: Elements) -> Tensor:
    """transformers: -rate * clipped g / √v, or the mean of these, and the decay."""
    scaled = _scaled_rate(e, e.group["eps"][1])
    decay = scaled * e["weight_decay"] * e.weight
    if e.group["beta1"] is not None:
        return -e.state["exp_avg"] - decay
    return -scaled * _clipped(e, e.group["clip_threshold"]) - decay


def optional_foretell(e: Elements) -> Tensor:
    """pytorch_optimizer: the same with settings of its own."""
    scaled = _scaled_rate(e, e.group["eps2"])
    decay: Number = 0.0
    if e.group["weight_decouple"]:
        decay = e["weight_decay"] * (1.0 if e.group["fixed_decay"] else scaled)
    if e.group["betas"][0] is not None:
        return -e.state["exp_avg"].to(e.weight.dtype) - decay * e.weight
    return -scaled * _clipped(e, e.group["clip_threshold"]) - decay * e.weight


def optional_layout(state: State, group: Group) -> Layout:
    """pytorch_optimizer: exp_avg_sq_hat divides where it is kept."""
    second = layout(state, group).second
    return Layout(None, second, Moment("exp_avg_sq_hat") if group.get("ams_bound") else None)


def optional_corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """With `ams_bound` what divides is over 1 - beta2 of this step, which nobody did before."""
    if not group.get("ams_bound"):
        return 1.0, 1.0
    return 1.0, larger(step ** group["decay_rate"], 1 - group["betas"][1])


def decay_apart(group: Group) -> Number:
    """-lr * weight_decay; 0 where the size of the weights, or the step, is part of it."""
    varies = group["relative_step"] or group["scale_parameter"]
    return 0.0 if varies else rate_times_decay(group)


def optional_decay_apart(group: Group) -> Number:
    """pytorch_optimizer: may be coupled, or free of the rate."""
    if not group["weight_decouple"]:
        return 0.0
    return -setting_of(group, "weight_decay") if group["fixed_decay"] else decay_apart(group)


def facts(group: Group) -> dict[str, float]:
    """The second moment's beta follows the step; there is no one epsilon."""
    beta1 = group["betas"][0] if "betas" in group else group.get("beta1")
    return named(beta1=beta1, weight_decay=group.get("weight_decay"))


def _scaled_rate(e: Elements, least: float) -> Number:
    return e.rate * rms(e.weight).clamp(min=least) if e.group["scale_parameter"] else e.rate


def _clipped(e: Elements, threshold: float) -> Tensor:
    assert e.divisor is not None
    update = e.gradient * (e.divisor / e.c2).rsqrt()
    return update / (rms(update) / threshold).clamp(min=1.0)


def _epsilon(held: Tensor, group: Group) -> float:
    epsilon = group["eps"][0]
    return float(torch.finfo(held.dtype).eps if epsilon is None else epsilon)


PROBES = (
    Probe(
        family="adafactor",
        matches=("torch.optim.Adafactor", "torch.optim._adafactor.Adafactor"),
        layout=torch_layout,
        facts=facts,
        rate=torch_rate,
        foretell=torch_foretell,
        scope="tensor",
        decay_apart=rate_times_decay,
    ),
    Probe(
        family="adafactor",
        matches=("transformers.optimization.Adafactor",),
        layout=layout,
        facts=facts,
        rate=rate,
        foretell=foretell,
        scope="tensor",
        reads=("exp_avg",),
        decay_apart=decay_apart,
        state_dtype=lambda dtype: torch.float64 if dtype == torch.float64 else torch.float32,
    ),
    Probe(
        family="adafactor",
        matches=("pytorch_optimizer.optimizer.adafactor.AdaFactor",),
        layout=optional_layout,
        facts=facts,
        rate=rate,
        corrections=optional_corrections,
        foretell=optional_foretell,
        scope="tensor",
        reads=("exp_avg",),
        own=("decay_rate", "clip_threshold", "eps2"),
        knows=lambda group: not group.get("cautious"),
        decay_apart=optional_decay_apart,
    ),
)
