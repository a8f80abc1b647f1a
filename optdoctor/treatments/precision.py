"""In which dtype an optimizer keeps its moments and computes its step."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.optimizers import probe_of


def is_zero_in(number: float, dtype: torch.dtype) -> bool:
    """Whether it rounds to 0 there."""
    return float(torch.tensor(number, dtype=dtype)) == 0.0


def step_dtype(optimizer: Any, group: Mapping[str, Any], parameter: Tensor) -> torch.dtype:
    """Of the numbers that a step computes with: a fused one computes 16 bits in float32, as does
    one whose moments are float32."""
    probe = probe_of(optimizer)
    if parameter.itemsize >= 4 or probe.in_float32 or group.get("fused"):
        return parameter.dtype if parameter.itemsize >= 4 else torch.float32
    return probe.state_dtype(parameter.dtype)
