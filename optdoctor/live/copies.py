"""Which tensors of a run every process should hold the same copy of, and why."""

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from optdoctor.live.holders import living
from optdoctor.live.tensors import Tracked
from optdoctor.live.units import ORDINARY
from optdoctor.trace import Fact

SAMPLES, LEAST_SAMPLES, MOST_SAMPLES = 2048, 4, 64
"""Elements of all tensors together, and of each, by which it is told how far copies are apart."""

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."
AVERAGING = frozenset(
    f"{_HOOKS}{name}"
    for name in (
        "ddp_zero_hook",
        "default_hooks",
        "mixed_precision_hooks",
        "optimizer_overlap_hooks",
        "powerSGD_hook",
        "quantization_hooks",
    )
)
"""Modules of torch whose communication hooks leave the same gradient in all processes. That of
local SGD does not, on purpose; of others nobody knows."""


@dataclass(frozen=True, slots=True)
class Copies:
    """N tensors of one device, copies of which are held by the processes of a group."""

    positions: tuple[int, ...]
    """[N] in the table of P tensors, those that a wrapper holds first."""
    num_wrapped: int
    """Of those, how many are meant to be the same: a wrapper holds them, or the loop says so."""
    num_tensors: int
    """P."""
    sizes: NDArray[np.int64]
    """[N] elements of each."""
    rank: int
    ranks: tuple[int, ...]
    why: str
    """The fact `replicated`: ddp or yes."""
    signature: int
    """Of names, shapes, dtypes and optimizer: what has to be the same before anything else."""
    wrappers: "tuple[weakref.ref[DistributedDataParallel], ...]"

    @property
    def num_samples(self) -> int:
        """k: elements of each tensor by which it is told how far copies are apart."""
        return min(max(SAMPLES // len(self.positions), LEAST_SAMPLES), MOST_SAMPLES)

    @property
    def leads(self) -> bool:
        """Whether this process reads what the others leave."""
        return self.rank == self.ranks[0]

    @property
    def others(self) -> tuple[int, ...]:
        """Ranks of all but the first."""
        return self.ranks[1:]

    def unreduced(self) -> bool:
        """Whether a wrapper is within `no_sync` now: gradients stay those of each process."""
        known = (wrapper() for wrapper in self.wrappers)
        return any(one is not None and not one.require_backward_grad_sync for one in known)


def copies_of(model: nn.Module, tracked: Tracked, told: Fact) -> Copies | None:
    """What of these tensors should be the same in all processes; None if nothing is known to be.

    `told` is the fact `replicated`: yes for all, no for none; else those that a
    DistributedDataParallel holds, which averages their gradients, count as meant to be, and trained
    ones of the same optimizer beside as perhaps. What is spread over processes is left out.
    """
    distributed = torch.distributed
    if str(told).lower() in ("no", "false") or not distributed.is_available():
        return None
    if not distributed.is_initialized() or distributed.get_world_size() < 2:
        return None
    if str(told).lower() in ("yes", "true"):
        everything = [i for i, p in enumerate(tracked.parameters) if _is_whole(p)]
        ranks = tuple(range(distributed.get_world_size()))
        return _copies(tracked, everything, [], ranks, "yes", ())
    wrappers = _wrappers(model, tracked)
    groups = {tuple(distributed.get_process_group_ranks(one.process_group)) for one in wrappers}
    if len(groups) != 1 or not all(map(_averages, wrappers)):
        return None
    held, ignored = set[int](), set[int]()
    for one in wrappers:
        for name, parameter in one.module.named_parameters():
            (ignored if name in one.parameters_to_ignore else held).add(id(parameter))
    inside, beside = [], []
    for i, (parameter, info) in enumerate(zip(tracked.parameters, tracked.tensors, strict=True)):
        if id(parameter) in ignored or not _is_whole(parameter):
            continue
        if id(parameter) in held:
            inside.append(i)
        elif info.in_optimizer and info.trainable:
            beside.append(i)
    found = tuple(weakref.ref(one) for one in wrappers)
    return _copies(tracked, inside, beside, groups.pop(), "ddp", found)


def _copies(
    tracked: Tracked,
    inside: Sequence[int],
    beside: Sequence[int],
    ranks: tuple[int, ...],
    why: str,
    wrappers: "tuple[weakref.ref[DistributedDataParallel], ...]",
) -> Copies | None:
    positions = (*inside, *beside)
    devices = {tracked.parameters[i].device for i in positions}
    rank = torch.distributed.get_rank()
    if not inside or len(devices) != 1 or len(ranks) < 2 or rank not in ranks:
        return None
    described = [
        (t.name, t.shape, t.dtype, t.in_optimizer, t.trainable, i < len(inside))
        for i, t in enumerate(tracked.tensors[at] for at in positions)
    ]
    digest = blake2b(repr((described, ranks)).encode(), digest_size=8).digest()
    return Copies(
        positions=positions,
        num_wrapped=len(inside),
        num_tensors=len(tracked.tensors),
        sizes=np.array([tracked.parameters[i].numel() for i in positions]),
        rank=rank,
        ranks=ranks,
        why=why,
        signature=int.from_bytes(digest, "little"),
        wrappers=wrappers,
    )


def _wrappers(model: nn.Module, tracked: Tracked) -> list[DistributedDataParallel]:
    """Those in the model, else those around it, that hold one of the tensors.

    A framework hands over the model within, from which no way leads to its wrapper.
    """
    wanted = {id(p) for p in tracked.parameters}

    def holding(several: Iterable[Any]) -> Iterator[DistributedDataParallel]:
        for one in several:
            if not wanted.isdisjoint(map(id, one.parameters())):
                yield one

    within = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
    return list(holding(within)) or list(holding(living(DistributedDataParallel)))


def _averages(wrapper: DistributedDataParallel) -> bool:
    """Whether it leaves the same gradient in all processes, as far as its hooks are known."""
    hooks = vars(wrapper).get("_comm_hooks", ())
    return all(getattr(hook, "__module__", "") in AVERAGING for hook, _ in hooks)


def _is_whole(parameter: Tensor) -> bool:
    """Whether it is a plain tensor with numbers in it: no part of one, no subclass."""
    usual = type(parameter) in ORDINARY and parameter.layout == torch.strided
    return usual and not parameter.is_meta and parameter.numel() > 0
