"""Shares and means over the sampled elements of a stack, without a look at any number.

Every input is [S, k], every result [S]. Comparisons are written into floating buffers: on a host
to count booleans costs many times a sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from optdoctor.live.room import Room, written
from optdoctor.live.sums import bounded
from optdoctor.live.units import chosen
from optdoctor.optimizers.elements import wide
from optdoctor.optimizers.probe import Form, Number

THIN = 1024
"""Elements of each tensor that means of rates come from, and by which a rule is followed: they take
many operations, and no decision hangs on their last percent."""

Column = dict[str, Tensor]


def same(one: Tensor, other: Tensor | float, room: Room | None = None) -> Tensor:
    """1.0 where equal."""
    return torch.eq(one, other, out=_floats(one, room))


def differs(one: Tensor, other: Tensor | float, room: Room | None = None) -> Tensor:
    """1.0 where not equal, also where either is NaN."""
    return torch.ne(one, other, out=_floats(one, room))


def _floats(like: Tensor, room: Room | None = None) -> Tensor:
    if room is not None:
        return written(like, room, torch.float32)
    return torch.empty(like.shape, dtype=torch.float32, device=like.device)


@dataclass(frozen=True, slots=True)
class Means:
    """The moments of a stack, as an update left them."""

    first: Tensor | None
    second: Tensor | None
    divisor: Tensor | None
    form: Form
    """Of the second."""
    stored: torch.dtype
    """dtype in which the second is held, or decoded to."""
    c1: Number
    c2: Number
    eps: Number | None
    rate: Number


def unchanged(moving: Tensor, num_moving: Tensor, new: Tensor, old: Tensor, room: Room) -> Tensor:
    """[S]: share of the elements with a gradient that are what they were; NaN if none has one."""
    return same(new, old, room).mul_(moving).sum(1) / num_moving


def thin(matrix: Tensor) -> Tensor:
    """[S, <= THIN] of the sampled elements, for what needs many operations."""
    places = _places(matrix.shape[1], matrix.device)
    return matrix if places is None else matrix.index_select(1, places)


@cache
def _places(num_elements: int, device: torch.device) -> Tensor | None:
    """Without a period: every so many elements would be the same columns of a matrix."""
    places = chosen("thin", num_elements, THIN)
    return None if places is None else places.to(device)


def line(means: Means) -> Tensor | None:
    """[S, 1] or [1, 1]: the second moment below which its corrected root is below epsilon; None
    where there is none."""
    if means.eps is None or means.divisor is None:
        return None
    limits = torch.finfo(wide(means.divisor[:0]).dtype)
    bound = means.eps * means.c2 if means.form == "rooted" else means.eps * means.eps * means.c2
    if not isinstance(bound, Tensor):
        bound = torch.full((1, 1), bound, dtype=torch.float64, device=means.divisor.device)
    # An epsilon whose square is 0 in this precision still is above a moment of 0.
    return bound.clamp(min=limits.smallest_normal * limits.eps)


def of_second(means: Means) -> Column:
    """moment2_zero, moment2_subnormal, moment2_saturated, and moment2_below_eps where there is an
    epsilon."""
    if means.second is None:
        return {}
    limits, k = torch.finfo(means.stored), means.second.shape[1]
    seconds = bounded(means.second)
    firsts: Sequence[Tensor | None] = [None] * len(seconds)
    if means.first is not None and means.first.shape == means.second.shape:
        firsts = bounded(means.first)
    masks = _floats(seconds[0]), _floats(seconds[0])
    zero, tiny, held, lost = [], [], [], []
    for v, first in zip(seconds, firsts, strict=True):
        # All but the last are of one width, and several are of one row.
        is_zero, other = (mask[:, : v.shape[1]] for mask in masks)
        zero.append(torch.eq(v, 0, out=is_zero).sum(1))
        tiny.append(torch.lt(v, limits.tiny, out=other).sum(1))
        held.append(torch.le(v, limits.max / 2, out=other).sum(1))
        if first is not None:
            lost.append(torch.ne(first, 0, out=other).mul_(is_zero).sum(1))
    column = {
        "moment2_subnormal": ((_total(tiny) - _total(zero)) / k).clamp(min=0),
        "moment2_saturated": (k - _total(held)) / k,
    }
    if lost:
        column["moment2_zero"] = _total(lost) / k
    if (bound := line(means)) is not None and means.divisor is not None:
        dtype = wide(means.divisor[:, :0]).dtype
        bound, several, small = bound.to(dtype), bounded(means.divisor), []
        mask = _floats(several[0])
        for d in several:
            small.append(torch.lt(wide(d), bound, out=mask[:, : d.shape[1]]).sum(1))
        column["moment2_below_eps"] = _total(small) / means.divisor.shape[1]
    return column


def _total(counts: Sequence[Tensor]) -> Tensor:
    """[S]: each is exact in float32."""
    return counts[0] if len(counts) == 1 else torch.stack(list(counts)).sum(0, dtype=torch.float64)


def of_rates(means: Means, *, careful: bool) -> Column:
    """effective_lr: mean of rate / (c1 * (root(divisor / c2) + eps)); moment_ratio: mean of
    abs(m / c1) / root(v / c2) where v > 0.

    Without care a mean is NaN or infinite as soon as one element is; with care it is that of the
    finite ones. What is the same for all elements is multiplied once, into the mean.
    """
    if means.divisor is None or means.second is None or means.eps is None:
        return {}
    scale = means.c2 if means.form == "rooted" else means.c2**0.5
    divisor = wide(thin(means.divisor))
    root = divisor if means.form == "rooted" else divisor.sqrt()
    each = (root + means.eps * scale).reciprocal_()
    factor = means.rate * scale / means.c1
    column = {"effective_lr": _mean(each, careful) * _flat(factor)}
    if means.first is not None and means.first.shape == means.second.shape:
        if means.divisor is not means.second:
            second = wide(thin(means.second))
            root = second if means.form == "rooted" else second.sqrt()
        ratio = wide(thin(means.first)).abs().div_(root)
        if careful:
            ratio = torch.where(root > 0, ratio, torch.nan)
        column["moment_ratio"] = _mean(ratio, careful) * _flat(scale / means.c1)
    return column


def _mean(values: Tensor, careful: bool) -> Tensor:
    if not careful:
        return values.sum(1) / values.shape[1]
    finite = torch.isfinite(values)
    return torch.where(finite, values, 0).sum(1) / finite.sum(1)


def _flat(number: Number) -> Number:
    """[S] of an [S, 1]."""
    return number.reshape(-1) if isinstance(number, Tensor) and number.dim() else number


def realized(moved: Tensor, foretold: Tensor, *, careful: bool = False) -> Tensor:
    """[S]: how far the change made goes along the change asked for, over the size of that; NaN
    where none was asked for. 1 where all was made, and on average where it is rounded at random.

    With care over the elements of which both are finite, and where float32 cannot hold squares.
    """
    if careful:
        finite = torch.isfinite(moved) & torch.isfinite(foretold)
        moved, foretold = (torch.where(finite, t, 0).double() for t in (moved, foretold))
    return (moved * foretold).sum(1) / (foretold * foretold).sum(1)


def decay_unchanged(weight: Tensor, apart: Number) -> Tensor:
    """[S]: share of the weights other than 0 that a decay by itself leaves as they are.

    The multiplication is made as the optimizer makes it, in the precision of the weights.
    """
    moving = differs(weight, 0)
    factor = 1 + apart if not isinstance(apart, Tensor) else (1 + apart).to(weight.dtype)
    return (moving * same(weight * factor, weight)).sum(1) / moving.sum(1)
