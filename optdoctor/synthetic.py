"""Traces made to order: the sick and the healthy example of every rule, for docs and tests."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from optdoctor.channels import Axis, channel
from optdoctor.trace import Event, Recorder, TensorInfo, Trace, Vitals

BLOCK = ("ln_1.weight", "attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight")


def make_trace(
    channels: Mapping[str, Any] | None = None,
    *,
    tensors: Sequence[TensorInfo] = (),
    events: Sequence[Event] = (),
    steps: Mapping[str, ArrayLike] | None = None,
    **more: Any,
) -> Trace:
    """A trace of these channels: a scalar for a run, [T] for a step, [T, P] for a tensor channel.

    Steps count from 1 unless `steps` gives those of a channel.
    """
    recorder = Recorder(tuple(tensors))
    facts = {}
    for name, value in {**(channels or {}), **more}.items():
        axis = channel(name).axis
        if axis is Axis.RUN:
            facts[name] = value
            continue
        rows = np.asarray(value, np.float64)
        at = np.asarray((steps or {}).get(name, np.arange(1, len(rows) + 1)), np.int64)
        if axis is Axis.STEP:
            recorder.extend(name, at, rows)
        else:
            for step, row in zip(at, rows, strict=True):
                recorder.add(Vitals(int(step), tensors={name: row.astype(np.float32)}))
    return recorder.trace(facts, events)


def falling_loss(
    rows: int = 400, start: float = 4.6, end: float = 2.2, noise: float = 0.02, seed: int = 0
) -> NDArray[np.float64]:
    """[rows]: a healthy curve, a power law from `start` to `end` with log-normal noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(1, rows + 1)
    clean = end + (start - end) * ((rows + 1 - t) / rows) * t**-0.5
    return clean * np.exp(noise * rng.standard_normal(rows))


def gradient_norms(rows: int = 400, median: float = 1.0, seed: int = 0) -> NDArray[np.float64]:
    """[rows]: log-normal gradient norms."""
    return median * np.exp(0.2 * np.random.default_rng(seed).standard_normal(rows))


def small_gpt(dtype: str = "float32", math_dtype: str | None = None) -> tuple[TensorInfo, ...]:
    """Tensors of two transformer blocks and an embedding, weights and state in `dtype`."""
    names = ["wte.weight", *(f"h.{i}.{name}" for i in range(2) for name in BLOCK)]
    shapes = [(500, 64), *[(64,), (64, 192), (64, 64), (64, 256)] * 2]
    return tuple(
        TensorInfo(
            name=name,
            shape=shape,
            dtype=dtype,
            state_dtype=dtype,
            math_dtype=math_dtype or dtype,
            layer=".".join(name.split(".")[:2]) if name.startswith("h.") else "",
            order=order,
        )
        for order, (name, shape) in enumerate(zip(names, shapes, strict=True))
    )
