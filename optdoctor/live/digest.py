"""From the numbers of a sample to the channels it holds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from optdoctor.live.sums import MEANS, suspects

LEAST_PARAM_RMS = 1e-6
"""Weights below this are as good as zero: their update ratio says nothing."""
ROUNDING = 64.0
"""Times the distance between neighbouring weights: an update larger than that is rounded by at
most 2e-5 of its mean square."""
SUMMED = ("grad", "param", "update", "moment1", "moment2")
SHARES = (
    "grad_zero",
    "update_unchanged",
    "update_realized",
    "decay_unchanged",
    "moment2_zero",
    "moment2_subnormal",
    "moment2_below_eps",
    "moment2_saturated",
    "moment2_unchanged",
    "moment_ratio",
    "effective_lr",
)
"""Channels that come as they are."""
CHANNELS = (
    "grad_rms",
    "grad_absmax",
    "grad_nonfinite",
    "grad_rms_raw",
    "grad_nonfinite_raw",
    "param_rms",
    "update_rms",
    "update_nonfinite",
    "update_ratio",
    "tensor_lr",
    "update_to_lr",
    "moment1_rms",
    "moment2_rms",
    "moment2_min",
    "moment2_max",
    *SHARES,
)
"""What a sample may hold."""

Row = NDArray[np.float64]
Table = Mapping[str, Row]
Sizes = Callable[[str], Row]
"""[P]: elements that the sums of a quantity go over."""


@dataclass(frozen=True, slots=True)
class Doubts:
    """Positions of tensors of which the numbers of a sample leave something open."""

    sums: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """{quantity: whose sum of squares is not finite, or too small for float32}."""
    counts: frozenset[int] = frozenset()
    """Whose second moment has an exact extreme beyond a line: shares of its elements may not be 0,
    and are counted, in a large tensor over all elements."""
    rates: frozenset[int] = frozenset()
    """Whose mean rates are not finite."""
    rounding: frozenset[int] = frozenset()
    """Whose update is so small beside the weights that rounding may have swallowed some of it."""

    def __bool__(self) -> bool:
        return bool(self.sums or self.counts or self.rates or self.rounding)


def doubts_of(rows: Table, sizes: Sizes, limits: NDArray[np.float64]) -> Doubts:
    """`limits` [3, P]: smallest normal and half the largest number of the second moment's dtype,
    and the distance from 1 to the next weight."""
    sums = {of: found for of in SUMMED if (found := suspects(rows, of, sizes(of)))}
    low, high = rows.get("moment2 low"), rows.get("moment2 high")
    counts: list[int] = []
    if low is not None and high is not None:
        least = np.fmax(limits[0], rows.get("moment2 line", limits[0]))
        odd = ~((low >= least) & (high <= limits[1])) & ~np.isnan(rows["moment2 squares"])
        counts = np.flatnonzero(odd).tolist()
    spoilt = [np.flatnonzero(np.isinf(rows[name])) for name in MEANS if name in rows]
    rounding: list[int] = []
    if "update squares" in rows and "param squares" in rows:
        update = np.sqrt(rows["update squares"] / sizes("update"))
        param = np.sqrt(rows["param squares"] / sizes("param"))
        rounding = np.flatnonzero(update < ROUNDING * limits[2] * param).tolist()
    rounding += sums.get("update", ())  # squares that float32 does not hold
    return Doubts(
        sums,
        frozenset(counts),
        frozenset(np.concatenate(spoilt).tolist() if spoilt else ()),
        frozenset(rounding),
    )


def settled(rows: Table, doubts: Doubts) -> dict[str, Row]:
    """The rows, with shares of 0 where the extremes leave no doubt that they are."""
    found = dict(rows)
    if "moment2 squares" not in rows:
        return found
    clear = ~np.isnan(rows["moment2 squares"])
    clear[list(doubts.counts)] = False
    known = {
        "moment2_zero": rows.get("moment1 squares"),
        "moment2_subnormal": rows["moment2 squares"],
        "moment2_saturated": rows["moment2 squares"],
        "moment2_below_eps": rows.get("moment2 line"),
    }
    for name, needed in known.items():
        if needed is not None:
            row = found.get(name, np.full(len(clear), np.nan))
            found[name] = np.where(clear & ~np.isnan(needed) & np.isnan(row), 0.0, row)
    return found


def channels_of(
    rows: Table,
    sizes: Sizes,
    rates: Row,
    layers: NDArray[np.int64],
    adaptive: bool,
    still: NDArray[np.bool_],
) -> tuple[dict[str, float], dict[str, NDArray[np.float32]]]:
    """Step values and {channel: [P]}; NaN where nothing was measured.

    `still` [P]: tensors of the optimizer that are not trained. Without a gradient it passes them
    by: their update is 0, without a copy of them.
    """
    found: dict[str, Row] = {name: rows[name] for name in SHARES if name in rows}
    with np.errstate(all="ignore"):
        for of in SUMMED:
            if f"{of} squares" in rows:
                found[f"{of}_rms"], _ = _rms(rows, of, sizes(of))
        if "raw squares" in rows:
            found["grad_rms_raw"], found["grad_nonfinite_raw"] = _rms(rows, "raw", sizes("grad"))
        values = {}
        if "grad squares" in rows:
            _, found["grad_nonfinite"] = _rms(rows, "grad", sizes("grad"))
            found["grad_absmax"] = np.maximum(np.abs(rows["grad low"]), np.abs(rows["grad high"]))
            values = _norms(rows["grad squares"], np.isfinite(found["grad_rms"]), layers)
        if "moment2 squares" in rows:
            found["moment2_min"], found["moment2_max"] = rows["moment2 low"], rows["moment2 high"]
        found["tensor_lr"] = rates
        if "update squares" in rows:
            _, found["update_nonfinite"] = _rms(rows, "update", sizes("update"))
            update, param = found["update_rms"], found["param_rms"]
            found["update_ratio"] = np.where(param < LEAST_PARAM_RMS, np.nan, update / param)
            found["update_to_lr"] = update / rates
            if not adaptive and "grad_rms" in found:
                found["effective_lr"] = update / found["grad_rms"]
            passed_by = still & np.isnan(rows.get("grad squares", update))
            found["update_rms"] = np.where(passed_by, 0.0, update)
    for name in ("update_unchanged", "update_realized"):
        if name in found:
            found[name] = np.where(rates == 0, np.nan, found[name])
    tensors = {}
    for name in CHANNELS:
        row = found.get(name)
        if row is None:
            continue
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            single = row.astype(np.float32)
        # What a float64 can hold and the record cannot is not measured: neither infinite nor 0.
        told = np.isfinite(single) & ((single != 0) | (row == 0))
        if told.any():
            tensors[name] = np.where(told, single, np.float32(np.nan))
    return values, tensors


def _rms(rows: Table, of: str, num_elements: Row) -> tuple[Row, Row]:
    """(root mean square over finite elements, how many are not finite)."""
    squares, bad = rows[f"{of} squares"], rows.get(f"{of} bad")
    bad = np.zeros_like(squares) if bad is None else np.nan_to_num(bad)
    bad = np.where(np.isnan(squares), np.nan, bad)
    return np.sqrt(squares / (num_elements - bad)), bad


def layers_of(names: Sequence[str]) -> NDArray[np.int64]:
    """[P]: numbers in place of the names of layers, -1 of a tensor that is in none."""
    known = {name: i for i, name in enumerate(dict.fromkeys(name for name in names if name))}
    return np.array([known.get(name, -1) for name in names], np.int64)


def _norms(
    squares: Row, measured: NDArray[np.bool_], layers: NDArray[np.int64]
) -> dict[str, float]:
    """The global norm, and how unevenly layers share it."""
    if not measured.any():
        return {}
    values = {"grad_norm_used": float(np.sqrt(squares[measured].sum()))}
    counted = measured & (layers >= 0)
    _, places = np.unique(layers[counted], return_inverse=True)
    norms = np.sqrt(np.bincount(places, squares[counted]))
    if len(norms) > 1 and norms.mean() > 0:
        values["grad_norm_spread"] = float(norms.std() / norms.mean())
    return values
