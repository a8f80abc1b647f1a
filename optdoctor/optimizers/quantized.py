"""Moments that are kept in 8 or 4 bits, by blocks (Dettmers et al. 2022, section 2).

bitsandbytes: a code [*shape] in uint8 stands for `qmap[code]`, a number in [-1, 1] of 256 that it
may be; each block of successive elements has the size `absmax` of its largest. Tensors below 4096
elements (`min_8bit_size`) stay plain.

torchao: the entry is a tensor subclass that shows the shape and dtype of the weights and holds
codes and the sizes of their blocks; nearly nothing but `dequantize` works on it, and `.float()`
gives the same subclass. Tensors below 4096 elements, or not whole blocks, stay plain. 4 bits know
no zero for a second moment: what was none reads as a sixteenth of the largest of its block.

Both compute an update in float32 and quantize afterwards: the moments that lie there after a step
are not those that moved the weights.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from optdoctor.optimizers.probe import Group, Moment, State

BLOCK, BLOCK_BEFORE_0_45 = 256, 2048
"""Elements a block of bitsandbytes."""


def blockwise_moment(state: State, key: str) -> Moment:
    """The moment under "state1" or "state2", plain or quantized as it lies there."""
    held = state.get(key)
    quantized = isinstance(held, Tensor) and held.dtype == torch.uint8
    return Moment(key, "quantized", blockwise(key)) if quantized else Moment(key)


def blockwise(key: str) -> Callable[[State, Group], Tensor]:
    """How to read "state1" or "state2" in float32: qmap[code] * absmax of its block."""
    number = key.removeprefix("state")

    def decode(state: State, group: Group) -> Tensor:
        return decoded(state[key], state[f"qmap{number}"], state[f"absmax{number}"])

    return decode


def decoded(codes: Tensor, qmap: Tensor, absmax: Tensor) -> Tensor:
    """Codes of any shape; `absmax` [blocks], or [R, blocks] of codes [R, *shape]."""
    rows = codes.reshape(*absmax.shape[:-1], -1)
    num_elements, num_blocks = rows.shape[-1], absmax.shape[-1]
    block = BLOCK if -(-num_elements // BLOCK) == num_blocks else BLOCK_BEFORE_0_45
    sizes = absmax.repeat_interleave(block, dim=-1)[..., :num_elements]
    return (qmap[rows.long()] * sizes).reshape(codes.shape)


def subclass_moment(state: State, key: str) -> Moment:
    """The moment of torchao, plain or quantized as it lies there."""

    def decode(state: State, group: Group) -> Tensor:
        return dequantized(state[key])

    return Moment(key, "quantized", decode) if _is_subclass(state.get(key)) else Moment(key)


def dequantized(held: Tensor) -> Tensor:
    """The float32 tensor that a subclass of torchao stands for; a shard of it as it lies here."""
    plain: Tensor = _local(held).dequantize()
    return plain


def _is_subclass(held: Any) -> bool:
    """Every tensor has a `dequantize`; only those of torchao have codes."""
    return isinstance(held, Tensor) and hasattr(_local(held), "codes")


def _local(held: Tensor) -> Tensor:
    shard: Tensor = held.to_local() if hasattr(held, "to_local") else held
    return shard
