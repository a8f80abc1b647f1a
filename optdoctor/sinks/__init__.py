"""The registry of sinks: where vitals and findings go while training. Adding one is adding a file.

A sink module defines `SINK`, a function that makes one from a `Place`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from optdoctor.errors import Told
from optdoctor.findings import Diagnosis, Notice
from optdoctor.trace import Trace

PER_TENSOR = (
    "update_ratio",
    "grad_rms",
    "effective_lr",
    "moment2_zero",
    "update_unchanged",
)
"""Tensor channels that become a curve for each tensor: how far it moves, what drives it, what the
optimizer makes of the rate, and the two ways in which precision can stop it. The others would
make three times as many curves; the histograms show most of what they say."""


class Unwritable(Told):
    """A sink that was asked for lacks its package or a place to write."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How the sampled elements of one tensor were distributed at one update."""

    edges: NDArray[np.float64]  # [B + 1]
    counts: NDArray[np.int64]  # [B]; the last bin holds its right edge too, as numpy's does
    left_out: int
    """Elements that are not finite, and of a logarithm those that have none."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The P tensors of one update."""

    step: int
    tensors: tuple[str, ...]
    """Names, [P]."""
    channels: Mapping[str, NDArray[np.float32]]  # {channel: [P]}, NaN = not measured
    histograms: Mapping[str, Mapping[str, Histogram]]  # {quantity: {tensor: histogram}}


class Sink:
    """One destination. A sink defines what it needs of these; the rest does nothing.

    After an exception it is told nothing more until `close`.
    """

    histograms: ClassVar[bool] = False
    """Whether its samples should bring histograms, which cost."""

    def tell(self, notices: list[Notice]) -> None:
        """Takes what appeared, worsened or ended."""

    def row(self, step: int, values: Mapping[str, float]) -> None:
        """Takes step channels of one update; those of one update may come in several calls."""

    def sample(self, sample: Sample) -> None:
        """Takes tensor channels of one update."""

    def close(self, diagnosis: Diagnosis, trace: Trace, cost: str) -> None:
        """Takes the last diagnosis, also after an exception."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sink may write. Making a sink writes nothing yet."""

    out: Path | None
    prefix: str = "optdoctor"
    """What the names of its curves begin with: "optdoctor", "optdoctor/0" of several optimizers."""
    writer: Any = None
    """The writer of a framework, to be used and not closed."""


def curve_name(channel: str) -> str:
    """The channel as a part of a curve's name, "metric/accuracy"."""
    return channel.replace("metric:", "metric/", 1)


def curves(sample: Sample) -> dict[str, float]:
    """{"update_ratio/<tensor>": value} of the channels of `PER_TENSOR` that were measured."""
    return {
        f"{channel}/{tensor}": float(value)
        for channel in PER_TENSOR
        if channel in sample.channels
        for tensor, value in zip(sample.tensors, sample.channels[channel], strict=True)
        if not np.isnan(value)
    }


def sink_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names; a single one may come without its tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


@cache
def sinks() -> dict[str, Callable[[Place], Sink]]:
    """{name: maker} of all sinks of this folder."""
    modules = {
        m.name: importlib.import_module(f"{__name__}.{m.name}")
        for m in pkgutil.iter_modules(__path__)
    }
    return {name: module.SINK for name, module in modules.items() if hasattr(module, "SINK")}


def make(name: str, place: Place) -> Sink:
    """The sink of that name.

    Raises:
        ValueError: there is none.
        Unwritable: it lacks what it needs.
    """
    if name not in sinks():
        raise ValueError(f"no sink is named {name!r}; known: {', '.join(sinks())}")
    return sinks()[name](place)
