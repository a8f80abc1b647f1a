"""One sampled step of one optimizer as vitals: the weights before, then everything after the step.

Sums and extremes are exact; shares come from at most 4096 elements a tensor, chosen once by a
private generator. Every number of a sample crosses to the host in one transfer.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from optdoctor.live.histograms import Cell, Histograms, binned
from optdoctor.live.tensors import Tracked, local
from optdoctor.optimizers import Moments, Probe, number_of, state_of
from optdoctor.trace import SAMPLED

LEAST_PARAM_RMS = 1e-6
"""Weights below this are as good as zero: their update ratio says nothing."""

PLAIN = ("grad_rms", "grad_absmax", "grad_nonfinite", "param_rms")
RAW = ("grad_rms_raw", "grad_nonfinite_raw")
UPDATE = ("update_rms", "update_nonfinite", "update_unchanged")
MOMENT = (
    "moment1_rms",
    "moment2_rms",
    "moment2_min",
    "moment2_max",
    "moment2_zero",
    "moment2_saturated",
    "effective_lr",
)
DERIVED = ("tensor_lr", "update_ratio", "update_to_lr")
TENSOR_CHANNELS = (*PLAIN, *RAW, *UPDATE, *MOMENT, *DERIVED)
"""What a sample holds."""
MEASURED = (*PLAIN, *RAW, *UPDATE, *MOMENT, "grad_sum_of_squares")
"""Rows of the block that crosses to the host; the last is for the global norm only."""


class Collector:
    """Measures the tensors of one optimizer. `before` in the pre-hook, `after` in the post-hook."""

    def __init__(self, optimizer: Optimizer, probe: Probe, tracked: Tracked) -> None:
        self._optimizer, self._probe, self._tracked = optimizer, probe, tracked
        self._old: list[Tensor | None] = []
        self._index: dict[int, Tensor | None] = {}
        self._count_in_full: set[int] = set()
        self._raw: dict[int, dict[str, Tensor | float]] = {}

    @torch.no_grad()
    def before_clip(self, positions: Iterable[int]) -> None:
        """Measures these gradients, which are about to be clipped."""
        for i in positions:
            grad = self._tracked.parameters[i].grad
            if grad is not None and grad.numel():
                seen = _gradient(local(_strided(grad)))
                self._raw[i] = {
                    f"{name}_raw": seen[name] for name in ("grad_rms", "grad_nonfinite")
                }

    def forget(self) -> None:
        """The update was not made."""
        self._raw = {}

    @torch.no_grad()
    def before(self) -> None:
        """Keeps a copy of the weights that the step is about to change."""
        self._old = [
            local(p).clone() if info.in_optimizer and p.requires_grad else None
            for p, info in zip(self._tracked.parameters, self._tracked.tensors, strict=True)
        ]

    def histograms(self) -> Histograms:
        """Of the step just made, from the sampled elements; to be asked before `after`."""
        return binned(cell for i in range(len(self._tracked.parameters)) for cell in self._cells(i))

    @torch.no_grad()
    def after(self) -> tuple[dict[str, float], dict[str, NDArray[np.float32]]]:
        """Step values and tensor rows [P] of the step just made; NaN where nothing was measured."""
        columns = [self._measure(i) for i in range(len(self._tracked.parameters))]
        self._old = []
        self._raw = {}
        block = _to_host(columns)  # [C, P] float64
        rows = dict(zip(MEASURED, block, strict=True))
        squares = rows.pop("grad_sum_of_squares")
        norm = np.nan if np.isnan(squares).all() else float(np.sqrt(np.nansum(squares)))
        rows["tensor_lr"] = self._rates()
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = rows["update_rms"] / rows["param_rms"]
            rows["update_ratio"] = np.where(rows["param_rms"] < LEAST_PARAM_RMS, np.nan, ratio)
            rows["update_to_lr"] = rows["update_rms"] / rows["tensor_lr"]
            rows["update_unchanged"] = np.where(
                rows["tensor_lr"] == 0, np.nan, rows["update_unchanged"]
            )
            if not self._probe.adaptive:
                rows["effective_lr"] = rows["update_rms"] / rows["grad_rms"]
        full = (rows["moment2_min"] == 0) | (rows["moment2_saturated"] > 0)
        self._count_in_full = set(np.flatnonzero(full).tolist())
        tensors = {}
        for name, row in rows.items():
            finite = np.where(np.isfinite(row), row, np.nan)
            if not np.isnan(finite).all():
                with np.errstate(over="ignore"):
                    tensors[name] = finite.astype(np.float32)
        return {} if np.isnan(norm) else {"grad_norm_used": norm}, tensors

    def rate(self, group: int) -> float:
        """The learning rate of a group now."""
        return number_of(self._optimizer.param_groups[group].get("lr"))

    def _rates(self) -> NDArray[np.float64]:
        rates = [self.rate(i) for i in range(len(self._optimizer.param_groups))]
        return np.array(
            [rates[t.group] if t.in_optimizer else np.nan for t in self._tracked.tensors]
        )

    def _measure(self, i: int) -> list[Tensor | float]:
        parameter, old = self._tracked.parameters[i], self._old[i] if self._old else None
        info, values = self._tracked.tensors[i], dict[str, Tensor | float]()
        if not info.in_optimizer:
            return [np.nan] * len(MEASURED)
        new, grad = local(parameter), parameter.grad
        values |= self._raw.get(i, {})
        values["param_rms"] = _rms(new)
        if grad is not None and grad.numel():
            grad = local(_strided(grad))
            values |= _gradient(grad)
        else:
            grad = None
        if old is not None and new.numel() and old.shape == new.shape:
            delta = new.to(_wide(new)) - old.to(_wide(old))
            values["update_rms"] = _rms(delta)
            values["update_nonfinite"] = (~torch.isfinite(delta)).sum()
            if grad is not None:
                chosen = [_take(t, self._sampled(i, new)) for t in (new, old, grad)]
                moving = chosen[2] != 0
                values["update_unchanged"] = (
                    moving & (chosen[0] == chosen[1])
                ).sum() / moving.sum()
        moments = self._probe.moments(state_of(self._optimizer, parameter))
        values |= self._moments(i, moments, info.group)
        return [values.get(name, np.nan) for name in MEASURED]

    def _moments(self, i: int, moments: Moments, group: int) -> dict[str, Tensor | float]:
        first, second = moments.first, moments.second
        if not isinstance(first, Tensor) or not isinstance(second, Tensor) or not second.numel():
            return {}
        first, second = local(first), local(second)
        finite = torch.isfinite(second)
        values: dict[str, Tensor | float] = {
            "moment1_rms": _rms(first),
            "moment2_rms": _rms(second),
            "moment2_min": torch.where(finite, second, torch.inf).min(),
            "moment2_max": torch.where(finite, second, -torch.inf).max(),
        }
        index = self._sampled(i, second)
        whole = i in self._count_in_full
        m, v = (first, second) if whole else (_take(first, index), _take(second, index))
        values["moment2_zero"] = ((v == 0) & (m != 0)).sum() / v.numel()
        half = torch.finfo(v.dtype).max / 2
        values["moment2_saturated"] = (~(v <= half)).sum() / v.numel()
        divisor = second if moments.divisor is None else local(moments.divisor)
        values["effective_lr"] = self._effective_lr(_take(divisor, index), moments, group)
        return values

    def _effective_lr(self, divisor: Tensor, moments: Moments, group: int) -> Tensor | float:
        settings = self._probe.facts(self._optimizer.param_groups[group])
        count = number_of(moments.step)
        if not count > 0 or not {"beta1", "beta2", "eps"} <= settings.keys():
            return np.nan
        correction1 = 1 - settings["beta1"] ** count
        correction2 = (1 - settings["beta2"] ** count) ** 0.5
        root = divisor.double().sqrt()
        each = (
            self.rate(group) * correction2 / (correction1 * (root + settings["eps"] * correction2))
        )
        usable = torch.isfinite(each)
        return torch.where(usable, each, 0).sum() / usable.sum()

    def _cells(self, i: int) -> Iterator[Cell]:
        parameter, info = self._tracked.parameters[i], self._tracked.tensors[i]
        if not info.in_optimizer or not parameter.requires_grad:
            return
        new, old, grad = local(parameter), self._old[i] if self._old else None, parameter.grad
        moments = self._probe.moments(state_of(self._optimizer, parameter))
        seen = {"weight": new, "gradient": grad, "moment1": moments.first, "v": moments.second}
        index = self._sampled(i, new)
        taken = {
            name: _take(plain, index)
            for name, tensor in seen.items()
            if isinstance(tensor, Tensor)
            and tensor.is_floating_point()
            and (plain := local(_strided(tensor))).numel() == new.numel()
        }
        if (v := taken.pop("v", None)) is not None:
            taken["log10_moment2"] = torch.where(v > 0, v, torch.nan).double().log10()
        if old is not None and old.shape == new.shape:
            wide = _wide(new)
            taken["update"] = taken["weight"].to(wide) - _take(old, index).to(wide)
        yield from ((quantity, info.name, elements) for quantity, elements in taken.items())

    def _sampled(self, i: int, tensor: Tensor) -> Tensor | None:
        """Positions of the sampled elements, the same for the whole run; None means all."""
        if i not in self._index:
            if tensor.numel() <= SAMPLED:
                self._index[i] = None
            else:
                generator = torch.Generator()
                generator.manual_seed(zlib.crc32(self._tracked.tensors[i].name.encode()))
                chosen = torch.randint(tensor.numel(), (SAMPLED,), generator=generator)
                self._index[i] = chosen.to(tensor.device)
        return self._index[i]


def _gradient(grad: Tensor) -> dict[str, Tensor | float]:
    """Sums over finite elements; without one there is no size, which 0 would be."""
    finite = torch.isfinite(grad)
    num_finite = finite.sum()
    magnitude = torch.where(finite, grad, 0).abs()
    squares = magnitude.double().square().sum()
    return {
        "grad_rms": (squares / num_finite).sqrt(),
        "grad_absmax": torch.where(num_finite > 0, magnitude.max(), torch.nan),
        "grad_nonfinite": grad.numel() - num_finite,
        "grad_sum_of_squares": torch.where(num_finite > 0, squares, torch.nan),
    }


def _rms(tensor: Tensor) -> Tensor | float:
    """Over finite elements, NaN if there are none."""
    if not tensor.numel():
        return np.nan
    finite = torch.isfinite(tensor)
    return (torch.where(finite, tensor, 0).double().square().sum() / finite.sum()).sqrt()


def _strided(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.layout != torch.strided else grad


def _take(tensor: Tensor, index: Tensor | None) -> Tensor:
    return tensor.reshape(-1) if index is None else tensor.reshape(-1)[index]


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _to_host(columns: Sequence[Sequence[Tensor | float]]) -> NDArray[np.float64]:
    """[C, P] float64: one stack a device, one transfer each."""
    block = np.full((len(MEASURED), len(columns)), np.nan)
    by_device: dict[torch.device, list[tuple[int, int, Tensor]]] = {}
    for p, column in enumerate(columns):
        for c, value in enumerate(column):
            if isinstance(value, Tensor):
                by_device.setdefault(value.device, []).append((c, p, value.double().reshape(())))
            else:
                block[c, p] = value
    for cells in by_device.values():
        rows, cols, values = zip(*cells, strict=True)
        block[list(rows), list(cols)] = torch.stack(values).cpu().numpy()
    return block
