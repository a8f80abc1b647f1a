"""Histograms of the sampled elements of all tensors at once: binned where the elements are."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from optdoctor.sinks import Histogram

BINS = 64
BLOCK = 1 << 20
"""Elements, with padding, that are binned at once: 8 MiB of float64."""
LEAST_SPREAD = 1e-12
"""Spread, relative to the size of the elements, up to which a tensor counts as constant: 64 bins
of it would be narrower than float64 can tell apart."""

Histograms: TypeAlias = dict[str, dict[str, Histogram]]
"""{quantity: {tensor: histogram}}"""
Cell: TypeAlias = tuple[str, str, Tensor]
"""(quantity, tensor, elements [N])"""


@torch.no_grad()
def binned(cells: Iterable[Cell]) -> Histograms:
    """A histogram of each, between its least and greatest finite element; none without one.

    A constant gets bins around its value. Nothing waits for a device but the one transfer of each.
    """
    by_device: dict[torch.device, list[Cell]] = {}
    for cell in cells:
        if cell[2].numel():
            by_device.setdefault(cell[2].device, []).append(cell)
    found: Histograms = {}
    for several in by_device.values():
        several.sort(key=lambda cell: cell[2].numel())  # little padding
        table = torch.cat([_count([cell[2] for cell in block]) for block in _blocks(several)])
        for (quantity, tensor, elements), row in zip(several, table.cpu().numpy(), strict=True):
            counts = row[BINS + 1 :].astype(np.int64)
            if counts.any():
                left_out = elements.numel() - int(counts.sum())
                found.setdefault(quantity, {})[tensor] = Histogram(
                    row[: BINS + 1].copy(), counts, left_out
                )
    return found


def _blocks(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    block: list[Cell] = []
    for cell in cells:
        if block and (len(block) + 1) * cell[2].numel() > BLOCK:
            yield block
            block = []
        block.append(cell)
    if block:
        yield block


def _count(several: Sequence[Tensor]) -> Tensor:
    """[R, B + 1 + B] float64: edges and counts of each."""
    padded = pad_sequence([t.double() for t in several], batch_first=True, padding_value=torch.nan)
    finite = torch.isfinite(padded)
    low = torch.where(finite, padded, torch.inf).amin(1, keepdim=True)
    high = torch.where(finite, padded, -torch.inf).amax(1, keepdim=True)
    low, high = (torch.where(low <= high, bound, 0) for bound in (low, high))
    edges = _edges(low, high)  # [R, B + 1]
    first, last = edges[:, :1], edges[:, -1:]
    values = torch.where(finite, padded, first)
    place = ((values - first) / (last - first) * BINS).nan_to_num().clamp(0, BINS - 1).long()
    # The quotient is rounded and may miss by one; the edges decide.
    place -= (values < edges.gather(1, place)).long()
    place += ((values >= edges.gather(1, place + 1)) & (place < BINS - 1)).long()
    rows = torch.arange(len(several), device=place.device).unsqueeze(1)
    flat = (torch.where(finite, place, BINS) + rows * (BINS + 1)).reshape(-1)
    counts = torch.zeros(len(several) * (BINS + 1), dtype=torch.int64, device=place.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))  # in one dimension: always deterministic
    return torch.cat([edges, counts.reshape(-1, BINS + 1)[:, :BINS].double()], 1)


def _edges(low: Tensor, high: Tensor) -> Tensor:
    size = torch.maximum(low.abs(), high.abs())
    constant = high - low <= LEAST_SPREAD * size
    margin = torch.where(constant, (size * 1e-3).clamp(min=LEAST_SPREAD), 0)
    share = torch.arange(BINS + 1, dtype=torch.float64, device=low.device) / BINS
    return (low - margin) * (1 - share) + (high + margin) * share
