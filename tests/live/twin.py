"""What a sample should say of one tensor: slow and obvious, over all its elements, in float64.

Where a channel comes from some elements only, `Said.error` is the standard error of that.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from optdoctor.live.shares import THIN
from optdoctor.optimizers import settings_of
from optdoctor.trace import SAMPLED

Elements = NDArray[np.float64]
"""[K]: all elements of a tensor in their logical order, two of each complex number."""


@dataclass(frozen=True)
class Said:
    """A value, and one standard error of it; 0 where it is exact."""

    value: float
    error: float = 0.0


@dataclass(frozen=True)
class Held:
    """One tensor at one moment. What is not there is None."""

    weight: Elements
    first: Elements | None = None
    second: Elements | None = None
    divisor: Elements | None = None
    buffer: Elements | None = None
    """Of RMSprop: the sum of quotients."""
    stored: torch.dtype = torch.float32
    """Of the second moment."""


@dataclass(frozen=True)
class Around:
    """One tensor around one step."""

    kind: str
    """Class of the optimizer."""
    dtype: torch.dtype
    before: Held
    after: Held
    gradient: Elements | None
    group: Mapping[str, Any]
    count: float
    """Updates of this tensor, this one included; NaN where nobody counts."""

    def __getitem__(self, setting: str) -> float:
        return float(self.group[setting])


def flat(tensor: Tensor) -> Elements:
    """A copy of all its elements."""
    tensor = tensor.detach()
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.double().reshape(-1).numpy().copy()


def held(optimizer: Optimizer, parameter: Tensor, group: Mapping[str, Any]) -> Held:
    """Weights and moments as they are now."""
    state = optimizer.state.get(parameter, {})
    first, second, divisor = MOMENTS[type(optimizer).__name__](state, group)
    return Held(
        flat(parameter),
        None if first is None else flat(first),
        None if second is None else flat(second),
        None if divisor is None else flat(divisor),
        flat(state["momentum_buffer"]) if "momentum_buffer" in state else None,
        torch.float32 if second is None else real(second.dtype),
    )


def real(dtype: torch.dtype) -> torch.dtype:
    """Of the parts of complex numbers."""
    return dtype.to_real() if dtype.is_complex else dtype


class Watched:
    """All tensors of an optimizer: `before` the step, then `arounds`."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.before()

    def _tensors(self) -> list[tuple[Tensor, Mapping[str, Any]]]:
        groups = self._optimizer.param_groups
        return [
            (p, settings_of(self._optimizer, group)) for group in groups for p in group["params"]
        ]

    def before(self) -> None:
        """Remembers what the step is about to change."""
        self._held = {id(p): held(self._optimizer, p, group) for p, group in self._tensors()}

    def arounds(self) -> dict[int, Around]:
        """{id of the parameter: what happened to it}."""
        return {
            id(p): Around(
                type(self._optimizer).__name__,
                real(p.dtype),
                self._held[id(p)],
                held(self._optimizer, p, group),
                None if p.grad is None else flat(p.grad),
                group,
                float(self._optimizer.state.get(p, {}).get("step", math.nan)),
            )
            for p, group in self._tensors()
        }


Three = tuple[Tensor | None, Tensor | None, Tensor | None]
Find = Callable[[Mapping[str, Any], Mapping[str, Any]], Three]
"""(first moment, second moment, what divides)"""


def _adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> Three:
    second = state.get("exp_avg_sq")
    return state.get("exp_avg"), second, state.get("max_exp_avg_sq", second)


def _rmsprop(state: Mapping[str, Any], group: Mapping[str, Any]) -> Three:
    second, mean = state.get("square_avg"), state.get("grad_avg")
    return None, second, second if mean is None or second is None else second - mean * mean


def _adafactor(state: Mapping[str, Any], group: Mapping[str, Any]) -> Three:
    if "variance" in state:
        second = state["variance"]
    elif "row_var" in state:
        rows, columns = state["row_var"], state["col_var"]
        wide = torch.promote_types(rows.dtype, torch.float32)
        rows, columns = rows.to(wide), columns.to(wide)
        least = _least(state["row_var"].dtype, group)
        second = rows / rows.mean(-2, keepdim=True).clamp(min=least) * columns
    else:
        return None, None, None
    held = state.get("row_var", state.get("variance"))
    wide_second = second.to(torch.promote_types(second.dtype, torch.float32))
    return None, second, wide_second.clamp(min=_least(held.dtype, group) ** 2)


def _least(dtype: torch.dtype, group: Mapping[str, Any]) -> float:
    epsilon = group["eps"][0]
    return torch.finfo(dtype).eps if epsilon is None else float(epsilon)


MOMENTS: dict[str, Find] = {
    "SGD": lambda state, group: (
        (state.get("momentum_buffer"), None, None) if group["momentum"] else (None, None, None)
    ),
    "Adam": _adam,
    "AdamW": _adam,
    "RMSprop": _rmsprop,
    "Adagrad": lambda state, group: (None, state.get("sum"), state.get("sum")),
    "Adamax": lambda state, group: (
        state.get("exp_avg"),
        state.get("exp_inf"),
        state.get("exp_inf"),
    ),
    "Lion": lambda state, group: (state.get("exp_avg"), None, None),
    "Adafactor": _adafactor,
}
ADAPTIVE = ("Adam", "AdamW", "RMSprop", "Adagrad")
"""An element's rate is lr / (c1 * (sqrt(divisor / c2) + eps))."""
LEAST_CARRIERS = 10
"""Sampled elements that carry a variance, of fewer of which nobody knows the distribution."""
TENSORWISE = ("Adafactor",)
"""Its rule is followed over the whole tensor."""


def corrections(a: Around) -> tuple[float, float]:
    """(c1, c2): what the moments are divided by."""
    if a.kind in ("Adam", "AdamW", "Adamax"):
        beta1, beta2 = map(float, a.group["betas"])
        return 1 - beta1**a.count, 1.0 if a.kind == "Adamax" else 1 - beta2**a.count
    if a.kind == "RMSprop" and a["momentum"]:
        return (1 - a["momentum"]) / (1 - a["momentum"] ** a.count), 1.0
    return 1.0, 1.0


def rate(a: Around) -> float:
    """The rate of the step."""
    if a.kind == "Adagrad":
        return a["lr"] / (1 + (a.count - 1) * a["lr_decay"])
    return min(a["lr"], a.count**-0.5) if a.kind == "Adafactor" else a["lr"]


def decay_apart(a: Around) -> float:
    """What decay alone takes of each weight, where that is an operation of its own."""
    apart = a.kind in ("Lion", "Adafactor") or a.group.get("decoupled_weight_decay", False)
    return a["lr"] * a["weight_decay"] if apart else 0.0


def asked(a: Around) -> Elements | None:
    """The change that the rule asks for; None where it is not followed."""
    w, g, m, v = a.before.weight, a.gradient, a.after.first, a.after.divisor
    if g is None:
        return None
    c1, c2 = corrections(a)
    coupled = 0.0 if decay_apart(a) or a.kind == "Lion" else a["weight_decay"]
    pull = g + coupled * w
    if a.kind == "SGD":
        if m is None:
            return -a["lr"] * pull
        return -a["lr"] * (pull + a["momentum"] * m if a.group["nesterov"] else m)
    if a.kind == "Lion":
        beta1 = a.group["betas"][0]
        # Whether a blend is 0 is settled by the precision of the arithmetic.
        wide = np.float64 if a.dtype == torch.float64 else np.float32
        old = np.zeros_like(g) if a.before.first is None else a.before.first
        blend = beta1 * old.astype(wide) + (1 - beta1) * g.astype(wide)
        return -a["lr"] * sign(blend) - decay_apart(a) * w
    if v is None:
        return None
    if a.kind == "RMSprop" and a["momentum"]:
        return -a["lr"] * a.after.buffer
    if a.kind == "Adafactor":
        update = g / np.sqrt(v)
        update = update / np.maximum(1.0, root_mean_square(update) / a["d"])
        scale = np.maximum(a.group["eps"][1], root_mean_square(w))
        return -rate(a) * scale * update - decay_apart(a) * w
    if a.kind == "Adamax":
        return -a["lr"] / c1 * m / v
    top = pull if m is None else m / c1
    return -rate(a) * top / (np.sqrt(v / c2) + a["eps"]) - decay_apart(a) * w


def twin(a: Around, *, counted: bool = True) -> dict[str, Said]:
    """{channel: what a sample says of the tensor}; a channel that is missing is not given.

    `counted` says whether shares of a second moment that extremes leave open are counted in full.
    """
    moves = a.after.weight - a.before.weight
    said = {
        "param_rms": rms(a.after.weight),
        "update_rms": rms(moves),
        "update_nonfinite": bad(moves),
        "tensor_lr": a["lr"],
    }
    said["update_ratio"] = over(said["update_rms"], said["param_rms"])
    if said["param_rms"] < 1e-6:
        said["update_ratio"] = math.nan
    said["update_to_lr"] = over(said["update_rms"], a["lr"])
    told = {name: Said(value) for name, value in said.items()}
    if a.gradient is not None:
        told |= _of_gradient(a, moves, told)
    if a.after.first is not None:
        told["moment1_rms"] = Said(rms(a.after.first))
    if a.after.second is not None:
        told |= _of_second(a, a.after.second.size if counted else SAMPLED)
        if a.kind in ADAPTIVE:
            told |= _of_rates(a)
    return {n: s for n, s in told.items() if math.isfinite(s.value) or math.isinf(s.error)}


def _of_gradient(a: Around, moves: Elements, told: dict[str, Said]) -> dict[str, Said]:
    g, w, gradient_rms = a.gradient, a.before.weight, rms(a.gradient)
    found = {
        "grad_rms": Said(gradient_rms),
        "grad_absmax": Said(float(np.abs(finite(g)).max(initial=-math.inf))),
        "grad_nonfinite": Said(bad(g)),
        "grad_zero": mean((g == 0).astype(np.float64), SAMPLED),
    }
    if a.kind not in ADAPTIVE:
        found["effective_lr"] = Said(over(told["update_rms"].value, gradient_rms))
    moving = g != 0
    if a["lr"]:
        found["update_unchanged"] = share(a.after.weight == w, moving)
        if (change := asked(a)) is not None:
            if a.group.get("fused") and torch.finfo(a.after.stored).bits < 32:
                # It divided by more than 16 bits hold of a small second moment.
                held = a.after.second >= torch.finfo(a.after.stored).tiny
                change = np.where(held, change, 0.0)
                moves = np.where(held, moves, 0.0)
            found["update_realized"] = realized(moves, change, 0 if a.kind in TENSORWISE else THIN)
    in_half = torch.finfo(a.before.stored).bits < 32
    if in_half and a.before.second is not None and a.after.second is not None:
        found["moment2_unchanged"] = share(a.after.second == a.before.second, moving)
    apart = decay_apart(a)
    in_float32 = a.group.get("fused") and torch.finfo(a.dtype).bits < 32
    if apart and not in_float32:
        weight = torch.from_numpy(w).to(a.dtype)
        if not w.any() and apart >= 2 * torch.finfo(a.dtype).eps and a.dtype != torch.float16:
            return found | {"decay_unchanged": Said(0.0)}  # no weight could lose it in rounding
        found["decay_unchanged"] = share(flat(weight * (1 - apart)) == w, w != 0, THIN)
    return found


def _of_second(a: Around, sampled: int) -> dict[str, Said]:
    v, m, limits = a.after.second, a.after.first, torch.finfo(a.after.stored)
    found = {
        "moment2_subnormal": (v > 0) & (v < limits.tiny),
        "moment2_saturated": ~(v <= limits.max / 2),
    }
    if m is not None:
        found["moment2_zero"] = (v == 0) & (m != 0)
    if a.kind in ADAPTIVE:
        found["moment2_below_eps"] = np.sqrt(a.after.divisor / corrections(a)[1]) < a["eps"]
    return {
        "moment2_rms": Said(rms(v)),
        "moment2_min": Said(float(finite(v).min(initial=math.inf))),
        "moment2_max": Said(float(finite(v).max(initial=-math.inf))),
        **{name: mean(hits.astype(np.float64), sampled) for name, hits in found.items()},
    }


def _of_rates(a: Around) -> dict[str, Said]:
    c1, c2 = corrections(a)
    found = {"effective_lr": mean(rate(a) / (c1 * (np.sqrt(a.after.divisor / c2) + a["eps"])))}
    if a.after.first is not None:
        size = np.sqrt(a.after.second / c2)
        found["moment_ratio"] = mean(np.where(size > 0, np.abs(a.after.first / c1) / size, np.nan))
    return found


def sign(values: Elements) -> Elements:
    """0 of NaN, as torch has it."""
    return (values > 0) * 1.0 - (values < 0)


def finite(values: Elements) -> Elements:
    """Those that are."""
    return values[np.isfinite(values)]


def bad(values: Elements) -> float:
    """How many are not finite."""
    return float(values.size - finite(values).size)


def rms(values: Elements) -> float:
    """Over finite elements; NaN without one."""
    kept = finite(values)
    return root_mean_square(kept) if kept.size else math.nan


def root_mean_square(values: Elements) -> float:
    """From scaled elements, so that no square leaves the range."""
    top = float(np.abs(values).max())
    return top * math.sqrt(np.mean((values / top) ** 2)) if 0 < top < math.inf else top


def over(above: float, below: float) -> float:
    """A quotient; NaN of nothing."""
    return above / below if below else math.nan


def mean(values: Elements, sampled: int = THIN) -> Said:
    """Over finite elements."""
    kept = finite(values)
    if not kept.size:
        return Said(math.nan)
    if values.size <= sampled:
        return Said(float(kept.mean()))
    num_sampled = sampled * kept.size / values.size
    return Said(float(kept.mean()), standard_error(kept - kept.mean(), num_sampled))


def standard_error(residuals: Elements, num_sampled: float) -> float:
    """Of their mean; infinite where so few carry their variance that a sample may miss them."""
    squares = residuals**2
    if not squares.any():
        return 0.0
    squares = squares / squares.max()
    carriers = squares.sum() ** 2 / (squares**2).sum() * num_sampled / residuals.size
    if carriers < LEAST_CARRIERS:
        return math.inf
    return float(residuals.std()) / math.sqrt(num_sampled)


def share(hits: NDArray[np.bool_], of: NDArray[np.bool_], sampled: int = SAMPLED) -> Said:
    """Of some elements; NaN of none."""
    return mean(np.where(of, hits, np.nan), sampled)


def realized(moves: Elements, change: Elements, sampled: int) -> Said:
    """The one along the other over the size of that, where both are finite; the error of a ratio
    of sums (Cochran 1977, eq. 2.39)."""
    with np.errstate(all="ignore"):
        both = np.isfinite(moves) & np.isfinite(change)
        made, wanted = moves[both], change[both]
    top = float(np.abs(wanted).max(initial=0.0))
    if not top:
        return Said(math.nan)
    if top < np.finfo(np.float32).tiny:
        return Said(math.nan, math.inf)  # below the arithmetic of the rule
    along, wanted = (made / top) * (wanted / top), (wanted / top) ** 2
    value = float(along.mean() / wanted.mean())
    if not sampled or moves.size <= sampled:
        return Said(value)
    num_sampled = sampled * made.size / moves.size
    error = standard_error((along - value * wanted) / wanted.mean(), num_sampled)
    if math.isinf(standard_error(wanted - wanted.mean(), num_sampled)):
        error = math.inf  # what was asked for lies in few elements
    return Said(value, error)
